//! The packets of a viewer that are recorded as requests.

use crate::support::*;
use hawser_replication_bpf::{Ports, Request, Rule, WatchStats, Watcher};

const TC_ACT_UNSPEC: u32 = u32::MAX;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A watcher of requests of 20 to 200 bytes to port 2000, flow 7.
fn watcher() -> Watcher {
    let watcher = Watcher::load().unwrap();
    let ports = Ports {
        source: 0..=0xffff,
        destination: 2000..=2000,
    };
    let rule = Rule {
        flow: flow(7),
        protocol: None,
        ports: Some(ports),
    };
    watcher
        .select(prefix("203.0.113.0/24"), std::slice::from_ref(&rule))
        .unwrap();
    watcher.select(prefix("2001:db8:b::/48"), &[rule]).unwrap();
    watcher.set_flow(flow(7), Some(20..=200)).unwrap();
    watcher
}

/// A TCP packet from a port to port 2000, with twelve bytes of options.
fn tcp(is_ipv6: bool, from: u16, sequence: u32, flags: u8, bytes: usize) -> Vec<u8> {
    let mut segment = vec![0; 32 + bytes];
    segment[..2].copy_from_slice(&from.to_be_bytes());
    segment[2..4].copy_from_slice(&2000u16.to_be_bytes());
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    (segment[12], segment[13]) = (0x80, flags);
    // Converts the header of a UDP packet as long as the segment to TCP.
    let payload = vec![0; segment.len() - 8];
    if is_ipv6 {
        let mut packet = udp6("2001:db8:b::9", &payload);
        packet[6] = 6;
        [&packet[..40], &segment].concat()
    } else {
        let packet = with_ipv4(udp4("203.0.113.9", &payload), |packet| packet[9] = 6);
        [&packet[..20], &segment].concat()
    }
}

/// The requests recorded for a packet, which passes unchanged.
fn recorded(watcher: &mut Watcher, packet: &[u8]) -> Vec<Request> {
    let frame = transit(packet);
    let run = watcher.run(&frame, 1).unwrap();
    assert_eq!((run.action, run.frame), (TC_ACT_UNSPEC, frame));
    let mut requests = Vec::new();
    watcher.drain(&mut requests);
    requests
}

#[test]
fn requests_are_recorded_with_size_and_sequence() {
    let mut watcher = watcher();
    for (is_ipv6, sequence) in [(false, 100), (true, u32::MAX - 10)] {
        let packet = tcp(is_ipv6, 1000, sequence, ACK, 60);
        let before = recorded(&mut watcher, &packet);
        let [request] = before[..] else {
            panic!("{before:?}")
        };
        assert_eq!(
            (request.flow, request.bytes, request.sequence, request.flags),
            (flow(7), 60, sequence, ACK)
        );
    }
    for packet in [
        udp4("203.0.113.9", &[0; 60]),
        udp6("2001:db8:b::9", &[0; 60]),
    ] {
        let [request] = recorded(&mut watcher, &packet)[..] else {
            panic!("one request")
        };
        assert_eq!((request.bytes, request.sequence, request.flags), (60, 0, 0));
    }
    assert_eq!(
        watcher.stats(flow(7)).unwrap(),
        WatchStats {
            requests: 4,
            ..WatchStats::default()
        }
    );
}

#[test]
fn the_size_is_the_packets_own() {
    let mut watcher = watcher();
    for (bytes, is_request) in [
        (0, false),
        (19, false),
        (20, true),
        (200, true),
        (201, false),
        (1400, false),
    ] {
        let packets = [
            tcp(false, 1000, 1 << 20 | bytes as u32, ACK, bytes),
            tcp(true, 1001, 1 << 20 | bytes as u32, ACK, bytes),
            udp4("203.0.113.9", &vec![0; bytes]),
        ];
        for packet in packets {
            assert_eq!(
                recorded(&mut watcher, &packet).len(),
                usize::from(is_request),
                "{bytes} bytes"
            );
        }
    }
    let padded = [&transit(&udp4("203.0.113.9", &[0; 15]))[..], &[0; 30]].concat();
    watcher.run(&padded, 1).unwrap();
    assert_eq!(
        watcher.stats(flow(7)).unwrap(),
        WatchStats {
            requests: 6,
            others: 13,
            ..WatchStats::default()
        }
    );
}

#[test]
fn ends_of_connections_are_recorded_regardless_of_size() {
    let mut watcher = watcher();
    assert_eq!(recorded(&mut watcher, &tcp(false, 1000, 1, SYN, 60)), []);
    for flags in [
        Request::FIN | ACK,
        Request::RST,
        Request::RST | ACK,
        Request::FIN | Request::RST,
    ] {
        for bytes in [0, 60, 1400] {
            let [request] = recorded(&mut watcher, &tcp(false, 1000, 1, flags, bytes))[..] else {
                panic!("one end")
            };
            assert!(request.is_end());
            assert_eq!((request.flags, usize::from(request.bytes)), (flags, bytes));
        }
    }
    assert_eq!(
        watcher.stats(flow(7)).unwrap(),
        WatchStats {
            ends: 12,
            others: 1,
            ..WatchStats::default()
        }
    );
}

#[test]
fn retransmissions_are_not_recorded() {
    let mut watcher = watcher();
    let steps = [
        (1000, u32::MAX - 29, ACK, 1), // its end is at 30, behind the wrap
        (1000, u32::MAX - 29, ACK, 0), // again
        (1000, 30, ACK, 1),
        (1000, u32::MAX - 29, ACK, 0), // the first again
        (1001, 30, ACK, 1),            // another connection
        (1001, 30, ACK, 0),
        (1001, 90, Request::FIN | ACK, 1),
        (1001, 30, ACK, 1), // the port has been taken again
        (1001, 5, SYN, 0),
        (1001, 6, ACK, 1),
    ];
    for (number, (from, sequence, flags, records)) in steps.into_iter().enumerate() {
        let found = recorded(&mut watcher, &tcp(false, from, sequence, flags, 60));
        assert_eq!(found.len(), records, "step {number}");
    }
    assert_eq!(watcher.stats(flow(7)).unwrap().retransmissions, 3);
}

#[test]
fn other_packets_are_ignored() {
    let mut watcher = watcher();
    let request = tcp(false, 1000, 1, ACK, 60);
    let six = tcp(true, 1000, 1, ACK, 60);
    let mut long_header = request.clone();
    long_header[32] = 0xf0; // 60 bytes of TCP header and 92 bytes of segment: 32 of payload
    assert_eq!(recorded(&mut watcher, &long_header)[0].bytes, 32);
    let mut too_long_header = tcp(false, 1000, 1, ACK, 0);
    too_long_header[32] = 0xf0;
    for packet in [
        udp4("203.0.114.9", &[0; 60]),
        with_ipv4(request.clone(), |packet| packet[9] = 1),
        with_ipv4(request.clone(), |packet| packet[7] = 1), // a fragment
        [&six[..6], &[58], &six[7..]].concat(),
        too_long_header,
    ] {
        assert_eq!(recorded(&mut watcher, &packet), []);
    }
    for length in 14 + 20..14 + 20 + 14 {
        watcher.run(&transit(&request)[..length], 1).unwrap();
    }
    assert_eq!(
        watcher.stats(flow(7)).unwrap(),
        WatchStats {
            requests: 1,
            ..WatchStats::default()
        }
    );
    watcher.set_flow(flow(7), None).unwrap();
    assert_eq!(recorded(&mut watcher, &tcp(false, 1000, 999, ACK, 60)), []);
}

#[test]
fn lost_records_are_counted() {
    let mut watcher = watcher();
    let frame = transit(&udp4("203.0.113.9", &[0; 60]));
    watcher.run(&frame, 20_000).unwrap();
    let mut requests = Vec::new();
    watcher.drain(&mut requests);
    let stats = watcher.stats(flow(7)).unwrap();
    assert_eq!(stats.requests, 20_000);
    assert!(
        stats.lost > 0 && stats.lost + requests.len() as u64 == 20_000,
        "{stats:?}, {}",
        requests.len()
    );
    assert!(requests.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert_eq!(
        recorded(&mut watcher, &udp4("203.0.113.9", &[0; 60])).len(),
        1,
        "there is room again"
    );
}
