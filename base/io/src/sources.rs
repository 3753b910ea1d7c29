//! The sources of connections, and what each of them may take of something scarce.
//!
//! A source is an IPv4 address or a /64 of IPv6, which one host has at least. Who owns many addresses shares with all of
//! them, as far as one network has them.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The prefix lengths of sources, of IPv4 and IPv6.
const SOURCE: [u8; 2] = [32, 64];

/// The minimum number of known sources that are remembered.
const MIN_REMEMBERED: usize = 16_384;

/// The numbers that networks have taken, each of which has a share.
#[derive(Debug)]
pub struct Shares {
    /// The prefix lengths of the networks that share, with their shares.
    shares: [Vec<(u8, usize)>; 2],
    taken: HashMap<(IpAddr, u8), usize>,
}

impl Shares {
    /// Creates shares of networks of IPv4 and IPv6, by prefix length. `number` returns that of a share.
    pub fn new(shares: [&[(u8, usize)]; 2], number: impl Fn(usize) -> usize) -> Self {
        let numbers = |(length, share): &(u8, usize)| (*length, number(*share));
        Shares {
            shares: shares.map(|shares| shares.iter().map(numbers).collect()),
            taken: HashMap::new(),
        }
    }

    /// Creates shares of sources alone.
    pub fn of_sources(share: usize) -> Self {
        let [ipv4, ipv6] = SOURCE;
        Shares::new([&[(ipv4, share)], &[(ipv6, share)]], |share| share)
    }

    /// Returns whether none of the networks of an address has taken its share.
    pub fn has_room(&self, address: IpAddr) -> bool {
        let mut networks = self.networks(address);
        networks.all(|(network, share)| self.count(network) < share)
    }

    /// Counts one more, whatever the shares.
    pub fn take(&mut self, address: IpAddr) {
        let networks: Vec<_> = self.networks(address).collect();
        for (network, _) in networks {
            *self.taken.entry(network).or_default() += 1;
        }
    }

    /// Gives back one that was taken.
    pub fn give_back(&mut self, address: IpAddr) {
        let networks: Vec<_> = self.networks(address).collect();
        for (network, _) in networks {
            if let Some(count) = self.taken.get_mut(&network) {
                *count -= 1;
                if *count == 0 {
                    self.taken.remove(&network);
                }
            }
        }
    }

    /// Returns the number that the source of an address has taken, if sources have shares.
    pub fn of_source(&self, address: IpAddr) -> usize {
        let length = SOURCE[usize::from(address.to_canonical().is_ipv6())];
        self.count((source(address), length))
    }

    /// Returns whether nothing is taken.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    fn count(&self, network: (IpAddr, u8)) -> usize {
        self.taken.get(&network).copied().unwrap_or(0)
    }

    /// Returns the networks that the address is in, each with its share.
    fn networks(&self, address: IpAddr) -> impl Iterator<Item = ((IpAddr, u8), usize)> {
        let address = address.to_canonical();
        let shares = self.shares[usize::from(address.is_ipv6())].iter();
        shares.map(move |(length, share)| ((network(address, *length), *length), *share))
    }
}

/// Sources that have shown who they are: recent ones, and those before them.
#[derive(Debug, Default)]
pub struct KnownSources([HashSet<IpAddr>; 2]);

impl KnownSources {
    /// Returns whether the source of an address is known.
    pub fn contains(&self, address: IpAddr) -> bool {
        let source = source(address);
        self.0.iter().any(|sources| sources.contains(&source))
    }

    /// Remembers the source of an address.
    pub fn insert(&mut self, address: IpAddr) {
        let source = source(address);
        let [recent, older] = &mut self.0;
        if recent.len() >= MIN_REMEMBERED && !recent.contains(&source) {
            *older = std::mem::take(recent);
        }
        recent.insert(source);
    }
}

/// Returns the source that an address belongs to.
pub fn source(address: IpAddr) -> IpAddr {
    let address = address.to_canonical();
    network(address, SOURCE[usize::from(address.is_ipv6())])
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

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_ipv4_address_has_one_source_however_it_is_written() {
        for (address, of) in [
            ("203.0.113.1", "203.0.113.1"),
            ("::ffff:203.0.113.1", "203.0.113.1"),
            ("2001:db8::1:2:3:4", "2001:db8::"),
            ("2001:db8:0:1::1", "2001:db8:0:1::"),
        ] {
            assert_eq!(source(ip(address)), ip(of), "{address}");
        }
    }

    #[test]
    fn what_is_given_back_leaves_nothing_behind() {
        let mut shares = Shares::new([&[(32, 2), (24, 3)], &[(64, 1)]], |share| share);
        for address in ["203.0.113.1", "::ffff:203.0.113.1", "203.0.113.2"] {
            assert!(shares.has_room(ip(address)), "{address}");
            shares.take(ip(address));
        }
        assert_eq!(shares.of_source(ip("203.0.113.1")), 2);
        assert!(!shares.has_room(ip("203.0.113.3")) && shares.has_room(ip("203.0.112.3")));
        for address in ["203.0.113.1", "203.0.113.1", "203.0.113.2"] {
            shares.give_back(ip(address));
        }
        assert!(shares.is_empty());
    }

    #[test]
    fn sources_are_forgotten_when_many_others_have_come() {
        let mut known_sources = KnownSources::default();
        let address = |number: u32| IpAddr::from(Ipv4Addr::from_bits(number));
        (0..MIN_REMEMBERED as u32).for_each(|number| known_sources.insert(address(number)));
        assert!(known_sources.contains(address(0)));
        (0..4 * MIN_REMEMBERED as u32)
            .for_each(|number| known_sources.insert(address(1 << 24 | number)));
        assert!(!known_sources.contains(address(0)));
        assert!(known_sources.0.iter().map(HashSet::len).sum::<usize>() <= 2 * MIN_REMEMBERED);
    }
}
