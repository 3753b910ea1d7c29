use crate::FlowId;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Length of the prefix that IPv4 addresses are mapped into.
const MAPPED_BITS: u8 = 96;

/// A destination prefix. Its bits beyond the length are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

/// The error for a text that is not a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a prefix is an address, a slash and a length, such as 203.0.113.0/24 or 2001:db8::/32")]
pub struct NotAPrefix;

impl Prefix {
    /// Creates the prefix of the first `bits` of `address`; `None` if the address has fewer bits.
    /// An IPv4-mapped IPv6 prefix becomes an IPv4 prefix.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        if let (IpAddr::V6(v6), Some(bits)) = (address, bits.checked_sub(MAPPED_BITS))
            && let Some(v4) = v6.to_ipv4_mapped()
        {
            return Prefix::new(v4.into(), bits);
        }
        let cut = |width: u8| width.checked_sub(bits).map(u32::from);
        let address = match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(cut(32)?).unwrap_or(0);
                IpAddr::V4((u32::from(v4) & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(cut(128)?).unwrap_or(0);
                IpAddr::V6((u128::from(v6) & mask).into())
            }
        };
        Some(Prefix { address, bits })
    }

    /// Returns the length in bits.
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// Returns the first address.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Returns whether every address of `other` is also in this prefix.
    pub fn contains(self, other: Prefix) -> bool {
        self.bits <= other.bits && Prefix::new(other.address, self.bits) == Some(self)
    }

    /// Creates the prefix that holds only `address`.
    pub fn host(address: IpAddr) -> Self {
        Prefix::new(address, if address.is_ipv4() { 32 } else { 128 })
            .expect("the length is that of the address")
    }

    /// Returns the last address.
    pub fn last(self) -> IpAddr {
        match self.address {
            IpAddr::V4(v4) => {
                let host = u32::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                IpAddr::V4((u32::from(v4) | host).into())
            }
            IpAddr::V6(v6) => {
                let host = u128::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                IpAddr::V6((u128::from(v6) | host).into())
            }
        }
    }

    /// Returns the key of the prefix in a trie of IPv6 prefixes, into which IPv4 ones are mapped: the
    /// length in bits and the address.
    pub fn key(self) -> (u32, [u8; 16]) {
        let (address, offset) = match self.address {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped(), MAPPED_BITS.into()),
            IpAddr::V6(v6) => (v6, 0),
        };
        (offset + u32::from(self.bits), address.octets())
    }
}

impl FromStr for Prefix {
    type Err = NotAPrefix;

    fn from_str(text: &str) -> Result<Self, NotAPrefix> {
        let (address, bits) = text.split_once('/').ok_or(NotAPrefix)?;
        let address = address.parse().map_err(|_| NotAPrefix)?;
        Prefix::new(address, bits.parse().map_err(|_| NotAPrefix)?).ok_or(NotAPrefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// The ports that a rule matches; TCP and UDP only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    /// Source ports.
    pub source: RangeInclusive<u16>,
    /// Destination ports.
    pub destination: RangeInclusive<u16>,
}

/// A rule that assigns packets to a prefix to a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The flow.
    pub flow: FlowId,
    /// The IP protocol; `None` matches any.
    pub protocol: Option<u8>,
    /// The ports; `None` matches any. Fragments carry no ports and never match a rule with ports.
    pub ports: Option<Ports>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn prefixes_drop_the_bits_beyond_their_length() {
        assert_eq!(prefix("10.1.2.3/8"), prefix("10.0.0.0/8"));
        assert_eq!(prefix("2001:db8::1/32").to_string(), "2001:db8::/32");
        assert_eq!(prefix("1.2.3.4/0"), prefix("0.0.0.0/0"));
        for text in ["10.0.0.0", "10.0.0.0/33", "::/129", "ten/8", "10.0.0.0/x"] {
            assert_eq!(text.parse::<Prefix>(), Err(NotAPrefix), "{text}");
        }
    }

    #[test]
    fn a_prefix_of_mapped_addresses_is_one_of_ipv4() {
        assert_eq!(prefix("::ffff:203.0.113.9/120"), prefix("203.0.113.0/24"));
        assert_eq!(prefix("::ffff:0.0.0.0/96"), prefix("0.0.0.0/0"));
        assert_eq!(prefix("::ffff:0.0.0.0/95").to_string(), "::fffe:0:0/95");
    }

    #[test]
    fn a_prefix_ends_with_its_last_address() {
        for (text, last) in [
            ("203.0.113.64/26", "203.0.113.127"),
            ("0.0.0.0/0", "255.255.255.255"),
            ("203.0.113.9/32", "203.0.113.9"),
            ("2001:db8::/126", "2001:db8::3"),
            ("2001:db8::9/128", "2001:db8::9"),
        ] {
            assert_eq!(prefix(text).last(), last.parse::<IpAddr>().unwrap());
        }
    }

    #[test]
    fn a_prefix_contains_longer_ones_of_its_family() {
        assert!(prefix("10.0.0.0/8").contains(prefix("10.2.0.0/16")));
        assert!(prefix("0.0.0.0/0").contains(prefix("10.2.0.0/16")));
        assert!(!prefix("10.2.0.0/16").contains(prefix("10.0.0.0/8")));
        assert!(!prefix("::/0").contains(prefix("10.0.0.0/8")));
    }
}
