use crate::skeleton::replicate_xdp::types;
use crate::table::{Table, TableError, plain};
use hawser_units::FlowId;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

plain!(types::selector_key, types::selector);

/// Rules that one destination prefix may hold.
pub const MAX_RULES: usize = 16;

/// A destination prefix, its bits beyond the length zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

/// A text is not a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a prefix is an address, a slash and a length, such as 203.0.113.0/24 or 2001:db8::/32")]
pub struct NotAPrefix;

impl Prefix {
    /// The first `bits` of `address`; `None` when the address has fewer.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        let cut = |most: u8| most.checked_sub(bits).map(u32::from);
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

    /// Its length.
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// Its first address.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Whether every address of `other` is also in this prefix.
    pub fn contains(self, other: Prefix) -> bool {
        self.bits <= other.bits && Prefix::new(other.address, self.bits) == Some(self)
    }

    /// The key of the trie, where an IPv4 prefix is mapped into IPv6.
    fn key(self) -> types::selector_key {
        let (address, offset) = match self.address {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped(), 96),
            IpAddr::V6(v6) => (v6, 0),
        };
        types::selector_key { prefix_bits: offset + u32::from(self.bits), address: address.octets() }
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

/// The ports that a rule is for; TCP and UDP only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    /// Source ports.
    pub source: RangeInclusive<u16>,
    /// Destination ports.
    pub destination: RangeInclusive<u16>,
}

/// Which packets to a prefix are of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The flow.
    pub flow: FlowId,
    /// The IP protocol, any when `None`.
    pub protocol: Option<u8>,
    /// The ports, any when `None`. Fragments carry no ports and are never of a flow selected by them.
    pub ports: Option<Ports>,
}

/// Replaces the rules of a prefix in one step; no rules remove it. The first rule that matches wins.
///
/// # Panics
/// With more than [`MAX_RULES`] rules.
pub(crate) fn select(table: &impl Table, prefix: Prefix, rules: &[Rule]) -> Result<(), TableError> {
    assert!(rules.len() <= MAX_RULES, "the caller has checked the number of rules");
    if rules.is_empty() {
        return table.remove(&prefix.key());
    }
    let mut selector = types::selector { count: rules.len() as u32, ..Default::default() };
    for (slot, rule) in selector.rules.iter_mut().zip(rules) {
        slot.flow = rule.flow.into();
        slot.protocol = rule.protocol.unwrap_or(0);
        if let Some(Ports { source, destination }) = &rule.ports {
            slot.has_ports = 1;
            (slot.source_min, slot.source_max) = (*source.start(), *source.end());
            (slot.destination_min, slot.destination_max) = (*destination.start(), *destination.end());
        }
    }
    table.set(&prefix.key(), &selector)
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
    fn a_prefix_contains_longer_ones_of_its_family() {
        assert!(prefix("10.0.0.0/8").contains(prefix("10.2.0.0/16")));
        assert!(prefix("0.0.0.0/0").contains(prefix("10.2.0.0/16")));
        assert!(!prefix("10.2.0.0/16").contains(prefix("10.0.0.0/8")));
        assert!(!prefix("::/0").contains(prefix("10.0.0.0/8")));
    }
}
