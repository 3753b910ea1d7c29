//! Who may begin a handshake: places are limited, and no single allocation of addresses takes all of them.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Handshakes at once.
const PLACES: usize = 512;

/// Of these for addresses from which no client has come yet. The others are for those that have, or had, sessions.
const FOR_STRANGERS: usize = 384;

/// Handshakes at once before clients have to show that their address is theirs, altogether and of one source: the first of
/// the networks below.
const UNVALIDATED: usize = 32;
const UNVALIDATED_OF_SOURCE: usize = 8;

/// Strangers' handshakes at once from which on they have less time.
const PRESSED: usize = FOR_STRANGERS / 2;

/// Handshakes at once of a source that is known, beside those that it has as a stranger.
const OF_KNOWN: usize = 32;

/// Networks that share their places, by the length of their prefixes, from a single source to what one owner may have:
/// a carrier translates many vehicles to one IPv4 address, and hands out a /64, a /56 or a /48 of IPv6 to one of them.
const SHARES: [&[(u8, usize)]; 2] = [
    &[(32, 32), (24, 48), (16, 96)],
    &[(64, 32), (56, 32), (48, 48), (32, 96)],
];

/// Sources that are known at least.
const REMEMBERED: usize = 16_384;

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// All are taken.
    Server,
    /// The source's, or those of a network that it is in.
    Source,
}

/// The handshakes that have begun.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    strangers: usize,
    known: usize,
    /// By network.
    of_strangers: HashMap<(IpAddr, u8), usize>,
    /// By source.
    of_known: HashMap<IpAddr, usize>,
    remembered: Remembered,
}

/// Sources from which clients have come: those of late, and those before.
#[derive(Debug, Default)]
struct Remembered([HashSet<IpAddr>; 2]);

/// A handshake, for as long as it lasts.
#[derive(Debug)]
pub(super) struct Place {
    of: Arc<Places>,
    address: IpAddr,
    is_reserved: bool,
    /// Whether it is to be left soon.
    pub(super) is_pressed: bool,
}

impl Places {
    /// Whether clients have to show that the address is theirs.
    pub(super) fn is_crowded(&self, address: IpAddr) -> bool {
        let taken = self.lock();
        let of_source = taken
            .of_strangers
            .get(&networks(address).next().expect("a source").0);
        taken.strangers + taken.known >= UNVALIDATED
            || of_source.is_some_and(|count| *count >= UNVALIDATED_OF_SOURCE)
    }

    /// A place for a handshake of this address.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Result<Place, Full> {
        let (is_reserved, is_pressed) = self.lock().take(address)?;
        Ok(Place {
            of: Arc::clone(self),
            address,
            is_reserved,
            is_pressed,
        })
    }

    /// A client has, or had, a session from this address.
    pub(super) fn remember(&self, address: IpAddr) {
        self.lock().remembered.insert(source(address));
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Whether the place is a reserved one, and whether it is to be left soon.
    fn take(&mut self, address: IpAddr) -> Result<(bool, bool), Full> {
        let full = match self.take_as_stranger(address) {
            Ok(()) => {
                let is_known = self.remembered.contain(source(address));
                return Ok((false, !is_known && self.strangers > PRESSED));
            }
            Err(full) => full,
        };
        let count = self.of_known.get(&source(address)).copied().unwrap_or(0);
        if !self.remembered.contain(source(address)) || count >= OF_KNOWN {
            return Err(full);
        }
        if self.known >= PLACES - FOR_STRANGERS {
            return Err(Full::Server);
        }
        self.known += 1;
        self.of_known.insert(source(address), count + 1);
        Ok((true, false))
    }

    fn take_as_stranger(&mut self, address: IpAddr) -> Result<(), Full> {
        if self.strangers >= FOR_STRANGERS {
            return Err(Full::Server);
        }
        let count = |network| self.of_strangers.get(&network).copied().unwrap_or(0);
        if networks(address).any(|(network, share)| count(network) >= share) {
            return Err(Full::Source);
        }
        self.strangers += 1;
        networks(address)
            .for_each(|(network, _)| *self.of_strangers.entry(network).or_default() += 1);
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.lock();
        if self.is_reserved {
            taken.known -= 1;
            leave(&mut taken.of_known, source(self.address));
        } else {
            taken.strangers -= 1;
            networks(self.address).for_each(|(network, _)| leave(&mut taken.of_strangers, network));
        }
    }
}

/// Counts one less, and forgets who has none.
fn leave<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, who: K) {
    if let Some(count) = counts.get_mut(&who) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&who);
        }
    }
}

impl Remembered {
    fn contain(&self, source: IpAddr) -> bool {
        self.0.iter().any(|sources| sources.contains(&source))
    }

    fn insert(&mut self, source: IpAddr) {
        let [late, before] = &mut self.0;
        if late.len() >= REMEMBERED && !late.contains(&source) {
            *before = std::mem::take(late);
        }
        late.insert(source);
    }
}

/// The networks that the address is in, and how many places each of them has.
fn networks(address: IpAddr) -> impl Iterator<Item = ((IpAddr, u8), usize)> {
    SHARES[usize::from(address.is_ipv6())]
        .iter()
        .map(move |(length, share)| ((network(address, *length), *length), *share))
}

/// The address of IPv4, or the network of IPv6, that counts as one.
fn source(address: IpAddr) -> IpAddr {
    let (length, _) = SHARES[usize::from(address.is_ipv6())][0];
    network(address, length)
}

fn network(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let host = 32 - u32::from(length);
            Ipv4Addr::from_bits(address.to_bits() >> host << host).into()
        }
        IpAddr::V6(address) => {
            let host = 128 - u32::from(length);
            Ipv6Addr::from_bits(address.to_bits() >> host << host).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Begins a handshake from each of the addresses in turn until there is no place for any; returns those that there
    /// were.
    fn take_all(
        places: &Arc<Places>,
        addresses: impl Iterator<Item = IpAddr> + Clone,
    ) -> Vec<Place> {
        let mut all = Vec::new();
        loop {
            let more: Vec<_> = addresses
                .clone()
                .filter_map(|address| places.take(address).ok())
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
            let places = Arc::new(Places::default());
            let mut taken: Vec<_> = (0..8).map(|_| places.take(ip(one)).unwrap()).collect();
            assert!(places.is_crowded(ip(same)) && !places.is_crowded(ip(other)));
            taken.extend((8..32).map(|_| places.take(ip(same)).unwrap()));
            assert_eq!(places.take(ip(one)).unwrap_err(), Full::Source);
            taken.push(places.take(ip(other)).unwrap());
            taken.swap_remove(0);
            assert!(places.take(ip(same)).is_ok());
            drop(taken);
            let left = places.lock();
            assert!(left.of_strangers.is_empty() && left.strangers == 0);
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
            let places = Arc::new(Places::default());
            let taken = take_all(&places, addresses.iter().copied());
            assert_eq!(taken.len(), most, "{}", addresses[0]);
            assert_eq!(places.take(addresses[0]).unwrap_err(), Full::Source);
            for other in ["203.0.113.1", "2600::1"] {
                assert!(
                    places.take(ip(other)).is_ok(),
                    "{other} beside {}",
                    addresses[0]
                );
            }
        }
    }

    #[test]
    fn whoever_had_a_session_finds_a_place_when_strangers_have_all_of_theirs() {
        let places = Arc::new(Places::default());
        for known in ["203.0.113.1", "2600::1"] {
            places.remember(ip(known));
        }
        let strangers = take_all(
            &places,
            (1..=200).map(|first| IpAddr::from([first, 1, 1, 1])),
        );
        assert_eq!(strangers.len(), FOR_STRANGERS);
        assert_eq!(places.take(ip("203.0.113.2")).unwrap_err(), Full::Server);
        let known = take_all(&places, [ip("203.0.113.1"), ip("2600::2")].into_iter());
        assert_eq!(known.len(), 2 * OF_KNOWN);
        assert!(known.iter().all(|place| !place.is_pressed));
        drop((strangers, known));
        let left = places.lock();
        assert!(
            left.of_known.is_empty()
                && left.of_strangers.is_empty()
                && left.known + left.strangers == 0
        );
    }

    #[test]
    fn strangers_have_less_time_when_there_are_many_of_them() {
        let places = Arc::new(Places::default());
        places.remember(ip("203.0.113.1"));
        let few = take_all(&places, (1..=6).map(|first| IpAddr::from([first, 1, 1, 1])));
        assert_eq!(few.len(), PRESSED);
        assert!(few.iter().all(|place| !place.is_pressed));
        assert!(places.take(ip("198.51.100.1")).unwrap().is_pressed);
        assert!(
            !places.take(ip("203.0.113.1")).unwrap().is_pressed,
            "one that had a session"
        );
    }

    #[test]
    fn sources_are_forgotten_when_many_others_have_come() {
        let mut remembered = Remembered::default();
        let address = |number: u32| IpAddr::from(Ipv4Addr::from_bits(number));
        (0..REMEMBERED as u32).for_each(|number| remembered.insert(address(number)));
        assert!(remembered.contain(address(0)));
        (0..4 * REMEMBERED as u32).for_each(|number| remembered.insert(address(1 << 24 | number)));
        assert!(!remembered.contain(address(0)));
        assert!(remembered.0.iter().map(HashSet::len).sum::<usize>() <= 2 * REMEMBERED);
    }
}
