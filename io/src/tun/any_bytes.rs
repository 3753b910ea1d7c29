//! For any packets, merging and splitting do not panic, and packets that are merged and split again
//! are the same.

#[path = "../../../core/wire/tests/support/mutation.rs"]
mod mutation;

use super::offload::{Gso, Kind, Offload};
use super::{coalesce, split::split};
use hawser_wire::ip;
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::net::SocketAddr;

/// A UDP packet, or a TCP segment without options that follows number `number - 1` of its flow.
fn packet(is_v6: bool, is_tcp: bool, number: u8, payload: usize) -> Vec<u8> {
    let [source, destination] = if is_v6 {
        ["[fd00::1]:1", "[fd00::2]:2"]
    } else {
        ["10.0.0.1:1", "10.0.0.2:2"]
    };
    let [source, destination]: [SocketAddr; 2] =
        [source, destination].map(|address| address.parse().unwrap());
    let payload = vec![number; payload];
    if !is_tcp {
        return ip::udp_packet(source, destination, 0, &payload);
    }
    // The rest of a TCP header is 12 bytes longer than that of UDP.
    let mut packet = ip::udp_packet(source, destination, 0, &[&[0u8; 12][..], &payload].concat());
    let start = if is_v6 { 40 } else { 20 };
    packet[if is_v6 { 6 } else { 9 }] = 6;
    if !is_v6 {
        packet[10..12].fill(0);
        let sum = ip::checksum(&packet[..start]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let segment = &mut packet[start..];
    let sequence = u32::from(number) * payload.len() as u32;
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    segment[8..20].copy_from_slice(&[0, 0, 0, 7, 5 << 4, 0x10, 1, 0, 0, 0, 0, 0]);
    let sum = ip::transport_checksum(source.ip(), destination.ip(), 6, segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Returns length and last bytes of each packet, sorted: flows may overtake each other, and
/// splitting numbers the identification of IPv4.
fn tails(packets: &[Vec<u8>]) -> Vec<(usize, Vec<u8>)> {
    let tail = |packet: &Vec<u8>| {
        let at = packet.len().saturating_sub(8);
        (packet.len(), packet[at..].to_vec())
    };
    let mut tails: Vec<_> = packets.iter().map(tail).collect();
    tails.sort();
    tails
}

fn check_merged(packets: &[Vec<u8>], with_udp: bool) -> Result<(), TestCaseError> {
    let groups = coalesce::group(packets, with_udp);
    let mut members: Vec<usize> = groups.iter().flat_map(|group| group.members()).collect();
    members.sort_unstable();
    prop_assert_eq!(members, (0..packets.len()).collect::<Vec<_>>());
    let mut back = Vec::new();
    for group in &groups {
        let Some((offload, mut gso)) = group.headers(packets) else {
            back.push(packets[group.first].clone());
            continue;
        };
        let headers = gso.len();
        for index in group.members() {
            gso.extend_from_slice(&packets[index][headers..]);
        }
        prop_assert!(gso.len() <= 65_535);
        prop_assert_eq!(Offload::parse(offload.emit()), Some(offload));
        prop_assert!(split(offload, &gso, &mut back).is_ok());
    }
    prop_assert_eq!(tails(&back), tails(packets));
    Ok(())
}

fn check_split(offload: Offload, packet: &[u8]) -> Result<(), TestCaseError> {
    let mut packets = Vec::new();
    if split(offload, packet, &mut packets).is_ok() {
        prop_assert!(packets.len() <= packet.len().max(1));
        prop_assert!(packets.iter().all(|piece| piece.len() <= packet.len()));
        prop_assert!(offload.gso.is_some() || packets.len() == 1);
    }
    Ok(())
}

fn offloads() -> impl Strategy<Value = Offload> {
    let number = || {
        prop_oneof![
            4 => select(vec![0usize, 1, 6, 16, 20, 40]),
            2 => 0..200usize,
            1 => 0..65_536usize,
        ]
    };
    let kinds = select(vec![Kind::Tcp4, Kind::Tcp6, Kind::Udp]);
    let gso = (kinds, number(), number()).prop_map(|(kind, headers, payload)| Gso {
        kind,
        headers,
        payload,
    });
    let gso = proptest::option::of(gso);
    let checksum = proptest::option::of((number(), number()));
    (gso, checksum).prop_map(|(gso, checksum)| Offload { gso, checksum })
}

proptest! {
    #[test]
    fn any_bytes_from_the_kernel_are_rejected_or_split(
        header in any::<[u8; Offload::LEN]>(),
        offload in offloads(),
        packet in vec(any::<u8>(), 0..400),
    ) {
        prop_assert_eq!(Offload::parse(offload.emit()), Some(offload));
        check_split(offload, &packet)?;
        if let Some(offload) = Offload::parse(header) {
            check_split(offload, &packet)?;
        }
    }

    #[test]
    fn a_changed_packet_from_the_kernel_is_rejected_or_split(
        offload in offloads(),
        changes in changes(),
        is_v6: bool,
        is_tcp: bool,
    ) {
        check_split(offload, &changed(&packet(is_v6, is_tcp, 1, 100), &changes))?;
    }

    #[test]
    fn any_bytes_are_written_as_they_are(
        packets in vec(vec(any::<u8>(), 0..100), 0..10),
        with_udp: bool,
    ) {
        check_merged(&packets, with_udp)?;
    }

    #[test]
    fn changed_packets_are_the_same_after_merging_and_splitting(
        packets in vec((any::<bool>(), any::<bool>(), changes()), 0..20),
        with_udp: bool,
    ) {
        let mut packets: Vec<Vec<u8>> = (0u8..)
            .zip(&packets)
            .map(|(number, (is_v6, is_tcp, changes))| {
                changed(&packet(*is_v6, *is_tcp, number, 100), changes)
            })
            .collect();
        // A train of one flow behind them, so that some are merged in every case.
        packets.extend((100u8..110).map(|number| packet(false, true, number, 100)));
        check_merged(&packets, with_udp)?;
    }
}

#[test]
fn a_tcp_header_shorter_than_20_bytes_is_rejected() {
    let mut packet = packet(false, true, 1, 100);
    packet[32] = 2 << 4;
    let gso = Gso {
        kind: Kind::Tcp4,
        headers: 28,
        payload: 1,
    };
    let offload = Offload {
        gso: Some(gso),
        checksum: Some((20, 16)),
    };
    assert!(split(offload, &packet, &mut Vec::new()).is_err());
}
