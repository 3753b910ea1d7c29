//! The packets that are replicated: those that were selected, except packets to this node itself
//! and to its links.
//!
//! The programs look up the longest prefix that holds a destination in a trie. Excluded
//! destinations are stored in the same trie as prefixes, so that a packet needs only one lookup.
//! These rows exist only below a selected prefix. A selected prefix within one of them is excluded
//! as well.

use crate::Rule;
use crate::selector::{Prefix, expect, leave_alone, select};
use crate::skeleton::replicate_xdp::types::reason;
use hawser_kernel::table::{Table, TableError};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Maximum number of rows of the trie: a prefix for every flow, and thousands of addresses of the
/// node. Unused rows take no memory.
pub(crate) const MAX_SELECTORS: u32 = 65_536;

/// Destinations that routers do not forward to.
const NOT_FORWARDED: [(&str, reason); 9] = [
    ("0.0.0.0/32", reason::PASSED_NOT_UNICAST),
    ("127.0.0.0/8", reason::PASSED_LINK_LOCAL),
    ("169.254.0.0/16", reason::PASSED_LINK_LOCAL),
    ("224.0.0.0/4", reason::PASSED_NOT_UNICAST),
    ("255.255.255.255/32", reason::PASSED_NOT_UNICAST),
    ("::/128", reason::PASSED_NOT_UNICAST),
    ("::1/128", reason::PASSED_LINK_LOCAL),
    ("fe80::/10", reason::PASSED_LINK_LOCAL),
    ("ff00::/8", reason::PASSED_NOT_UNICAST),
];

/// The contents of a sender's trie and their origin.
#[derive(Debug)]
pub(crate) struct Selection {
    selected: BTreeMap<Prefix, Vec<Rule>>,
    /// Destinations of packets to peers, whether flows select them or not.
    of_peers: BTreeSet<Prefix>,
    not_forwarded: BTreeMap<Prefix, reason>,
    /// The node's own addresses, each as a prefix that holds a single address.
    own: BTreeMap<Prefix, reason>,
}

/// A row of the trie.
#[derive(Debug, PartialEq)]
enum Row<'s> {
    Rules(&'s [Rule]),
    LeftAlone(reason),
    /// Packets to a peer that no rule selects.
    OfPeer,
}

impl Selection {
    pub(crate) fn new() -> Self {
        let parse = |(text, why): (&str, reason)| (text.parse().expect("a prefix"), why);
        Selection {
            selected: BTreeMap::new(),
            of_peers: BTreeSet::new(),
            not_forwarded: NOT_FORWARDED.into_iter().map(parse).collect(),
            own: BTreeMap::new(),
        }
    }

    /// Replaces the rules of a prefix. An empty list removes it.
    pub(crate) fn select(
        &mut self,
        table: &impl Table,
        prefix: Prefix,
        rules: &[Rule],
    ) -> Result<(), TableError> {
        let within = || self.not_forwarded.keys().chain(self.own.keys());
        let left_alone: Vec<_> = within()
            .filter(|other| prefix.contains(**other))
            .copied()
            .collect();
        // The wide prefix must never be present without the excluded prefixes inside it.
        if rules.is_empty() {
            self.selected.remove(&prefix);
            self.write(table, &[prefix])?;
            self.write(table, &left_alone)?;
        } else {
            self.selected.insert(prefix, rules.to_vec());
            self.write(table, &left_alone)?;
            self.write(table, &[prefix])?;
        }
        // A row of a peer within the prefix would hide its rules.
        let of_peers = self.of_peers.iter();
        let within: Vec<_> = of_peers
            .filter(|other| prefix.contains(**other))
            .copied()
            .collect();
        self.write(table, &within)
    }

    /// Makes packets to these prefixes, which are for peers, count where no flow selects them.
    pub(crate) fn expect(
        &mut self,
        table: &impl Table,
        prefixes: BTreeSet<Prefix>,
    ) -> Result<(), TableError> {
        self.of_peers = prefixes;
        let all: Vec<_> = self.of_peers.iter().copied().collect();
        self.write(table, &all)
    }

    /// Excludes packets to the addresses of this node, each given with the length of its link's
    /// prefix.
    pub(crate) fn set_own(
        &mut self,
        table: &impl Table,
        addresses: &[(IpAddr, u8)],
    ) -> Result<(), TableError> {
        let before = std::mem::replace(&mut self.own, taken_in(addresses));
        let changed = |prefix: &&Prefix| before.get(prefix) != self.own.get(prefix);
        let all: BTreeSet<_> = before.keys().chain(self.own.keys()).collect();
        let changed: Vec<_> = all.into_iter().filter(changed).copied().collect();
        let written = self.write(table, &changed);
        if written.is_err() {
            // So that the next call writes them again.
            self.own = before;
        }
        written
    }

    fn write(&self, table: &impl Table, prefixes: &[Prefix]) -> Result<(), TableError> {
        prefixes
            .iter()
            .try_for_each(|prefix| match self.row(*prefix) {
                Some(Row::LeftAlone(why)) => leave_alone(table, *prefix, why),
                Some(Row::Rules(rules)) => select(table, *prefix, rules),
                Some(Row::OfPeer) => expect(table, *prefix),
                None => select(table, *prefix, &[]),
            })
    }

    /// Returns the trie's row for a prefix that is selected or excluded.
    fn row(&self, prefix: Prefix) -> Option<Row<'_>> {
        let Some(why) = self.left_alone(prefix) else {
            let rules = self.selected.get(&prefix).map(|rules| Row::Rules(rules));
            let is_of_peer = || self.of_peers.contains(&prefix) && !self.is_selected(prefix);
            return rules.or_else(|| is_of_peer().then_some(Row::OfPeer));
        };
        self.is_selected(prefix).then_some(Row::LeftAlone(why))
    }

    fn is_selected(&self, prefix: Prefix) -> bool {
        let mut selected = self.selected.keys();
        selected.any(|selected| selected.contains(prefix))
    }

    fn left_alone(&self, prefix: Prefix) -> Option<reason> {
        let ranges = || {
            self.not_forwarded
                .iter()
                .find(|(range, _)| range.contains(prefix))
        };
        self.own
            .get(&prefix)
            .or_else(|| ranges().map(|(_, why)| why))
            .copied()
    }
}

/// Returns the addresses whose packets the kernel delivers locally: its own, the broadcast address
/// of each of its links, and the subnet-router anycast address (RFC 4291, section 2.6.1).
fn taken_in(addresses: &[(IpAddr, u8)]) -> BTreeMap<Prefix, reason> {
    let mut own = BTreeMap::new();
    for link in addresses
        .iter()
        .filter_map(|(address, bits)| Prefix::new(*address, *bits))
    {
        match link.address() {
            IpAddr::V4(_) if link.bits() < 31 => {
                own.insert(Prefix::host(link.last()), reason::PASSED_NOT_UNICAST);
            }
            IpAddr::V6(_) if link.bits() < 127 => {
                own.insert(Prefix::host(link.address()), reason::PASSED_LOCAL);
            }
            _ => {}
        }
    }
    own.extend(
        addresses
            .iter()
            .map(|(address, _)| (Prefix::host(*address), reason::PASSED_LOCAL)),
    );
    own
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::FlowId;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn rules() -> Vec<Rule> {
        vec![Rule {
            flow: FlowId::try_from(7).unwrap(),
            protocol: None,
            ports: None,
        }]
    }

    fn selection(selected: &[&str], own: &[(&str, u8)]) -> Selection {
        let mut selection = Selection::new();
        selection.selected = selected
            .iter()
            .map(|text| (prefix(text), rules()))
            .collect();
        let own: Vec<_> = own
            .iter()
            .map(|(address, bits)| (address.parse().unwrap(), *bits))
            .collect();
        selection.own = taken_in(&own);
        selection
    }

    #[test]
    fn an_address_is_taken_in_with_those_of_its_link() {
        let selection = selection(
            &[],
            &[
                ("192.0.2.9", 24),
                ("198.51.100.0", 31),
                ("203.0.113.1", 32),
                ("2001:db8::9", 64),
                ("::1", 128),
            ],
        );
        let own: Vec<_> = selection
            .own
            .iter()
            .map(|(prefix, why)| (prefix.to_string(), *why))
            .collect();
        assert_eq!(
            own,
            [
                ("192.0.2.9/32", reason::PASSED_LOCAL),
                ("192.0.2.255/32", reason::PASSED_NOT_UNICAST),
                ("198.51.100.0/32", reason::PASSED_LOCAL),
                ("203.0.113.1/32", reason::PASSED_LOCAL),
                ("::1/128", reason::PASSED_LOCAL),
                ("2001:db8::/128", reason::PASSED_LOCAL),
                ("2001:db8::9/128", reason::PASSED_LOCAL),
            ]
            .map(|(text, why)| (text.to_owned(), why))
        );
    }

    #[test]
    fn a_peer_has_a_row_only_where_no_flow_is_selected() {
        for (selected, has_row) in [
            (&[][..], true),
            (&["203.0.113.0/24"], true),
            (&["10.99.0.2/32"], true),
            (&["10.99.0.0/24"], false),
            (&["0.0.0.0/0"], false),
        ] {
            let mut selection = selection(selected, &[]);
            selection.of_peers.insert(prefix("10.99.0.0/24"));
            let row = selection.row(prefix("10.99.0.0/24"));
            assert_eq!(row == Some(Row::OfPeer), has_row, "{selected:?}");
        }
    }

    #[test]
    fn exclusions_apply_only_below_a_selected_prefix() {
        let own = [("192.0.2.9", 24), ("2001:db8::9", 64)];
        for (selected, left_alone) in [
            (&["203.0.113.0/24"][..], &[][..]),
            (&["192.0.2.0/24"], &["192.0.2.9/32", "192.0.2.255/32"]),
            (&["192.0.2.8/29"], &["192.0.2.9/32"]),
            (
                &["::/0"],
                &[
                    "2001:db8::9/128",
                    "2001:db8::/128",
                    "ff00::/8",
                    "fe80::/10",
                    "::1/128",
                    "::/128",
                ],
            ),
        ] {
            let selection = selection(selected, &own);
            let all = selection.not_forwarded.keys().chain(selection.own.keys());
            let there: BTreeSet<_> = all
                .filter(|prefix| selection.row(**prefix).is_some())
                .copied()
                .collect();
            let expected: BTreeSet<_> = left_alone.iter().map(|text| prefix(text)).collect();
            assert_eq!(there, expected, "{selected:?}");
        }
    }

    #[test]
    fn what_is_selected_within_it_is_left_alone_too() {
        let selection = selection(&["239.1.2.3/32", "192.0.2.9/32"], &[("192.0.2.9", 24)]);
        let row = |text| selection.row(prefix(text));
        assert_eq!(
            row("239.1.2.3/32"),
            Some(Row::LeftAlone(reason::PASSED_NOT_UNICAST))
        );
        assert_eq!(
            row("192.0.2.9/32"),
            Some(Row::LeftAlone(reason::PASSED_LOCAL))
        );
        assert_eq!(row("224.0.0.0/4"), None);
    }
}
