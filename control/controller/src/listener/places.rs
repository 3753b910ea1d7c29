//! The places of open connections, so that no single allocation of addresses can take all of them.
//!
//! A client that has presented no certificate may have any address of its network: an owner of IPv6 has 65,536 networks
//! of the size that counts as one address. So strangers of wider networks share places too. Sources that have presented a
//! certificate before have places of their own when strangers have taken all others.

use hawser_io::sources::{KnownSources, Shares};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;

/// The networks in which strangers share places, by prefix length, with their share in halves of that of
/// an address.
const SHARES: [&[(u8, usize)]; 2] = [&[(24, 3), (16, 6)], &[(56, 2), (48, 3), (32, 6)]];

/// The places that only known sources can take, as a part of the others.
const RESERVED: usize = 4;

/// The places of connections.
pub(super) struct Places {
    max: usize,
    taken: Mutex<Taken>,
}

struct Taken {
    all: usize,
    by_address: Shares,
    strangers: Shares,
    /// The sources that have presented a certificate.
    known: KnownSources,
}

/// A place, free again when dropped.
pub(super) struct Place {
    of: Arc<Places>,
    address: IpAddr,
    is_stranger: bool,
}

impl Places {
    pub(super) fn new(max: usize, max_of_address: usize) -> Arc<Places> {
        Arc::new(Places {
            max,
            taken: Mutex::new(Taken {
                all: 0,
                by_address: Shares::of_sources(max_of_address),
                strangers: Shares::new(SHARES, |halves| max_of_address.saturating_mul(halves) / 2),
                known: KnownSources::default(),
            }),
        })
    }

    /// Takes a place for a client that has not presented a certificate yet.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Result<Place, &'static str> {
        let taken = &mut *self.taken.lock();
        let is_stranger = !taken.known.contains(address);
        let reserved = if is_stranger { 0 } else { self.max / RESERVED };
        if taken.all >= self.max.saturating_add(reserved) {
            return Err("connections");
        }
        if !taken.by_address.has_room(address) {
            return Err("connections_per_address");
        }
        if is_stranger && !taken.strangers.has_room(address) {
            return Err("connections_per_network");
        }
        taken.all += 1;
        taken.by_address.take(address);
        if is_stranger {
            taken.strangers.take(address);
        }
        Ok(Place {
            of: self.clone(),
            address,
            is_stranger,
        })
    }
}

impl Place {
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// The client has presented a valid certificate: it no longer counts in its network, nor do those that come from
    /// there later.
    pub(super) fn is_known(&mut self) {
        let mut taken = self.of.taken.lock();
        taken.known.insert(self.address);
        if std::mem::take(&mut self.is_stranger) {
            taken.strangers.give_back(self.address);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        taken.all -= 1;
        taken.by_address.give_back(self.address);
        if self.is_stranger {
            taken.strangers.give_back(self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many places as possible by the addresses.
    fn take_all(places: &Arc<Places>, addresses: impl Iterator<Item = String>) -> Vec<Place> {
        let addresses = addresses.map(|address| address.parse().unwrap());
        addresses
            .flat_map(|address| (0..20).map_while(move |_| places.take(address).ok()))
            .collect()
    }

    #[test]
    fn no_network_takes_the_places_of_others() {
        for (addresses, other) in [
            (
                Vec::from_iter((0..200).map(|n| format!("198.51.100.{n}"))),
                "192.0.2.1",
            ),
            (
                Vec::from_iter((0..200).map(|n| format!("198.51.{n}.1"))),
                "192.0.2.1",
            ),
            (
                Vec::from_iter((0..200).map(|n| format!("2001:db8:1:{n:x}::1"))),
                "2001:db9::1",
            ),
            (
                Vec::from_iter((0..200).map(|n| format!("2001:db8:{n:x}::1"))),
                "2001:db9::1",
            ),
            (
                Vec::from_iter((0..200).map(|n| format!("::ffff:198.51.100.{n}"))),
                "192.0.2.1",
            ),
        ] {
            let places = Places::new(100, 20);
            let held = take_all(&places, addresses.into_iter());
            assert!((20..=60).contains(&held.len()), "{}", held.len());
            places.take(other.parse().unwrap()).map(drop).unwrap();
            drop(held);
            assert_eq!(places.taken.lock().all, 0);
            assert!(places.taken.lock().strangers.is_empty());
        }
    }

    #[test]
    fn a_known_client_leaves_its_place_to_strangers() {
        let places = Places::new(100, 2);
        let take = |host: u8| places.take([198, 51, 100, host].into());
        let mut held: Vec<_> = (1..=3).map(|host| take(host).unwrap()).collect();
        assert_eq!(take(4).map(drop), Err("connections_per_network"));
        held[0].is_known();
        held[0].is_known();
        held.push(take(4).unwrap());
        assert_eq!(take(5).map(drop), Err("connections_per_network"));
        held.push(take(1).unwrap());
        assert_eq!(take(1).map(drop), Err("connections_per_address"));
        drop(held);
        assert!(places.taken.lock().by_address.is_empty());
        assert!(places.taken.lock().strangers.is_empty());
    }

    #[test]
    fn a_known_source_finds_a_place_when_strangers_have_all_others() {
        let places = Places::new(100, 20);
        let known = "2001:db8::1".parse().unwrap();
        places.take(known).unwrap().is_known();
        let strangers = take_all(&places, (1..=200).map(|n| format!("{n}.1.1.1")));
        assert_eq!(strangers.len(), 100);
        assert_eq!(
            places.take([203, 0, 113, 1].into()).map(drop),
            Err("connections")
        );
        let back = take_all(&places, ["2001:db8::2".to_owned()].into_iter());
        assert_eq!(back.len(), 20);
    }
}
