//! The places of open connections, so that no single allocation of addresses can take all of them.
//!
//! A client that has presented no certificate may have any address of its network: an owner of IPv6 has 65,536 networks
//! of the size that counts as one address. So strangers of wider networks share places too.

use crate::limit::source;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The networks in which strangers share places, by prefix length, with their share in halves of that of
/// an address.
const SHARES: [&[(u8, usize)]; 2] = [&[(24, 3), (16, 6)], &[(56, 2), (48, 3), (32, 6)]];

/// The places of connections.
pub(super) struct Places {
    max: usize,
    max_of_address: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
    strangers: HashMap<(IpAddr, u8), usize>,
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
            max_of_address,
            taken: Mutex::default(),
        })
    }

    /// Takes a place for a client that has not presented a certificate yet.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Result<Place, &'static str> {
        let taken = &mut *self.taken.lock();
        if taken.all >= self.max {
            return Err("connections");
        }
        let of_address = taken.by_address.get(&source(address));
        if of_address.is_some_and(|count| *count >= self.max_of_address) {
            return Err("connections_per_address");
        }
        let is_full = |(network, halves)| {
            let count = taken.strangers.get(&network).copied().unwrap_or(0);
            count >= self.max_of_address.saturating_mul(halves) / 2
        };
        if networks(address).any(is_full) {
            return Err("connections_per_network");
        }
        taken.all += 1;
        *taken.by_address.entry(source(address)).or_default() += 1;
        networks(address)
            .for_each(|(network, _)| *taken.strangers.entry(network).or_default() += 1);
        Ok(Place {
            of: self.clone(),
            address,
            is_stranger: true,
        })
    }
}

impl Place {
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// The client has presented a valid certificate: it no longer counts in its network.
    pub(super) fn is_known(&mut self) {
        if std::mem::take(&mut self.is_stranger) {
            self.of.taken.lock().forget_stranger(self.address);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        taken.all -= 1;
        decrement(&mut taken.by_address, source(self.address));
        if self.is_stranger {
            taken.forget_stranger(self.address);
        }
    }
}

impl Taken {
    fn forget_stranger(&mut self, address: IpAddr) {
        networks(address).for_each(|(network, _)| decrement(&mut self.strangers, network));
    }
}

/// Decrements the count of `key`, and removes it at zero.
fn decrement<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

/// Returns the networks that the address is in, each with its share.
fn networks(address: IpAddr) -> impl Iterator<Item = ((IpAddr, u8), usize)> {
    let address = address.to_canonical();
    let shares = SHARES[usize::from(address.is_ipv6())].iter();
    shares.map(move |(length, halves)| ((network(address, *length), *length), *halves))
}

fn network(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & u32::MAX << (32 - length)).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & u128::MAX << (128 - length)).into(),
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
        held.push(take(1).unwrap());
        assert_eq!(take(1).map(drop), Err("connections_per_address"));
        assert_eq!(take(4).map(drop), Err("connections_per_network"));
        drop(held);
        assert!(places.taken.lock().by_address.is_empty());
    }
}
