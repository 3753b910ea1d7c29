//! ICMP errors about copies that are too big for a hop of their path. Anyone can send errors: those
//! that quote no copy of this node are not heard.

use crate::support::*;
use hawser_replication_bpf::{PathError, Sender};
use hawser_shim::{DEFAULT_PORT, Shim};
use hawser_wire::ip::{Ipv4Header, Ipv6Header};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::Duration;

const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 1);
const FIRST: u64 = 1 << 40;

/// The program records one error of a path in this time.
const EVERY: Duration = Duration::from_millis(11);

fn header_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, bytes: usize) -> Vec<u8> {
    let header = Ipv4Header {
        tos: 0,
        total_length: 20 + bytes as u16,
        identification: 0,
        dont_fragment: true,
        ttl: 64,
        protocol,
        source,
        destination,
    };
    header.emit().to_vec()
}

fn header_v6(source: Ipv6Addr, destination: Ipv6Addr, next_header: u8, bytes: usize) -> Vec<u8> {
    let header = Ipv6Header {
        traffic_class: 0,
        flow_label: 0,
        payload_length: bytes as u16,
        next_header,
        hop_limit: 64,
        source,
        destination,
    };
    header.emit().to_vec()
}

/// The UDP header of a replica, and its shim with this path and sequence number.
fn quoted_udp(port: u16, number: u8, sequence: u64) -> Vec<u8> {
    let shim = Shim {
        path: path(number),
        paths: [path(number)].into_iter().collect(),
        epoch: 0,
        flow: flow(7),
        sequence,
        sent_micros: 0,
        seal: None,
    };
    let mut bytes = [port, DEFAULT_PORT, 1400, 0].map(u16::to_be_bytes).concat();
    bytes.extend(shim.emit());
    bytes
}

/// An error of a router over IPv4, about a replica from `local` to `remote`.
fn error_v4(mtu: u16, local: Ipv4Addr, remote: Ipv4Addr, quoted: &[u8]) -> Vec<u8> {
    let mut icmp = vec![3, 4, 0, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(header_v4(local, remote, 17, 1400));
    icmp.extend(quoted);
    let packet = [header_v4(ROUTER_V4, HERE_V4, 1, icmp.len()), icmp].concat();
    ethernet(HERE_MAC, THERE_MAC, &packet)
}

/// As [`error_v4`], over IPv6.
fn error_v6(mtu: u32, local: Ipv6Addr, remote: Ipv6Addr, quoted: &[u8]) -> Vec<u8> {
    let mut icmp = vec![2, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(header_v6(local, remote, 17, 1400));
    icmp.extend(quoted);
    let packet = [header_v6(ROUTER_V6, HERE_V6, 58, icmp.len()), icmp].concat();
    ethernet(HERE_MAC, THERE_MAC, &packet)
}

/// A sender that has sent one packet.
fn sending() -> Sender {
    let sender = replicating_all(&send_flow(7));
    let sent = sender.run(&transit(&udp4("203.0.113.9", b"x")), 1).unwrap();
    assert_eq!(sent.action, XDP_REDIRECT);
    sender
}

fn hear(sender: &mut Sender, frame: &[u8]) -> Vec<PathError> {
    thread::sleep(EVERY);
    let run = sender.run_path_error(frame).unwrap();
    assert_eq!(run.action as i32, -1, "the kernel handles the packet too");
    sender.path_errors().unwrap()
}

#[test]
fn an_error_about_a_copy_is_heard() {
    let mut sender = sending();
    let of_v4 = error_v4(1400, HERE_V4, THERE_V4, &quoted_udp(DEFAULT_PORT, 0, FIRST));
    let of_v6 = error_v6(1300, HERE_V6, THERE_V6, &quoted_udp(DEFAULT_PORT, 1, FIRST));
    for (frame, index, mtu_bytes) in [(of_v4, 0, 1400), (of_v6, 1, 1300)] {
        let heard = hear(&mut sender, &frame);
        let [
            PathError {
                path: about,
                mtu_bytes: told,
                shim,
            },
        ] = heard[..]
        else {
            panic!("{heard:?}");
        };
        assert_eq!((about, told), (path(index), mtu_bytes));
        assert_eq!(shim.unwrap().sequence, FIRST);
    }
}

/// A router need not quote more than the UDP header (RFC 792).
#[test]
fn an_error_that_quotes_little_is_heard() {
    let mut sender = sending();
    let quoted = &quoted_udp(DEFAULT_PORT, 0, FIRST)[..8];
    let heard = hear(&mut sender, &error_v4(1400, HERE_V4, THERE_V4, quoted));
    let expected = PathError {
        path: path(0),
        mtu_bytes: 1400,
        shim: None,
    };
    assert_eq!(heard, [expected]);
}

#[test]
fn errors_that_quote_no_copy_of_this_node_are_not_heard() {
    let mut sender = sending();
    let good = quoted_udp(DEFAULT_PORT, 0, FIRST);
    let other_v4 = Ipv4Addr::new(198, 51, 100, 77);
    let mut unreachable = error_v4(1400, HERE_V4, THERE_V4, &good);
    unreachable[14 + 20 + 1] = 3;
    let mut tcp = error_v4(1400, HERE_V4, THERE_V4, &good);
    tcp[14 + 20 + 8 + 9] = 6;
    let mut unknown_version = error_v4(1400, HERE_V4, THERE_V4, &good);
    unknown_version[14 + 20 + 8 + 20 + 8] = 0xf0;
    let truncated = error_v4(1400, HERE_V4, THERE_V4, &good[..7]);
    for (name, frame) in [
        (
            "from another address",
            error_v4(1400, other_v4, THERE_V4, &good),
        ),
        (
            "to another address",
            error_v4(1400, HERE_V4, other_v4, &good),
        ),
        (
            "another port",
            error_v4(1400, HERE_V4, THERE_V4, &quoted_udp(53, 0, FIRST)),
        ),
        ("another error", unreachable),
        ("another protocol", tcp),
        ("another shim", unknown_version),
        ("too short", truncated),
        (
            "another path",
            error_v4(1400, HERE_V4, THERE_V4, &quoted_udp(DEFAULT_PORT, 1, FIRST)),
        ),
        (
            "not sent yet",
            error_v4(
                1400,
                HERE_V4,
                THERE_V4,
                &quoted_udp(DEFAULT_PORT, 0, FIRST + 1),
            ),
        ),
        (
            "long ago",
            error_v4(
                1400,
                HERE_V4,
                THERE_V4,
                &quoted_udp(DEFAULT_PORT, 0, FIRST - (1 << 20)),
            ),
        ),
        ("no error at all", transit(&udp4("203.0.113.9", b"x"))),
    ] {
        assert_eq!(hear(&mut sender, &frame), [], "{name}");
    }
    assert_eq!(
        hear(&mut sender, &error_v4(1400, HERE_V4, THERE_V4, &good)).len(),
        1
    );
}

#[test]
fn a_flood_of_errors_is_heard_once() {
    let mut sender = sending();
    let frame = error_v4(1400, HERE_V4, THERE_V4, &quoted_udp(DEFAULT_PORT, 0, FIRST));
    for _ in 0..100 {
        sender.run_path_error(&frame).unwrap();
    }
    let heard = sender.path_errors().unwrap().len();
    assert!((1..100).contains(&heard), "{heard} errors");
}
