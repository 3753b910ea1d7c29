use super::find;
use super::generic::{ask, family, malformed};
use netlink_packet_core::{NlasIterator, parse_string};
use std::collections::BTreeSet;
use std::io;

/// Returns the offloads that are switched on at the interface with this number, by the names that
/// `ethtool -k` has for them, such as `rx-gro`. Needs no privilege.
pub fn offloads(index: u32) -> io::Result<BTreeSet<String>> {
    let family = family(b"ethtool\0")?;
    let mut header = Vec::with_capacity(8);
    header.extend(8u16.to_ne_bytes());
    header.extend(ETHTOOL_A_HEADER_DEV_INDEX.to_ne_bytes());
    header.extend(index.to_ne_bytes());
    let kind = ETHTOOL_A_FEATURES_HEADER | NLA_F_NESTED;
    let answer = ask(family, ETHTOOL_MSG_FEATURES_GET, kind, &header)?;
    active(&answer).ok_or_else(malformed)
}

/// The offload that takes VLAN tags out of frames that arrive.
pub const STRIPS_VLAN_TAGS: &str = "rx-vlan-hw-parse";

// linux/netlink.h
const NLA_F_NESTED: u16 = 1 << 15;

// linux/ethtool_netlink.h
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;

/// Returns the names in the set of active features, which has only the bits that are set.
fn active(answer: &[u8]) -> Option<BTreeSet<String>> {
    let set = find(answer, ETHTOOL_A_FEATURES_ACTIVE)?;
    let bits = find(set, ETHTOOL_A_BITSET_BITS)?;
    let bits = NlasIterator::new(bits).filter_map(Result::ok);
    let names = bits
        .filter(|bit| bit.kind() == ETHTOOL_A_BITSET_BITS_BIT)
        .filter_map(|bit| parse_string(find(bit.value(), ETHTOOL_A_BITSET_BIT_NAME)?).ok());
    Some(names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_segments_late() {
        let loopback = crate::netlink::index("lo").unwrap();
        let offloads = offloads(loopback).unwrap();
        assert!(offloads.contains("tx-generic-segmentation"), "{offloads:?}");
    }

    #[test]
    fn an_answer_without_features_is_unexpected() {
        assert_eq!(active(&[]), None);
        assert_eq!(active(&[8, 0, 4, 0, 1, 0, 0, 0]), None);
    }
}
