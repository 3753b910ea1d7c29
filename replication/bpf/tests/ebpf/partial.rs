//! Checksums that a sender has left to a device which never completes them.

use crate::support::*;
use hawser_replication_bpf::SendFlow;
use hawser_shim::{Cover, KeySlot, Shim};
use hawser_wire::ip;
use std::net::IpAddr;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The parts of a packet that the tests change: its addresses, where its transport header starts,
/// and where the checksum is.
fn parts(packet: &[u8], protocol: u8) -> ([IpAddr; 2], usize, usize) {
    let address = |range: std::ops::Range<usize>| -> IpAddr {
        match <[u8; 4]>::try_from(&packet[range.clone()]) {
            Ok(v4) => v4.into(),
            Err(_) => <[u8; 16]>::try_from(&packet[range]).unwrap().into(),
        }
    };
    let (addresses, header) = match packet[0] >> 4 {
        4 => ([address(12..16), address(16..20)], 20),
        _ => ([address(8..24), address(24..40)], 40),
    };
    (
        addresses,
        header,
        header + if protocol == TCP { 16 } else { 6 },
    )
}

/// Makes a UDP packet one of TCP.
fn as_tcp(mut packet: Vec<u8>) -> Vec<u8> {
    if packet[0] >> 4 == 6 {
        packet[6] = TCP;
        return packet;
    }
    with_ipv4(packet, |packet| packet[9] = TCP)
}

/// Leaves the sum of the pseudo header in the checksum field.
fn partial(mut packet: Vec<u8>, protocol: u8) -> Vec<u8> {
    let ([from, to], header, at) = parts(&packet, protocol);
    // The checksum of zeros is the complement of the pseudo header's sum.
    let zeros = vec![0; packet.len() - header];
    let sum = !ip::transport_checksum(from, to, protocol, &zeros);
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn is_complete(packet: &[u8], protocol: u8) -> bool {
    let ([from, to], header, _) = parts(packet, protocol);
    ip::transport_checksum(from, to, protocol, &packet[header..]) == 0
}

fn packets() -> Vec<(Vec<u8>, u8)> {
    let payloads = [vec![0x5a; 12], (0..=255).cycle().take(1301).collect()];
    let all = payloads
        .iter()
        .flat_map(|payload| [udp4("203.0.113.9", payload), udp6("2001:db8:b::9", payload)]);
    all.flat_map(|packet| [(packet.clone(), UDP), (as_tcp(packet), TCP)])
        .collect()
}

#[test]
fn partial_checksums_are_completed_and_covered_by_the_tag() {
    let key = seal_key(1);
    let tagged = SendFlow {
        key: Some((KeySlot::Zero, key, Cover::Whole)),
        ..send_flow(7)
    };
    for flow_row in [send_flow(7), tagged] {
        let sender = replicating_all(&flow_row);
        for (packet, protocol) in packets() {
            let sent = partial(packet, protocol);
            assert!(!is_complete(&sent, protocol));

            let run = sender.run(&transit(&sent), 1).unwrap();

            assert_eq!(run.action, XDP_REDIRECT);
            let inner = Shim::parse(&run.frame[HANDOVER..]).unwrap().1;
            assert!(is_complete(inner, protocol), "protocol {protocol}");
            let (_, _, at) = parts(&sent, protocol);
            let mut expected = one_hop_on(&sent);
            expected[at..at + 2].copy_from_slice(&inner[at..at + 2]);
            assert_eq!(inner, expected, "nothing else has changed");
        }
    }
}

#[test]
fn complete_and_wrong_checksums_stay_as_they_are() {
    let sender = replicating_all(&send_flow(7));
    for (mut packet, protocol) in packets() {
        let (_, _, at) = parts(&packet, protocol);
        for wrong in [0u16, 0x1234] {
            packet[at..at + 2].copy_from_slice(&wrong.to_be_bytes());
            let run = sender.run(&transit(&packet), 1).unwrap();
            let inner = Shim::parse(&run.frame[HANDOVER..]).unwrap().1;
            assert_eq!(inner, one_hop_on(&packet), "protocol {protocol}");
        }
    }
}

#[test]
fn transparent_copies_have_complete_checksums() {
    let transparent = SendFlow {
        transparent: true,
        ..send_flow(7)
    };
    let sender = replicating_all(&transparent);
    let packet = partial(with_id(udp4("203.0.113.9", &[7; 100]), 7), UDP);
    let run = sender.run(&transit(&packet), 1).unwrap();
    assert_eq!(run.action, XDP_REDIRECT);
    assert!(is_complete(&run.frame[14..], UDP));
}

/// Adds an IPv4 header for `protocol` to a payload.
fn in_ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let packet = udp4("203.0.113.9", &payload[8.min(payload.len())..]);
    let mut packet = with_ipv4(packet, |packet| packet[9] = protocol);
    packet[20..].copy_from_slice(payload);
    packet
}

/// Adds an IPv6 header for `protocol` to a payload.
fn in_ipv6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = udp6("2001:db8:b::9", &payload[8.min(payload.len())..]);
    packet[6] = protocol;
    packet[40..].copy_from_slice(payload);
    packet
}

/// Adds a UDP header without a checksum.
fn in_udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let bytes = (payload.len() + 8) as u16;
    let words = [49_152, port, bytes, 0].map(u16::to_be_bytes);
    [&words.concat(), payload].concat()
}

/// Adds an Ethernet header to an IP packet.
fn in_ethernet(packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 4 {
        [8, 0]
    } else {
        [0x86, 0xdd]
    };
    [&[2; 12], &kind[..], packet].concat()
}

fn headed(header: &[u8], packet: &[u8]) -> Vec<u8> {
    [header, packet].concat()
}

/// Puts a packet into packets of every kind.
fn encapsulated(inner: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let frame = in_ethernet(inner);
    let tagged = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
    let vxlan = |frame: &[u8]| headed(&[8, 0, 0, 0, 0, 0, 7, 0], frame);
    let own = if inner[0] >> 4 == 4 { 4 } else { 41 };
    let ether_type = if own == 4 { [8, 0] } else { [0x86, 0xdd] };
    let gre = |flags: u8, kind: [u8; 2], rest: &[u8], inner: &[u8]| {
        [&[flags, 0][..], &kind, rest, inner].concat()
    };
    let options = [
        &[2, 0, 0x65, 0x58, 0, 0, 7, 0][..],
        &[0, 1, 0x80, 1, 1, 2, 3, 4],
    ]
    .concat();
    let gtp = [0x34, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0, 9, 0];
    let mpls = [0, 0, 0x71, 64];
    vec![
        ("VXLAN", in_ipv4(UDP, &in_udp(4789, &vxlan(&frame)))),
        (
            "VXLAN of Linux, tagged",
            in_ipv4(UDP, &in_udp(8472, &vxlan(&tagged))),
        ),
        (
            "VXLAN over IPv6",
            in_ipv6(UDP, &in_udp(4789, &vxlan(&frame))),
        ),
        (
            "Geneve",
            in_ipv4(UDP, &in_udp(6081, &headed(&options, &frame))),
        ),
        (
            "GTP-U",
            in_ipv4(UDP, &in_udp(2152, &headed(&gtp[..8], inner))),
        ),
        (
            "GTP-U with an extension",
            in_ipv4(UDP, &in_udp(2152, &headed(&gtp, inner))),
        ),
        (
            "L2TPv3 over UDP",
            in_ipv4(
                UDP,
                &in_udp(1701, &headed(&[0, 3, 0, 0, 0, 0, 0, 1], &frame)),
            ),
        ),
        ("FOU", in_ipv4(UDP, &in_udp(5555, inner))),
        ("GRE", in_ipv4(47, &gre(0, ether_type, &[], inner))),
        (
            "GRE with key and sequence",
            in_ipv6(47, &gre(0x30, ether_type, &[7; 8], inner)),
        ),
        (
            "Ethernet in GRE",
            in_ipv4(47, &gre(0, [0x65, 0x58], &[], &frame)),
        ),
        ("IP in IPv4", in_ipv4(own, inner)),
        ("IP in IPv6", in_ipv6(own, inner)),
        ("EtherIP", in_ipv4(97, &headed(&[0x30, 0], &frame))),
        ("L2TPv3", in_ipv4(115, &headed(&[0, 0, 0, 1], &frame))),
        ("MPLS", in_ipv4(137, &headed(&mpls, inner))),
        (
            "MPLS in UDP",
            in_ipv4(UDP, &in_udp(6635, &headed(&mpls, inner))),
        ),
        (
            "IP in GRE in IP",
            in_ipv4(4, &in_ipv4(47, &gre(0, ether_type, &[], inner))),
        ),
    ]
}

#[test]
fn partial_checksums_of_packets_in_packets_are_completed() {
    let sender = replicating_all(&send_flow(7));
    for (inner, protocol) in packets() {
        let sent = partial(inner, protocol);
        for (kind, packet) in encapsulated(&sent) {
            let run = sender.run(&transit(&packet), 1).unwrap();
            assert_eq!(run.action, XDP_REDIRECT, "{kind}");
            let copy = Shim::parse(&run.frame[HANDOVER..]).unwrap().1;
            let start = copy.len() - sent.len();
            assert!(
                is_complete(&copy[start..], protocol),
                "{kind} of protocol {protocol}"
            );
            let (_, _, at) = parts(&sent, protocol);
            let mut expected = one_hop_on(&packet);
            let check = start + at..start + at + 2;
            expected[check.clone()].copy_from_slice(&copy[check]);
            assert_eq!(copy, expected, "{kind}: nothing else has changed");
        }
    }
}

#[test]
fn complete_packets_in_packets_stay_as_they_are() {
    let sender = replicating_all(&send_flow(7));
    for (inner, _) in packets() {
        for (kind, packet) in encapsulated(&inner) {
            let run = sender.run(&transit(&packet), 1).unwrap();
            let copy = Shim::parse(&run.frame[HANDOVER..]).unwrap().1;
            assert_eq!(copy, one_hop_on(&packet), "{kind}");
        }
    }
}

#[test]
fn options_and_extension_headers_hide_no_partial_checksum() {
    let sender = replicating_all(&send_flow(7));
    let (inner, protocol) = packets().remove(0);
    let ([from, to], _, _) = parts(&inner, protocol);
    let segment = &partial(inner, protocol)[20..];
    let mut packet = in_ipv4(protocol, &headed(&[1; 8], segment));
    packet[0] = 0x47;
    let packet = with_ipv4(packet, |_| ());
    let run = sender.run(&transit(&packet), 1).unwrap();
    assert_eq!(run.action, XDP_REDIRECT);
    let copy = Shim::parse(&run.frame[HANDOVER..]).unwrap().1;
    assert_eq!(ip::transport_checksum(from, to, protocol, &copy[28..]), 0);
}
