//! The places of sessions, so that no single network takes all of them.

use hawser_io::sources::Shares;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;

/// The networks whose sessions share places, by prefix length, with their shares in sixteenths of all.
const SHARES: [&[(u8, usize)]; 2] = [&[(32, 2), (24, 3), (16, 4)], &[(56, 2), (48, 3), (32, 4)]];

/// The places of sessions. A network may take more than its share while at least half of all are free: all
/// viewers of an office may have one address.
pub(crate) struct Places {
    max: usize,
    taken: Mutex<Taken>,
}

struct Taken {
    all: usize,
    by_network: Shares,
}

/// A place, free again when dropped.
pub(crate) struct Place {
    of: Arc<Places>,
    address: IpAddr,
}

impl Places {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let share = |sixteenths: usize| (max.saturating_mul(sixteenths) / 16).max(1);
        Arc::new(Places {
            max,
            taken: Mutex::new(Taken {
                all: 0,
                by_network: Shares::new(SHARES, share),
            }),
        })
    }

    /// Returns whether there is a place for a client from this address.
    pub(crate) fn has_room(&self, address: IpAddr) -> bool {
        self.taken.lock().has_room(self.max, address)
    }

    /// Returns the number of places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken.lock().all
    }

    /// Takes a place for a client from this address, if there is one for it.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut taken = self.taken.lock();
        if !taken.has_room(self.max, address) {
            return None;
        }
        taken.all += 1;
        taken.by_network.take(address);
        Some(Place {
            of: Arc::clone(self),
            address,
        })
    }
}

impl Taken {
    fn has_room(&self, max: usize, address: IpAddr) -> bool {
        let free = max.saturating_sub(self.all);
        free > 0 && (free >= max.div_ceil(2) || self.by_network.has_room(address))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        taken.all -= 1;
        taken.by_network.give_back(self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many places as there are for an address.
    fn take_all(places: &Arc<Places>, address: &str) -> Vec<Place> {
        let address = address.parse().unwrap();
        std::iter::from_fn(|| places.take(address)).collect()
    }

    #[test]
    fn no_source_takes_the_places_of_others() {
        for (one, same, other) in [
            ("192.0.2.1", "::ffff:192.0.2.1", "203.0.113.1"),
            ("2001:db8::1", "2001:db8::2", "2600::1"),
        ] {
            let places = Places::new(64);
            let mut taken = take_all(&places, one);
            assert_eq!(taken.len(), 33, "{one}");
            assert!(!places.has_room(same.parse().unwrap()), "{same}");
            taken.extend(take_all(&places, other));
            assert_eq!(taken.len(), 33 + 8, "{other}");
            assert_eq!(take_all(&places, "198.51.100.1").len(), 8);
            drop(taken);
            assert_eq!(take_all(&places, one).len(), 33);
            let left = places.taken.lock();
            assert!(left.all == 0 && left.by_network.is_empty());
        }
    }

    #[test]
    fn few_places_are_all_taken_in_the_end() {
        for max in 1..=8 {
            let places = Places::new(max);
            let sources = (1..=8).map(|n| format!("{n}.0.2.1"));
            let taken: Vec<_> = sources.flat_map(|from| take_all(&places, &from)).collect();
            assert_eq!(taken.len(), max);
            assert!(!places.has_room("9.0.2.1".parse().unwrap()));
        }
    }
}
