use crate::skeleton::replicate_xdp::types;
use crate::table::{Table, TableError, plain};
use hawser_units::FlowId;
use std::net::IpAddr;
use std::ops::RangeInclusive;

plain!(types::selector_key, types::selector);

/// Rules that one destination prefix may hold.
pub const MAX_RULES: usize = 16;

/// A destination prefix. Bits beyond its length do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// `bits` of `address`; `None` when the address has fewer.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        (bits <= most).then_some(Prefix { address, bits })
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
