//! Checksums that a sender has left to a device which never completes them.

mod support;

use hawser_bpf::SendFlow;
use hawser_wire::{Cover, KeySlot, Shim, ip};
use std::net::IpAddr;
use support::*;

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
    // Of zeros, the checksum is the complement of the pseudo header's sum.
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
