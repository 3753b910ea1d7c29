use crate::skeleton::replicate_xdp::types::{self, limit, reason, rule_flag};
use hawser_kernel::plain;
use hawser_kernel::table::{Table, TableError};
pub use hawser_units::{NotAPrefix, Ports, Prefix, Rule};
use std::ops::RangeInclusive;

plain!(types::selector_key, types::selector);

const RULE_PORTS: u8 = rule_flag::RULE_PORTS.0 as u8;
const RULE_SOURCE_PORTS: u8 = rule_flag::RULE_SOURCE_PORTS.0 as u8;
const RULE_SERVICES: u8 = rule_flag::RULE_SERVICES.0 as u8;

/// A prefix of at least this many bits also selects its name servers. A shorter one means all
/// destinations, and name resolution must not depend on it.
const NARROW_BITS: u8 = 8;

/// Maximum number of rules of one destination prefix.
pub const MAX_RULES: usize = limit::MAX_RULES.0 as usize;

/// Replaces the rules of a prefix atomically; an empty list removes it. The first rule that matches
/// decides.
///
/// # Panics
/// If there are more than [`MAX_RULES`] rules.
pub(crate) fn select(table: &impl Table, prefix: Prefix, rules: &[Rule]) -> Result<(), TableError> {
    assert!(
        rules.len() <= MAX_RULES,
        "the caller has checked the number of rules"
    );
    if rules.is_empty() {
        return table.remove(&selector_key(prefix));
    }
    let mut selector = empty(prefix);
    selector.count = rules.len() as u8;
    for (slot, rule) in selector.rules.iter_mut().zip(rules) {
        *slot = row(rule);
        if prefix.bits() >= NARROW_BITS {
            slot.flags |= RULE_SERVICES;
        }
    }
    table.set(&selector_key(prefix), &selector)
}

/// Returns the row of a rule.
fn row(rule: &Rule) -> types::rule {
    let mut row = types::rule {
        flow: rule.flow.into(),
        protocol: rule.protocol.unwrap_or(0),
        ..Default::default()
    };
    if let Some(Ports {
        source,
        destination,
    }) = &rule.ports
    {
        let flag =
            |ports: &RangeInclusive<u16>, flag| if *ports == (0..=u16::MAX) { 0 } else { flag };
        row.flags = RULE_PORTS | flag(source, RULE_SOURCE_PORTS) | flag(destination, RULE_SERVICES);
        (row.source_min, row.source_max) = (*source.start(), *source.end());
        (row.destination_min, row.destination_max) = (*destination.start(), *destination.end());
    }
    row
}

/// Excludes packets to a prefix from all flows, with the reason `why`.
pub(crate) fn leave_alone(
    table: &impl Table,
    prefix: Prefix,
    why: reason,
) -> Result<(), TableError> {
    let left_alone = why.0.try_into().expect("reasons fit a byte");
    table.set(
        &selector_key(prefix),
        &types::selector {
            left_alone,
            ..empty(prefix)
        },
    )
}

/// Makes packets to a prefix, of which no flow has rules, count as packets to a peer that match no flow.
pub(crate) fn expect(table: &impl Table, prefix: Prefix) -> Result<(), TableError> {
    table.set(
        &selector_key(prefix),
        &types::selector {
            is_of_peer: 1,
            ..empty(prefix)
        },
    )
}

fn selector_key(prefix: Prefix) -> types::selector_key {
    let (prefix_bits, address) = prefix.key();
    types::selector_key {
        prefix_bits,
        address,
    }
}

fn empty(prefix: Prefix) -> types::selector {
    types::selector {
        is_ipv6: prefix.address().is_ipv6().into(),
        ..Default::default()
    }
}
