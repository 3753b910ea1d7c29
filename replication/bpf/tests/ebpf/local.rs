//! Replication of locally generated packets at TC. A test run carries out no redirection, so its
//! result is the last copy; `broadcast.rs` checks the others.

use crate::support::*;
use hawser_replication_bpf::{SendFlow, Sender};
use hawser_shim::{Addresses, Cover, DEFAULT_PORT, Encapsulation, KeySlot, Replica};

const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_REDIRECT: u32 = 7;

/// A sender with paths 0 and 2 over IPv4 and 1 over IPv6 that replicates all packets over path 0.
fn replicating() -> Sender {
    let mut sender = sender();
    sender
        .set_path(
            path(2),
            Some(send_path(HERE_V4.into(), [203, 0, 113, 77].into())),
        )
        .unwrap();
    sender.set_flow(flow(7), &send_flow(9)).unwrap();
    sender
        .select(prefix("0.0.0.0/0"), &[everything_of(7)])
        .unwrap();
    sender.select(prefix("::/0"), &[everything_of(7)]).unwrap();
    set_policy(&sender, 7, 0b001, 3);
    sender
}

fn sent(packet: &[u8]) -> Vec<u8> {
    ethernet([2, 0, 0, 0, 0, 9], HERE_MAC, packet)
}

#[test]
fn the_last_copy_is_the_packet_itself() {
    let mut sender = replicating();
    let key = seal_key(1);
    sender
        .set_flow(
            flow(7),
            &SendFlow {
                key: Some((KeySlot::One, key.clone(), Cover::Headers)),
                ..send_flow(9)
            },
        )
        .unwrap();
    set_policy(&sender, 7, 0b101, 3);
    let six = {
        let mut packet = udp6("2001:db8:b::9", b"local");
        (packet[0], packet[1]) = (0x6b, 0x9a);
        packet
    };
    for (number, inner) in (0..).zip([with_tos(udp4("203.0.113.9", b"local"), 0xb9), six]) {
        let run = sender.run_local(&sent(&inner), 1).unwrap();

        assert_eq!(run.action, TC_ACT_REDIRECT);
        let replica = Replica::parse(&run.frame).unwrap();
        let addresses = Addresses::V4 {
            source: HERE_V4,
            destination: [203, 0, 113, 77].into(),
        };
        let (destination_mac, source_mac) = (THERE_MAC, HERE_MAC);
        assert_eq!(
            replica.encapsulation,
            Encapsulation {
                destination_mac,
                source_mac,
                addresses,
                port: DEFAULT_PORT
            }
        );
        assert_eq!(
            replica.inner, inner,
            "the time to live is unchanged, as the packet did not pass through this node"
        );
        assert_eq!(replica.traffic_class, 0xb9);
        assert_eq!(
            (
                replica.shim.path,
                replica.shim.paths.bits(),
                replica.shim.epoch
            ),
            (path(2), 0b101, 3)
        );
        assert_eq!(
            (replica.shim.flow, replica.shim.sequence),
            (flow(9), (1 << 40) + number)
        );
        let ring = ring(None, Some(&key));
        assert!(ring.accepts(&run.frame[14 + 28..]));
    }
    for by in [path(0), path(2)] {
        assert_eq!(sender.path_stats(flow(7), by).unwrap().packets, 2);
    }
    assert_eq!(sender.flow_stats(flow(7)).unwrap().packets, 2);
    assert_eq!(counted(sender.reasons().unwrap()), []);
}

#[test]
fn a_path_that_is_gone_does_not_cost_the_others_their_copies() {
    let sender = replicating();
    set_policy(&sender, 7, 0b1101, 3);
    let run = sender
        .run_local(&sent(&udp4("203.0.113.9", b"x")), 1)
        .unwrap();
    assert_eq!(run.action, TC_ACT_REDIRECT);
    let shim = Replica::parse(&run.frame).unwrap().shim;
    assert_eq!(
        (shim.path, shim.paths.bits()),
        (path(2), 0b101),
        "the paths that were used"
    );
    assert_eq!(sender.path_stats(flow(7), path(0)).unwrap().packets, 1);
    assert_eq!(counted(sender.reasons().unwrap()), []);
}

#[test]
fn what_is_left_alone_goes_on_untouched() {
    let mut sender = replicating();
    let packet = udp4("203.0.113.9", b"0123456789");
    let own = {
        let addresses = Addresses::V4 {
            source: HERE_V4,
            destination: THERE_V4,
        };
        let (destination_mac, source_mac) = (THERE_MAC, HERE_MAC);
        let path_end = Encapsulation {
            destination_mac,
            source_mac,
            addresses,
            port: DEFAULT_PORT,
        };
        path_end.frame(&shim(path(0), 1), &packet).unwrap()
    };
    let fixtures: Vec<(&str, Vec<u8>, Option<&str>)> = vec![
        (
            "ARP",
            [&[0xff; 6][..], &HERE_MAC, &[8, 6], &[0; 46]].concat(),
            None,
        ),
        ("own replica", own, None),
        (
            "oversize",
            sent(&udp4("203.0.113.9", &[0; 1500 - 56 - 28 + 1])),
            Some("passed_oversize"),
        ),
        (
            "longer than the frame",
            sent(&with_ipv4(packet.clone(), |packet| packet[3] += 1)),
            Some("passed_malformed"),
        ),
        (
            "padding",
            [&sent(&packet)[..], &[0; 9]].concat(),
            Some("passed_malformed"),
        ),
        (
            "VLAN",
            [&sent(&packet)[..12], &[0x81, 0, 0, 5], &sent(&packet)[12..]].concat(),
            Some("passed_vlan"),
        ),
    ];
    for (name, frame, reason) in fixtures {
        let before = sender.reasons().unwrap();
        let run = sender.run_local(&frame, 1).unwrap();
        assert_eq!((run.action, run.frame), (TC_ACT_UNSPEC, frame), "{name}");
        let expected: Vec<_> = reason.map(|reason| (reason, 1)).into_iter().collect();
        assert_eq!(
            counted_since(&before, sender.reasons().unwrap()),
            expected,
            "{name}"
        );
    }
    let whole = Some((KeySlot::Zero, seal_key(1), Cover::Whole));
    for (name, code, transparent, key) in [
        ("over IPv6", 0b011, false, None),
        ("transparent", 0b001, true, None),
        ("wholly covered by its tag", 0b001, false, whole),
    ] {
        let before = sender.reasons().unwrap();
        sender
            .set_flow(
                flow(7),
                &SendFlow {
                    transparent,
                    key,
                    ..send_flow(9)
                },
            )
            .unwrap();
        set_policy(&sender, 7, code, 3);
        let run = sender.run_local(&sent(&packet), 1).unwrap();
        assert_eq!(
            (run.action, run.frame),
            (TC_ACT_UNSPEC, sent(&packet)),
            "{name}"
        );
        assert_eq!(
            counted_since(&before, sender.reasons().unwrap()),
            [("passed_gso", 1)],
            "{name}"
        );
    }
    for code in [0x00, 0xff] {
        set_policy(&sender, 7, code, 3);
        assert_eq!(
            sender.run_local(&sent(&packet), 1).unwrap().action,
            TC_ACT_UNSPEC
        );
    }
    assert_eq!(sender.flow_stats(flow(7)).unwrap().packets, 0);
}

#[test]
fn the_largest_packet_is_replicated() {
    let sender = replicating();
    let inner = udp4("203.0.113.9", &[0; 1500 - 56 - 28]);
    let run = sender.run_local(&sent(&inner), 1).unwrap();
    assert_eq!((run.action, run.frame.len()), (TC_ACT_REDIRECT, 14 + 1500));
    assert_eq!(Replica::parse(&run.frame).unwrap().inner, inner);
}
