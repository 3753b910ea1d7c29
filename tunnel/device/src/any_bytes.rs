//! For any packets, merging and splitting do not panic, and packets that are merged and split again
//! are the same.

#[path = "../../../base/wire/tests/support/mutation.rs"]
mod mutation;

use crate::checks::{check_merged, check_split, packet};
use crate::offload::{Gso, Kind, Offload};
use crate::split::split;
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

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
        check_split(offload, &packet);
        if let Some(offload) = Offload::parse(header) {
            check_split(offload, &packet);
        }
    }

    #[test]
    fn a_changed_packet_from_the_kernel_is_rejected_or_split(
        offload in offloads(),
        changes in changes(),
        is_v6: bool,
        is_tcp: bool,
    ) {
        check_split(offload, &changed(&packet(is_v6, is_tcp, 1, 100), &changes));
    }

    #[test]
    fn any_bytes_are_written_as_they_are(
        packets in vec(vec(any::<u8>(), 0..100), 0..10),
        with_udp: bool,
    ) {
        check_merged(&packets, with_udp);
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
        check_merged(&packets, with_udp);
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
