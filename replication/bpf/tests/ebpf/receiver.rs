//! The verdict, the resulting frame and the counter for every kind of frame at an egress edge.

use crate::support::*;
use hawser_replication_bpf::{Receiver, RxStats, SeenEcho};
use hawser_shim::echo::{Echo, EchoKind};
use hawser_shim::{
    Addresses, Cover, DEFAULT_PORT, Encapsulation, KeySlot, Replica, SealKey, SealRing, Shim,
    golden,
};
use hawser_units::{FlowId, PathId};
use hawser_wire::ip;
use std::net::{IpAddr, SocketAddr};

const SHIM_V4: usize = 14 + 20 + 8;
const SHIM_V6: usize = 14 + 40 + 8;

#[test]
fn golden_vectors_are_decapsulated() {
    for vector in golden::vectors() {
        let mut options = receiver_options();
        options.port = vector.encapsulation.port;
        let receiver = Receiver::load(&options).unwrap();
        let (_, local) = vector.encapsulation.addresses.pair();
        receiver.set_path(vector.shim.path, Some(local)).unwrap();
        let mut keys = SealRing::default();
        if let Some((slot, key, cover)) = &vector.key {
            keys.required_cover = *cover;
            keys.slots[slot.index()] = Some(key.clone());
        }
        receiver.set_flow(vector.shim.flow, Some(&keys)).unwrap();

        let source_mac = vector.encapsulation.source_mac;
        let frame = [&LOOPBACK_MAC[..], &vector.frame[6..]].concat();
        let run = receiver.run(&frame, 1).unwrap();

        assert_eq!(run.action, XDP_PASS, "{}", vector.name);
        assert_eq!(
            run.frame,
            ethernet(LOOPBACK_MAC, source_mac, &vector.inner),
            "{}",
            vector.name
        );
        assert_eq!(counted(receiver.reasons().unwrap()), [], "{}", vector.name);
        let again = receiver.run(&frame, 1).unwrap();
        assert_eq!(
            (again.action, again.frame),
            (XDP_DROP, frame),
            "{}: its copy",
            vector.name
        );
        let stats = receiver.stats(vector.shim.flow, vector.shim.path).unwrap();
        let bytes = 2 * vector.inner.len() as u64;
        assert_eq!((stats.packets, stats.bytes), (2, bytes), "{}", vector.name);
        assert_eq!((stats.first, stats.duplicates), (1, 1), "{}", vector.name);
        let destination = receiver.last_destination(vector.shim.flow).unwrap();
        assert_eq!(destination, Some(destination_of(&vector.inner)));
    }
}

fn destination_of(packet: &[u8]) -> IpAddr {
    match packet[0] >> 4 {
        4 => <[u8; 4]>::try_from(&packet[16..20]).unwrap().into(),
        _ => <[u8; 16]>::try_from(&packet[24..40]).unwrap().into(),
    }
}

#[test]
fn a_copy_to_another_link_layer_address_is_not_the_first_one() {
    let receiver = receiver();
    let inner = udp4("192.0.2.9", b"x");
    let good = replica(path(0), 1 << 40, &inner);
    for (name, mac) in [
        ("another host's", THERE_MAC),
        ("broadcast", [0xff; 6]),
        ("multicast", [0x01, 0, 0x5e, 0, 0, 1]),
    ] {
        let flooded = [&mac[..], &good[6..]].concat();
        let run = receiver.run(&flooded, 1).unwrap();
        assert_eq!((run.action, run.frame), (XDP_PASS, flooded), "{name}");
    }
    let passed = ("passed_foreign_mac", 3);
    assert_eq!(counted(receiver.reasons().unwrap()), [passed]);
    let run = receiver.run(&good, 1).unwrap();
    assert_eq!((run.action, run.frame), (XDP_PASS, decapsulated(&inner)));
    assert_eq!(receiver.stats(flow(7), path(0)).unwrap().first, 1);
}

#[test]
fn echo_requests_are_kept_whole_with_their_addresses() {
    let receiver = receiver();
    let send = |kind: EchoKind, number: u32, from: IpAddr, to: IpAddr| {
        let echo = Echo {
            kind,
            path: path(0),
            number,
            held_micros: 0,
        };
        let bytes = echo.emit(None);
        let [from, to] = [from, to].map(|address| SocketAddr::new(address, DEFAULT_PORT));
        let packet = ip::udp_packet(from, to, 0, &bytes);
        let frame = ethernet(LOOPBACK_MAC, THERE_MAC, &packet);
        let run = receiver.run(&frame, 1).unwrap();
        assert_eq!((run.action, run.frame), (XDP_PASS, frame));
        SeenEcho {
            local: to.ip(),
            remote: from.ip(),
            bytes,
        }
    };
    let (here, there): (IpAddr, IpAddr) = (HERE_V4.into(), THERE_V4.into());
    let sent = [
        send(EchoKind::Request, 5, there, here),
        send(EchoKind::Request, 6, THERE_V6.into(), HERE_V6.into()),
    ];
    send(EchoKind::Reply, 7, there, here);
    send(EchoKind::Request, 8, there, [203, 0, 113, 77].into());
    let mut count = 0;
    assert_eq!(receiver.seen_echoes(&mut count).unwrap(), sent);
    assert_eq!(receiver.seen_echoes(&mut count).unwrap(), []);
    let last = (0..300).map(|number| send(EchoKind::Request, number, there, here));
    let last = last.skip(300 - 256).collect::<Vec<_>>();
    assert_eq!(receiver.seen_echoes(&mut count).unwrap(), last);
    count = 1000;
    assert_eq!(receiver.seen_echoes(&mut count).unwrap(), last);
    assert_eq!(count, 302);
}

#[test]
fn frames_that_are_no_replicas_for_this_node_pass_unchanged() {
    let udp = udp4("192.0.2.9", b"some other datagram");
    let replica4 = replica(path(0), 1 << 40, &udp);
    let replica6 = replica(path(1), 1 << 40, &udp);
    let to_another = Encapsulation {
        addresses: Addresses::V4 {
            source: THERE_V4,
            destination: [203, 0, 113, 77].into(),
        },
        ..towards_here(path(0))
    };
    let on_wrong_family = replica(path(1), 1 << 40, &udp);
    let outer = |change: fn(&mut [u8])| {
        let packet = with_ipv4(replica4[14..].to_vec(), change);
        ethernet(LOOPBACK_MAC, THERE_MAC, &packet)
    };
    let fixtures: Vec<(&str, Vec<u8>, Option<&str>)> = vec![
        (
            "ARP",
            [&[0xff; 6][..], &THERE_MAC, &[8, 6], &[0; 46]].concat(),
            None,
        ),
        ("another UDP port, IPv4", decapsulated(&udp), None),
        (
            "another UDP port, IPv6",
            decapsulated(&udp6("2001:db8:1::1", b"x")),
            None,
        ),
        ("TCP", changed(&replica4, 14 + 9, 6), None),
        (
            "IPv6 neighbour discovery",
            changed(&replica6, 14 + 6, 58),
            None,
        ),
        ("outer IPv4 options", changed(&replica4, 14, 0x46), None),
        ("outer version", changed(&replica4, 14, 0x65), None),
        (
            "VLAN",
            [&replica4[..12], &[0x81, 0, 0, 5], &replica4[12..]].concat(),
            Some("passed_vlan"),
        ),
        (
            "QinQ",
            [&replica4[..12], &[0x88, 0xa8, 0, 5], &replica4[12..]].concat(),
            Some("passed_vlan"),
        ),
        (
            "first fragment",
            outer(|packet| packet[6] = 0x20),
            Some("passed_outer_fragment"),
        ),
        ("later fragment", outer(|packet| packet[7] = 0x10), None),
        (
            "shim version 0",
            changed(&replica4, SHIM_V4, 0x00),
            Some("passed_unknown_version"),
        ),
        (
            "shim version 3",
            changed(&replica6, SHIM_V6, 0x30),
            Some("passed_unknown_version"),
        ),
        (
            "to another node",
            to_another.frame(&shim(path(0), 1), &udp).unwrap(),
            Some("passed_not_addressed"),
        ),
        (
            "path 2 is not configured",
            replica(path(2), 1, &udp),
            Some("passed_not_addressed"),
        ),
        (
            "path 8 does not exist",
            changed(&replica4, SHIM_V4 + 1, 8),
            Some("passed_not_addressed"),
        ),
        (
            "path 255 does not exist",
            changed(&replica4, SHIM_V4 + 1, 255),
            Some("passed_not_addressed"),
        ),
        (
            "IPv6 on an IPv4 path",
            changed(&on_wrong_family, SHIM_V6 + 1, 0),
            Some("passed_not_addressed"),
        ),
        (
            "IPv4 on an IPv6 path",
            changed(&replica4, SHIM_V4 + 1, 1),
            Some("passed_not_addressed"),
        ),
        (
            "the replicas' port, no shim",
            cut(&replica4, SHIM_V4 + 27),
            Some("passed_malformed"),
        ),
    ];
    for (name, frame, reason) in fixtures {
        let receiver = receiver();
        let run = receiver.run(&frame, 1).unwrap();
        assert_eq!((run.action, run.frame), (XDP_PASS, frame), "{name}");
        let expected: Vec<_> = reason.map(|reason| (reason, 1)).into_iter().collect();
        assert_eq!(counted(receiver.reasons().unwrap()), expected, "{name}");
        assert_eq!(
            receiver.stats(flow(7), path(0)).unwrap(),
            RxStats::default(),
            "{name}"
        );
    }
}

#[test]
fn invalid_replicas_for_this_node_are_counted() {
    let inner4 = udp4("192.0.2.9", b"payload");
    let inner6 = udp6("2001:db8:b::9", b"payload");
    let (with4, with6) = (
        replica(path(0), 1 << 40, &inner4),
        replica(path(0), 1 << 40, &inner6),
    );
    let (udp_length, inner) = (14 + 20 + 4, SHIM_V4 + 28);
    let outer_shorter = |less: u8| {
        let packet = with_ipv4(with4[14..].to_vec(), |packet| packet[3] -= less);
        ethernet(LOOPBACK_MAC, THERE_MAC, &packet)
    };
    let fixtures: Vec<(&str, Vec<u8>, &str)> = vec![
        (
            "unknown flow",
            changed(&with4, SHIM_V4 + 5, 8),
            "dropped_unknown_flow",
        ),
        (
            "flow out of range",
            changed(&with4, SHIM_V4 + 4, 4),
            "dropped_unknown_flow",
        ),
        (
            "flow 65535",
            changed(&changed(&with4, SHIM_V4 + 4, 255), SHIM_V4 + 5, 255),
            "dropped_unknown_flow",
        ),
        (
            "UDP length 0",
            changed(&with4, udp_length + 1, 0),
            "dropped_malformed",
        ),
        (
            "UDP length of a shim alone",
            changed(&with4, udp_length + 1, 36),
            "dropped_malformed",
        ),
        (
            "UDP length 1 less",
            changed(&with4, udp_length + 1, with4[udp_length + 1] - 1),
            "dropped_malformed",
        ),
        (
            "UDP length 1 more",
            changed(&with4, udp_length + 1, with4[udp_length + 1] + 1),
            "dropped_malformed",
        ),
        (
            "UDP length 65535",
            changed(&changed(&with4, udp_length, 255), udp_length + 1, 255),
            "dropped_malformed",
        ),
        (
            "outer IP length 1 less",
            outer_shorter(1),
            "dropped_malformed",
        ),
        (
            "outer IP length 19",
            outer_shorter(with4[17] - 19),
            "dropped_malformed",
        ),
        (
            "outer IP length 0",
            outer_shorter(with4[17]),
            "dropped_malformed",
        ),
        (
            "inner IPv4 1 longer",
            changed(&with4, inner + 3, with4[inner + 3] + 1),
            "dropped_malformed",
        ),
        (
            "inner IPv4 1 shorter",
            changed(&with4, inner + 3, with4[inner + 3] - 1),
            "dropped_malformed",
        ),
        (
            "inner IPv6 1 longer",
            changed(&with6, inner + 5, with6[inner + 5] + 1),
            "dropped_malformed",
        ),
        (
            "inner IPv6 1 shorter",
            changed(&with6, inner + 5, with6[inner + 5] - 1),
            "dropped_malformed",
        ),
        (
            "inner version 0",
            changed(&with4, inner, 0x05),
            "dropped_malformed",
        ),
        (
            "inner version 6, but IPv4",
            changed(&with4, inner, 0x65),
            "dropped_malformed",
        ),
    ];
    for (name, frame, reason) in fixtures {
        let receiver = receiver();
        let run = receiver.run(&frame, 1).unwrap();
        assert_eq!((run.action, run.frame), (XDP_DROP, frame), "{name}");
        assert_eq!(
            counted(receiver.reasons().unwrap()),
            [(reason, 1)],
            "{name}"
        );
        assert_eq!(
            receiver.stats(flow(7), path(0)).unwrap(),
            RxStats::default(),
            "{name}"
        );
        assert_eq!(
            receiver.run(&with4, 1).unwrap().action,
            XDP_PASS,
            "{name}: the whole copy still counts"
        );
    }
}

#[test]
fn a_frame_cut_anywhere_passes_whole_or_is_counted() {
    for (path, inner) in [
        (path(0), udp4("192.0.2.9", b"0123456789")),
        (path(0), udp6("2001:db8:b::9", b"0123456789")),
        (path(1), udp4("192.0.2.9", b"0123456789")),
        (path(1), udp6("2001:db8:b::9", b"0123456789")),
    ] {
        let whole = replica(path, 1 << 40, &inner);
        let shim_end = whole.len() - inner.len();
        let receiver = receiver();
        // The kernel accepts no frame shorter than an Ethernet header for a test run.
        for length in 14..whole.len() {
            let run = receiver.run(&whole[..length], 1).unwrap();
            let expected = if length < shim_end {
                XDP_PASS
            } else {
                XDP_DROP
            };
            assert_eq!(
                (run.action, &run.frame[..]),
                (expected, &whole[..length]),
                "{length} bytes"
            );
        }
        let malformed = (shim_end..whole.len()).len() as u64;
        let without_shim = 28;
        assert_eq!(
            counted(receiver.reasons().unwrap()),
            [
                ("passed_malformed", without_shim),
                ("dropped_malformed", malformed)
            ]
        );
        assert_eq!(receiver.run(&whole, 1).unwrap().frame, decapsulated(&inner));
    }
}

#[test]
fn padding_behind_a_replica_is_no_harm() {
    let inner = udp4("192.0.2.9", b"");
    let receiver = receiver();
    let frame = [&replica(path(0), 1 << 40, &inner)[..], &[0xee; 5]].concat();
    let run = receiver.run(&frame, 1).unwrap();
    assert_eq!(run.action, XDP_PASS);
    assert_eq!(run.frame, [&decapsulated(&inner)[..], &[0xee; 5]].concat());
}

#[test]
fn every_congestion_mark_ends_as_rfc_6040_says() {
    const DSCP: u8 = 0xb8;
    for outer_path in [path(0), path(1)] {
        for (outer, inner) in (0..4).flat_map(|outer| (0..4).map(move |inner| (outer, inner))) {
            for packet in [
                udp4("192.0.2.9", b"marked"),
                udp6("2001:db8:b::9", b"marked"),
            ] {
                let name = format!(
                    "{outer_path}, outer {outer}, inner {inner}, IPv{}",
                    packet[0] >> 4
                );
                let receiver = receiver();
                let inner_packet = with_class(packet, DSCP | inner);
                let mut frame = replica(outer_path, 1 << 40, &inner_packet);
                let marked = with_class(frame.split_off(14), DSCP | outer);
                frame.extend(marked);

                let run = receiver.run(&frame, 1).unwrap();

                let Some(ecn) = ip::decapsulated_ecn(outer, inner) else {
                    assert_eq!(run.action, XDP_DROP, "{name}");
                    assert_eq!(
                        counted(receiver.reasons().unwrap()),
                        [("dropped_ecn", 1)],
                        "{name}"
                    );
                    let unmarked = receiver
                        .run(&replica(outer_path, 1 << 40, &inner_packet), 1)
                        .unwrap();
                    assert_eq!(
                        unmarked.action, XDP_PASS,
                        "{name}: another copy gets through"
                    );
                    continue;
                };
                let expected = decapsulated(&with_class(inner_packet, DSCP | ecn));
                assert_eq!((run.action, run.frame), (XDP_PASS, expected), "{name}");
                assert_eq!(counted(receiver.reasons().unwrap()), [], "{name}");
            }
        }
    }
}

#[test]
fn tags_are_checked_with_the_key_of_their_slot() {
    let [old, new, other] = [1, 2, 3].map(seal_key);
    let before = ring(Some(&old), None);
    let during = ring(Some(&old), Some(&new));
    let after = ring(None, Some(&new));
    let inner = udp4("192.0.2.9", b"sealed");
    let by = |slot, key: &SealKey| shim(path(0), 1 << 40).sealed(slot, key, Cover::Headers, &inner);
    let untagged = shim(path(0), 1 << 40);
    let fixtures = [
        ("no keys, untagged", SealRing::default(), untagged, true),
        (
            "no keys, tagged",
            SealRing::default(),
            by(KeySlot::Zero, &old),
            true,
        ),
        ("untagged", before.clone(), untagged, false),
        (
            "the only key",
            before.clone(),
            by(KeySlot::Zero, &old),
            true,
        ),
        (
            "a wrong key",
            before.clone(),
            by(KeySlot::Zero, &other),
            false,
        ),
        (
            "right key, slot without a key",
            before.clone(),
            by(KeySlot::One, &old),
            false,
        ),
        ("new key too early", before, by(KeySlot::One, &new), false),
        (
            "old key during rotation",
            during.clone(),
            by(KeySlot::Zero, &old),
            true,
        ),
        (
            "new key during rotation",
            during.clone(),
            by(KeySlot::One, &new),
            true,
        ),
        (
            "keys in each other's slots",
            during.clone(),
            by(KeySlot::One, &old),
            false,
        ),
        ("untagged during rotation", during, untagged, false),
        (
            "old key after rotation",
            after.clone(),
            by(KeySlot::Zero, &old),
            false,
        ),
        (
            "new key after rotation",
            after,
            by(KeySlot::One, &new),
            true,
        ),
    ];
    for (name, keys, shim, accepted) in fixtures {
        let receiver = receiver();
        receiver.set_flow(flow(7), Some(&keys)).unwrap();
        let frame = towards_here(path(0)).frame(&shim, &inner).unwrap();
        let run = receiver.run(&frame, 1).unwrap();
        assert_eq!(
            run.action,
            if accepted { XDP_PASS } else { XDP_DROP },
            "{name}"
        );
        let expected: &[_] = if accepted { &[] } else { &[("dropped_tag", 1)] };
        assert_eq!(counted(receiver.reasons().unwrap()), expected, "{name}");
        let stats = receiver.stats(flow(7), path(0)).unwrap();
        assert_eq!(
            (stats.packets, stats.tag_failures),
            (accepted.into(), (!accepted).into()),
            "{name}"
        );
    }
}

#[test]
fn the_tag_covers_the_shim_and_what_its_flags_say() {
    let key = seal_key(9);
    for (cover, by, inner) in [
        (Cover::Headers, path(0), udp4("192.0.2.9", b"x")),
        (Cover::Headers, path(1), udp6("2001:db8:b::9", b"x")),
        (Cover::Whole, path(0), udp4("192.0.2.9", &[7; 53])),
        (Cover::Whole, path(1), udp6("2001:db8:b::9", &[7; 6])),
    ] {
        let receiver = receiver();
        receiver
            .set_flow(flow(7), Some(&ring(Some(&key), None)))
            .unwrap();
        let sealed = shim(by, 1 << 40).sealed(KeySlot::Zero, &key, cover, &inner);
        let good = towards_here(by).frame(&sealed, &inner).unwrap();
        let shim_at = good.len() - inner.len() - 28;
        let headers = if inner[0] >> 4 == 4 { 24 } else { 44 };
        let covered = 28
            + if cover == Cover::Whole {
                inner.len()
            } else {
                headers
            };
        for bit in 0..covered * 8 {
            let mut forged = good.clone();
            forged[shim_at + bit / 8] ^= 1 << (bit % 8);
            let run = receiver.run(&forged, 1).unwrap();
            assert_eq!(run.frame, forged, "bit {bit}");
            // Another version, path or flow is rejected before the tag is checked.
            assert!(run.action == XDP_DROP || bit < 16, "{cover:?}, bit {bit}");
        }
        assert_eq!(
            receiver.run(&good, 1).unwrap().action,
            XDP_PASS,
            "no forgery has used its sequence number"
        );
    }
}

#[test]
fn a_flow_and_a_path_can_be_taken_out() {
    let frame = |sequence| replica(path(0), sequence, &udp4("192.0.2.9", b"x"));
    let receiver = receiver();
    assert_eq!(receiver.run(&frame(1 << 40), 1).unwrap().action, XDP_PASS);
    receiver.set_flow(flow(7), None).unwrap();
    assert_eq!(receiver.run(&frame(2 << 40), 1).unwrap().action, XDP_DROP);
    receiver.set_path(path(0), None).unwrap();
    assert_eq!(
        receiver.run(&frame(3 << 40), 1).unwrap().frame,
        frame(3 << 40)
    );
    assert_eq!(
        counted(receiver.reasons().unwrap()),
        [("passed_not_addressed", 1), ("dropped_unknown_flow", 1)]
    );
}

#[test]
fn the_last_flow_and_path_have_counters_of_their_own() {
    let receiver = receiver();
    let (last_flow, last_path) = (flow(1023), path(7));
    receiver
        .set_flow(last_flow, Some(&SealRing::default()))
        .unwrap();
    receiver.set_path(last_path, Some(HERE_V6.into())).unwrap();
    let inner = udp4("192.0.2.9", b"x");
    let copy = Shim {
        flow: last_flow,
        ..shim(last_path, 5 << 40)
    };
    let frame = towards_here(last_path).frame(&copy, &inner).unwrap();
    assert!(Replica::parse(&frame).is_ok());
    assert_eq!(receiver.run(&frame, 1).unwrap().frame, decapsulated(&inner));
    assert_eq!(packets(&receiver, last_flow, last_path), 1);
    let total: u64 = (0..1024)
        .flat_map(|index| PathId::all().map(move |path| (flow(index), path)))
        .map(|(flow, path)| packets(&receiver, flow, path))
        .sum();
    assert_eq!(total, 1);
}

fn packets(receiver: &Receiver, flow: FlowId, path: PathId) -> u64 {
    receiver.stats(flow, path).unwrap().packets
}

fn changed(frame: &[u8], at: usize, to: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at] = to;
    frame
}

fn cut(frame: &[u8], length: usize) -> Vec<u8> {
    frame[..length].to_vec()
}

fn with_class(packet: Vec<u8>, class: u8) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        return with_tos(packet, class);
    }
    let mut packet = packet;
    packet[0] = 0x60 | class >> 4;
    packet[1] = class << 4 | packet[1] & 0xf;
    packet
}
