//! Deduplication of transparent copies: the ToS byte identifies the path, a fingerprint the packet.

use crate::support::*;
use hawser_replication_bpf::{Receiver, ReceiverOptions, RxStats};
use hawser_shim::transparent;
use std::time::{Duration, Instant};

/// Longer than any test takes.
const WITHIN: Duration = Duration::from_secs(3600);

fn receiver(within: Duration) -> Receiver {
    let options = ReceiverOptions {
        transparent_within: within,
        ..receiver_options()
    };
    let receiver = Receiver::load(&options).unwrap();
    receiver
        .select_transparent(prefix("192.0.2.0/24"), &[everything_of(7)])
        .unwrap();
    receiver
}

/// A copy as it arrives on a path.
fn copy(by: u8, packet: &[u8]) -> Vec<u8> {
    let tos = transparent::tos(path(by), packet[1]);
    decapsulated(&with_tos(packet.to_vec(), tos))
}

fn packet(id: u16) -> Vec<u8> {
    with_id(udp4("192.0.2.9", b"the payload of a transparent flow"), id)
}

#[test]
fn the_first_copy_passes_unchanged_and_others_do_not() {
    for ecn in 0..4 {
        let receiver = receiver(WITHIN);
        let packet = with_tos(packet(77), 0xb8 | ecn);
        let first = receiver.run(&copy(3, &packet), 1).unwrap();
        assert_eq!(first.action, XDP_PASS);
        assert_eq!(
            first.frame,
            decapsulated(&with_tos(packet.clone(), ecn)),
            "ToS is zero, ECN {ecn} stays"
        );
        for other in [0, 1, 2, 4, 5, 6, 7] {
            let run = receiver.run(&copy(other, &packet), 1).unwrap();
            assert_eq!(
                (run.action, run.frame),
                (XDP_DROP, copy(other, &packet)),
                "path {other}"
            );
        }
        let on_three = receiver.stats(flow(7), path(3)).unwrap();
        let bytes = packet.len() as u64;
        assert_eq!(
            on_three,
            RxStats {
                packets: 1,
                bytes,
                first: 1,
                ..RxStats::default()
            }
        );
        let on_zero = receiver.stats(flow(7), path(0)).unwrap();
        assert_eq!(
            on_zero,
            RxStats {
                packets: 1,
                bytes,
                duplicates: 1,
                ..RxStats::default()
            }
        );
        assert_eq!(counted(receiver.reasons().unwrap()), []);
    }
}

#[test]
fn the_same_bytes_by_the_same_path_are_another_packet() {
    let receiver = receiver(WITHIN);
    for _ in 0..3 {
        assert_eq!(
            receiver.run(&copy(0, &packet(5)), 1).unwrap().action,
            XDP_PASS
        );
        assert_eq!(
            receiver.run(&copy(1, &packet(5)), 1).unwrap().action,
            XDP_DROP
        );
    }
}

#[test]
fn packets_that_may_not_be_copies_pass() {
    let first = packet(5);
    let longer = with_id(
        udp4("192.0.2.9", b"the payload of a transparent flow, and more"),
        5,
    );
    let other_text = with_id(udp4("192.0.2.9", b"the payload of a transparent glow"), 5);
    let fixtures: Vec<(&str, Vec<u8>)> = vec![
        ("another ID", packet(6)),
        ("ID 0", packet(0)),
        (
            "another destination",
            with_ipv4(first.clone(), |packet| packet[19] += 1),
        ),
        (
            "another source",
            with_ipv4(first.clone(), |packet| packet[15] += 1),
        ),
        (
            "another protocol",
            with_ipv4(first.clone(), |packet| packet[9] = 6),
        ),
        ("another length", longer),
        ("another payload", other_text),
        (
            "first fragment",
            with_ipv4(first.clone(), |packet| packet[6] = 0x20),
        ),
        (
            "later fragment",
            with_ipv4(first.clone(), |packet| packet[7] = 1),
        ),
    ];
    for (name, packet) in fixtures {
        let receiver = receiver(WITHIN);
        assert_eq!(receiver.run(&copy(0, &first), 1).unwrap().action, XDP_PASS);
        for _ in 0..2 {
            assert_eq!(
                receiver.run(&copy(1, &packet), 1).unwrap().action,
                XDP_PASS,
                "{name}"
            );
        }
    }
}

#[test]
fn packets_that_are_no_copies_pass_unchanged() {
    let mut to_another = packet(5);
    to_another[16..20].copy_from_slice(&[203, 0, 113, 9]);
    let to_another = with_ipv4(to_another, |_| ());
    let truncated = copy(0, &packet(5));
    let fixtures: Vec<(&str, Vec<u8>)> = vec![
        (
            "a DSCP that names no path",
            decapsulated(&with_tos(packet(5), 0xb8)),
        ),
        ("no DSCP", decapsulated(&packet(5))),
        ("a flow that is not transparent", copy(0, &to_another)),
        ("cut", truncated[..truncated.len() - 1].to_vec()),
        ("IPv6", {
            let mut packet = udp6("2001:db8:b::9", b"x");
            (packet[0], packet[1]) = (0x68, 0xc0);
            decapsulated(&packet)
        }),
        ("ID 0", copy(0, &packet(0))),
    ];
    let receiver = receiver(WITHIN);
    for (name, frame) in fixtures {
        for _ in 0..2 {
            let run = receiver.run(&frame, 1).unwrap();
            assert_eq!((run.action, &run.frame), (XDP_PASS, &frame), "{name}");
        }
    }
    assert_eq!(
        receiver.stats(flow(7), path(0)).unwrap(),
        RxStats::default()
    );
}

#[test]
fn padding_does_not_hide_a_copy() {
    let receiver = receiver(WITHIN);
    let short = with_id(udp4("192.0.2.9", b"."), 9);
    let padded = |by| [&copy(by, &short)[..], &[by; 17]].concat();
    assert_eq!(receiver.run(&copy(0, &short), 1).unwrap().action, XDP_PASS);
    assert_eq!(receiver.run(&padded(1), 1).unwrap().action, XDP_DROP);
    assert_eq!(receiver.run(&padded(2), 1).unwrap().action, XDP_DROP);
}

#[test]
fn copies_are_known_by_every_length_of_packet() {
    let receiver = receiver(WITHIN);
    let payload: Vec<u8> = (0..100).collect();
    for length in 0..payload.len() {
        let packet = with_id(udp4("192.0.2.9", &payload[..length]), 9);
        assert_eq!(
            receiver.run(&copy(0, &packet), 1).unwrap().action,
            XDP_PASS,
            "{length} bytes"
        );
        assert_eq!(
            receiver.run(&copy(1, &packet), 1).unwrap().action,
            XDP_DROP,
            "{length} bytes"
        );
    }
}

#[test]
fn a_copy_is_forgotten_after_its_time() {
    const BRIEFLY: Duration = Duration::from_millis(20);
    let receiver = receiver(BRIEFLY);
    assert_eq!(
        receiver.run(&copy(0, &packet(5)), 1).unwrap().action,
        XDP_PASS
    );
    let start = Instant::now();
    let by_another_path = copy(1, &packet(5));
    loop {
        let before = Instant::now();
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "no entry expires"
        );
        // A dropped copy does not extend the time, so the entry expires 20 ms after the first copy.
        if receiver.run(&by_another_path, 1).unwrap().action == XDP_DROP {
            continue;
        }
        if receiver.run(&copy(2, &packet(5)), 1).unwrap().action == XDP_DROP {
            return;
        }
        assert!(
            before.elapsed() >= BRIEFLY,
            "the packet is remembered again"
        );
    }
}

#[test]
fn many_packets_do_not_push_each_other_out() {
    let receiver = receiver(WITHIN);
    let by_path = |by| {
        let passed =
            |id: &u16| receiver.run(&copy(by, &packet(*id)), 1).unwrap().action == XDP_PASS;
        (1..=1000).filter(passed).count()
    };
    assert_eq!(by_path(0), 1000, "none is taken for another");
    assert_eq!(by_path(1), 0, "all are remembered");
}
