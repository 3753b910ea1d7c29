use serde::{Deserialize, Deserializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IP prefix, such as `10.77.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
        let address = match self.network {
            IpAddr::V4(_) => Ipv4Addr::from(u32::try_from(address).ok()?).into(),
            IpAddr::V6(_) => Ipv6Addr::from(address).into(),
        };
        self.contains(address).then_some(address)
    }

    /// Returns the offset of an address from the start of the prefix, if the prefix contains it and
    /// the offset fits in 64 bits.
    pub fn number(self, address: IpAddr) -> Option<u64> {
        let number = self
            .contains(address)
            .then(|| bits(address) - bits(self.network))?;
        u64::try_from(number).ok()
    }

    fn masked(self, bits: u128) -> u128 {
        let width = if self.is_ipv4() { 32 } else { 128 };
        match width - u32::from(self.length) {
            128 => 0,
            host => bits >> host << host,
        }
    }
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
        let fits = prefix.length <= if prefix.is_ipv4() { 32 } else { 128 };
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
