//! Limits the number of handshakes in progress, and their time, so that no single allocation of addresses can
//! occupy all slots. A server takes a slot before it knows who connects, and frees it once it does.

use crate::sources::{KnownSources, Shares};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The number of slots for handshakes.
const SLOTS: usize = 512;

/// The number of slots that any source can take. The others are reserved for known sources, which
/// have, or had, sessions.
const SHARED_SLOTS: usize = 384;

/// The number of handshakes, in total and from one source, from which on clients have to validate
/// their address (Retry).
const MAX_UNVALIDATED: usize = 32;
const MAX_UNVALIDATED_OF_SOURCE: usize = 8;

/// The number of handshakes in shared slots from which on unknown sources have less time.
const MANY_SHARED: usize = SHARED_SLOTS / 2;

/// The number of reserved slots of a known source, in addition to the shared ones.
const RESERVED_SLOTS_OF_SOURCE: usize = 32;

/// The networks that share slots, by prefix length, with their numbers of slots, from a single
/// source to what one owner may have: a carrier translates many vehicles to one IPv4 address, and
/// assigns a /64, a /56 or a /48 of IPv6 to one of them.
const NETWORK_SLOTS: [&[(u8, usize)]; 2] = [
    &[(32, 32), (24, 48), (16, 96)],
    &[(64, 32), (56, 32), (48, 48), (32, 96)],
];

/// The reason why there is no free slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// All slots are taken.
    Server,
    /// The slots of the source, or of a network that it is in, are taken.
    Source,
}

impl Full {
    /// Returns the name of the reason in a status.
    pub fn name(self) -> &'static str {
        match self {
            Full::Server => "too_many_handshakes",
            Full::Source => "too_many_of_source",
        }
    }
}

/// The handshakes in progress.
#[derive(Debug, Default)]
pub struct HandshakeSlots {
    taken: Mutex<TakenSlots>,
    known_sources: Arc<Mutex<KnownSources>>,
}

#[derive(Debug)]
struct TakenSlots {
    shared: usize,
    reserved: usize,
    /// The shared slots taken.
    shared_by_network: Shares,
    /// The reserved slots taken.
    reserved_by_source: Shares,
}

impl Default for TakenSlots {
    fn default() -> Self {
        TakenSlots {
            shared: 0,
            reserved: 0,
            shared_by_network: Shares::new(NETWORK_SLOTS, |slots| slots),
            reserved_by_source: Shares::of_sources(RESERVED_SLOTS_OF_SOURCE),
        }
    }
}

/// A slot taken by a handshake; it is free again when the value is dropped.
#[derive(Debug)]
pub struct HandshakeSlot {
    of: Arc<HandshakeSlots>,
    address: IpAddr,
    is_reserved: bool,
    /// Whether the handshake has less time because slots are short.
    has_less_time: bool,
}

/// The time limits of a handshake, from a client's first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimits {
    /// That of the message which says who the client is.
    pub first_message: Duration,
    /// That of the handshake of TLS.
    pub tls_handshake: Duration,
}

const TIME_LIMITS: TimeLimits = TimeLimits {
    first_message: Duration::from_secs(10),
    tls_handshake: Duration::from_secs(3),
};

/// The time limits while slots are short: still enough for a round trip over satellite and one
/// retransmission.
const SHORT_TIME_LIMITS: TimeLimits = TimeLimits {
    first_message: Duration::from_secs(3),
    tls_handshake: Duration::from_millis(1500),
};

impl HandshakeSlot {
    /// Returns the time limits of the handshake.
    pub fn time_limits(&self) -> TimeLimits {
        if self.has_less_time {
            SHORT_TIME_LIMITS
        } else {
            TIME_LIMITS
        }
    }
}

impl HandshakeSlots {
    /// Returns as many slots for handshakes of another kind, so that neither kind takes those of the
    /// other. The known sources are the same.
    pub fn of_another_kind(&self) -> HandshakeSlots {
        HandshakeSlots {
            taken: Mutex::default(),
            known_sources: Arc::clone(&self.known_sources),
        }
    }

    /// Returns whether clients have to validate this address.
    pub fn is_crowded(&self, address: IpAddr) -> bool {
        let taken = self.taken.lock();
        taken.shared + taken.reserved >= MAX_UNVALIDATED
            || taken.shared_by_network.of_source(address) >= MAX_UNVALIDATED_OF_SOURCE
    }

    /// Takes a slot for a handshake from this address.
    ///
    /// # Errors
    /// If there is none for it.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Result<HandshakeSlot, Full> {
        let is_known = self.known_sources.lock().contains(address);
        let (is_reserved, has_less_time) = self.taken.lock().take(address, is_known)?;
        Ok(HandshakeSlot {
            of: Arc::clone(self),
            address,
            is_reserved,
            has_less_time,
        })
    }

    /// Remembers that a client has, or had, a session from this address.
    pub fn remember(&self, address: IpAddr) {
        self.known_sources.lock().insert(address);
    }
}

impl TakenSlots {
    /// Takes a slot; returns whether it is a reserved one, and whether the handshake has less time.
    fn take(&mut self, address: IpAddr, is_known: bool) -> Result<(bool, bool), Full> {
        let full = match self.take_shared(address) {
            Ok(()) => return Ok((false, !is_known && self.shared > MANY_SHARED)),
            Err(full) => full,
        };
        if !is_known || !self.reserved_by_source.has_room(address) {
            return Err(full);
        }
        if self.reserved >= SLOTS - SHARED_SLOTS {
            return Err(Full::Server);
        }
        self.reserved += 1;
        self.reserved_by_source.take(address);
        Ok((true, false))
    }

    fn take_shared(&mut self, address: IpAddr) -> Result<(), Full> {
        if self.shared >= SHARED_SLOTS {
            return Err(Full::Server);
        }
        if !self.shared_by_network.has_room(address) {
            return Err(Full::Source);
        }
        self.shared += 1;
        self.shared_by_network.take(address);
        Ok(())
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        if self.is_reserved {
            taken.reserved -= 1;
            taken.reserved_by_source.give_back(self.address);
        } else {
            taken.shared -= 1;
            taken.shared_by_network.give_back(self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Takes slots for each of the addresses in turn until none of them gets another one; returns
    /// the slots.
    fn take_all(
        slots: &Arc<HandshakeSlots>,
        addresses: impl Iterator<Item = IpAddr> + Clone,
    ) -> Vec<HandshakeSlot> {
        let mut all = Vec::new();
        loop {
            let more: Vec<_> = addresses
                .clone()
                .filter_map(|address| slots.take(address).ok())
                .collect();
            if more.is_empty() {
                return all;
            }
            all.extend(more);
        }
    }

    fn ipv6(high: u64) -> IpAddr {
        Ipv6Addr::from_bits(u128::from(high) << 64 | 1).into()
    }

    #[test]
    fn a_source_has_a_share_and_no_more() {
        for (one, same, other) in [
            ("203.0.113.1", "203.0.113.1", "203.0.113.2"),
            ("2001:db8::1", "2001:db8::2:1", "2001:db8:1::1"),
        ] {
            let slots = Arc::new(HandshakeSlots::default());
            let mut taken: Vec<_> = (0..8).map(|_| slots.take(ip(one)).unwrap()).collect();
            assert!(slots.is_crowded(ip(same)) && !slots.is_crowded(ip(other)));
            taken.extend((8..32).map(|_| slots.take(ip(same)).unwrap()));
            assert_eq!(slots.take(ip(one)).unwrap_err(), Full::Source);
            taken.push(slots.take(ip(other)).unwrap());
            taken.swap_remove(0);
            assert!(slots.take(ip(same)).is_ok());
            drop(taken);
            let left = slots.taken.lock();
            assert!(left.shared_by_network.is_empty() && left.shared == 0);
        }
    }

    #[test]
    fn no_allocation_of_addresses_takes_all_places() {
        let in_48 = (0..1 << 16)
            .step_by(77)
            .map(|subnet| ipv6(0x2001_0db8_0001_0000 | subnet));
        let in_32 = (0..1 << 32)
            .step_by(1 << 20 | 0x101)
            .map(|subnet| ipv6(0x2001_0db8_0000_0000 | subnet));
        let in_24 = (0..=255).map(|host| IpAddr::from([198, 51, 100, host]));
        let in_16 = (0..=255).map(|third| IpAddr::from([198, 51, third, 7]));
        let allocations: [(Vec<IpAddr>, usize); 4] = [
            (in_48.collect(), 48),
            (in_32.collect(), 96),
            (in_24.collect(), 48),
            (in_16.collect(), 96),
        ];
        for (addresses, most) in allocations {
            let slots = Arc::new(HandshakeSlots::default());
            let taken = take_all(&slots, addresses.iter().copied());
            assert_eq!(taken.len(), most, "{}", addresses[0]);
            assert_eq!(slots.take(addresses[0]).unwrap_err(), Full::Source);
            for other in ["203.0.113.1", "2600::1"] {
                assert!(
                    slots.take(ip(other)).is_ok(),
                    "{other} beside {}",
                    addresses[0]
                );
            }
        }
    }

    #[test]
    fn known_sources_find_a_place_when_strangers_have_theirs() {
        let slots = Arc::new(HandshakeSlots::default());
        for known in ["203.0.113.1", "2600::1"] {
            slots.remember(ip(known));
        }
        let strangers = take_all(
            &slots,
            (1..=200).map(|first| IpAddr::from([first, 1, 1, 1])),
        );
        assert_eq!(strangers.len(), SHARED_SLOTS);
        assert_eq!(slots.take(ip("203.0.113.2")).unwrap_err(), Full::Server);
        let known = take_all(&slots, [ip("203.0.113.1"), ip("2600::2")].into_iter());
        assert_eq!(known.len(), 2 * RESERVED_SLOTS_OF_SOURCE);
        assert!(known.iter().all(|slot| !slot.has_less_time));
        drop((strangers, known));
        let left = slots.taken.lock();
        assert!(
            left.reserved_by_source.is_empty()
                && left.shared_by_network.is_empty()
                && left.reserved + left.shared == 0
        );
    }

    #[test]
    fn another_kind_has_its_own_slots_and_the_same_sources() {
        let slots = Arc::new(HandshakeSlots::default());
        let others = Arc::new(slots.of_another_kind());
        let address = ip("203.0.113.1");
        let taken = take_all(&others, [address].into_iter());
        assert_eq!(taken.len(), 32);
        assert!(!slots.is_crowded(address));
        assert_eq!(take_all(&slots, [address].into_iter()).len(), 32);
        slots.remember(address);
        let reserved = take_all(&others, [address].into_iter());
        assert_eq!(reserved.len(), RESERVED_SLOTS_OF_SOURCE);
    }

    #[test]
    fn strangers_have_less_time_when_there_are_many_of_them() {
        let slots = Arc::new(HandshakeSlots::default());
        slots.remember(ip("203.0.113.1"));
        let few = take_all(&slots, (1..=6).map(|first| IpAddr::from([first, 1, 1, 1])));
        assert_eq!(few.len(), MANY_SHARED);
        assert!(few.iter().all(|slot| !slot.has_less_time));
        assert!(slots.take(ip("198.51.100.1")).unwrap().has_less_time);
        assert!(
            !slots.take(ip("203.0.113.1")).unwrap().has_less_time,
            "one that had a session"
        );
    }
}
