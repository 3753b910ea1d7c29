use serde::{Deserialize, Deserializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IP prefix, such as `10.77.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// The first address.
    network: IpAddr,
    /// The number of leading bits that all addresses share.
    length: u8,
}

/// The error for a text that is not an address, a slash and a length, or that has bits set beyond
/// the length.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a prefix such as 10.77.0.0/16 or fd77::/64")]
pub struct InvalidPrefix(String);

impl Prefix {
    /// Returns the prefix of this length that contains `address`; the address itself if the length exceeds its bits.
    pub fn around(address: IpAddr, length: u8) -> Prefix {
        let prefix = Prefix {
            network: address,
            length: length.min(width(address)),
        };
        Prefix {
            network: prefix.like(prefix.masked(bits(address))),
            ..prefix
        }
    }

    /// Returns the prefix that contains nothing but `address`.
    pub fn host(address: IpAddr) -> Prefix {
        Prefix::around(address, u8::MAX)
    }

    /// Returns the prefix length in bits.
    pub fn length(self) -> u8 {
        self.length
    }

    /// Returns whether this is a prefix of IPv4 addresses.
    pub fn is_ipv4(self) -> bool {
        self.network.is_ipv4()
    }

    /// Returns whether `address` is in the prefix.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_ipv4() && self.masked(bits(address)) == bits(self.network)
    }

    /// Returns the address with that offset from the start of the prefix, if the prefix contains
    /// it.
    pub fn address(self, number: u64) -> Option<IpAddr> {
        let address = bits(self.network).checked_add(number.into())?;
        (self.masked(address) == bits(self.network)).then(|| self.like(address))
    }

    /// Returns the offset of an address from the start of the prefix, if the prefix contains it and
    /// the offset fits in 64 bits.
    pub fn number(self, address: IpAddr) -> Option<u64> {
        let number = self
            .contains(address)
            .then(|| bits(address) - bits(self.network))?;
        u64::try_from(number).ok()
    }

    /// Returns whether the prefix contains all addresses of `other`.
    pub fn covers(self, other: Prefix) -> bool {
        self.length <= other.length && self.contains(other.network)
    }

    /// Returns whether an address is in both prefixes.
    pub fn overlaps(self, other: Prefix) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// Returns the prefixes that together contain the addresses of this one that are in none of
    /// `excluded`, in ascending order.
    pub fn without(self, excluded: &[Prefix]) -> Vec<Prefix> {
        if excluded.iter().any(|prefix| prefix.covers(self)) {
            return Vec::new();
        }
        if !excluded.iter().any(|prefix| prefix.overlaps(self)) {
            return vec![self];
        }
        // A prefix that overlaps and does not cover this one is longer, so this one has halves.
        let halves = self.halves().into_iter();
        halves.flat_map(|half| half.without(excluded)).collect()
    }

    /// Returns the two halves of a prefix of more than one address.
    ///
    /// # Panics
    /// If the prefix has one address only.
    pub fn halves(self) -> [Prefix; 2] {
        assert!(
            self.length < width(self.network),
            "{self} has one address only"
        );
        let length = self.length + 1;
        let upper = bits(self.network) | 1 << (width(self.network) - length);
        [self.network, self.like(upper)].map(|network| Prefix { network, length })
    }

    fn masked(self, bits: u128) -> u128 {
        match width(self.network) - self.length {
            128 => 0,
            host => bits >> host << host,
        }
    }

    /// Returns the address of the prefix's family with these bits.
    fn like(self, bits: u128) -> IpAddr {
        match self.network {
            IpAddr::V4(_) => Ipv4Addr::from(bits as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from(bits).into(),
        }
    }
}

/// Returns the number of bits of an address.
fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

impl FromStr for Prefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let invalid = || InvalidPrefix(text.to_owned());
        let (network, length) = text.split_once('/').ok_or_else(invalid)?;
        let prefix = Prefix {
            network: network.parse().map_err(|_| invalid())?,
            length: length.parse().map_err(|_| invalid())?,
        };
        let fits = prefix.length <= width(prefix.network);
        if fits && prefix.contains(prefix.network) {
            Ok(prefix)
        } else {
            Err(invalid())
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.length)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Returns whether there is at most one IPv4 and at most one IPv6 item. Each value says whether an
/// item is IPv4.
pub fn at_most_one_of_each_family(are_ipv4: impl IntoIterator<Item = bool>) -> bool {
    let mut seen = [false; 2];
    are_ipv4
        .into_iter()
        .all(|is_ipv4| !std::mem::replace(&mut seen[usize::from(is_ipv4)], true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_numbered_within_a_prefix() {
        assert_eq!(
            prefix("10.77.0.0/30").address(3),
            Some([10, 77, 0, 3].into())
        );
        assert_eq!(prefix("10.77.0.0/30").address(4), None);
        assert_eq!(prefix("0.0.0.0/0").address(1 << 32), None);
        assert_eq!(
            prefix("fd77::/64").address(2),
            Some("fd77::2".parse().unwrap())
        );
        assert_eq!(
            prefix("fd77::/64").number("fd77::2".parse().unwrap()),
            Some(2)
        );
        assert_eq!(prefix("fd77::/64").number("fd78::2".parse().unwrap()), None);
        assert_eq!(
            prefix("fd77::/16").number("fd77:8::".parse().unwrap()),
            None
        );
        assert!(prefix("::/0").contains("fd77::2".parse().unwrap()));
        assert!(!prefix("::/0").contains([10, 0, 0, 1].into()));
    }

    #[test]
    fn a_prefix_around_an_address_contains_it() {
        let around = |address: &str, length| Prefix::around(address.parse().unwrap(), length);
        assert_eq!(around("10.77.3.4", 16), prefix("10.77.0.0/16"));
        assert_eq!(around("10.77.3.4", 0), prefix("0.0.0.0/0"));
        assert_eq!(around("10.77.3.4", 40), prefix("10.77.3.4/32"));
        assert_eq!(around("fd77::1:2", 64), prefix("fd77::/64"));
        assert_eq!(around("fd77::1:2", 0), prefix("::/0"));
    }

    #[test]
    fn a_prefix_without_others_is_divided() {
        let texts = |text: &str, excluded: &[&str]| {
            let excluded: Vec<_> = excluded.iter().map(|text| prefix(text)).collect();
            let parts = prefix(text).without(&excluded).into_iter();
            parts.map(|part| part.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(texts("10.0.0.0/8", &[]), ["10.0.0.0/8"]);
        assert_eq!(texts("10.0.0.0/8", &["11.0.0.0/8", "::/0"]), ["10.0.0.0/8"]);
        assert!(texts("10.0.0.0/8", &["10.0.0.0/8"]).is_empty());
        assert!(texts("10.0.0.0/8", &["0.0.0.0/0"]).is_empty());
        assert_eq!(
            texts("0.0.0.0/0", &["128.0.0.0/2", "0.0.0.0/1"]),
            ["192.0.0.0/2"]
        );
        assert_eq!(texts("fd00::/8", &["fd80::/10", "fdc0::/10"]), ["fd00::/9"]);
        assert_eq!(texts("0.0.0.0/0", &["203.0.113.1/32"]).len(), 32);
        assert_eq!(texts("::/0", &["2001:db8::1/128"]).len(), 128);
    }

    #[test]
    fn each_address_is_in_the_parts_once_or_excluded() {
        let excluded = ["10.0.0.64/26", "10.0.0.96/27", "10.0.0.255/32"].map(prefix);
        let whole = prefix("10.0.0.0/24");
        let parts = whole.without(&excluded);
        for number in 0..256 {
            let address = whole.address(number).unwrap();
            let is_excluded = excluded.iter().any(|prefix| prefix.contains(address));
            let count = parts.iter().filter(|part| part.contains(address)).count();
            assert_eq!(count, usize::from(!is_excluded), "{address}");
        }
    }

    #[test]
    fn invalid_prefixes_are_rejected() {
        for text in [
            "10.77.0.0",
            "10.77.0.1/16",
            "10.77.0.0/33",
            "fd77::1/64",
            "fd77::/129",
            "/8",
            "a/8",
        ] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
    }
}
