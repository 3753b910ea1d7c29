//! Tagged flows: replayed, reflected, altered and expired packets are rejected, and no others.

use crate::support::*;
use hawser_dedup::REMEMBERED;
use hawser_replication_bpf::{Receiver, RxStats};
use hawser_shim::{Cover, KeySlot, SealKey, SealRing, Shim};
use hawser_units::PathId;
use hawser_wire::Key;

/// A send time, and the microseconds of a second.
const SENT: u64 = 1 << 40;
const SECOND: u64 = 1_000_000;

const FIRST: u64 = 1 << 40;

/// A receiver that accepts one key.
fn receiver_with(key: &SealKey) -> Receiver {
    let receiver = receiver();
    receiver
        .set_flow(flow(7), Some(&ring(Some(key), None)))
        .unwrap();
    receiver
}

fn sealed(by: PathId, sequence: u64, sent_micros: u64, cover: Cover, key: &SealKey) -> Vec<u8> {
    let inner = udp4("192.0.2.9", b"what is sent");
    let shim = Shim {
        sent_micros,
        ..shim(by, sequence)
    };
    towards_here(by)
        .frame(&shim.sealed(KeySlot::Zero, key, cover, &inner), &inner)
        .unwrap()
}

fn tagged(sequence: u64, sent_micros: u64) -> Vec<u8> {
    sealed(path(0), sequence, sent_micros, Cover::Headers, &seal_key(1))
}

fn passes(receiver: &Receiver, frame: &[u8]) -> bool {
    receiver.run(frame, 1).unwrap().action == XDP_PASS
}

fn stats(receiver: &Receiver) -> RxStats {
    receiver.stats(flow(7), path(0)).unwrap()
}

/// The frame with one byte changed: the last one, which is in the payload, or one of the inner
/// packet's ports.
fn altered(frame: &[u8], from_the_end: usize) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let at = frame.len() - from_the_end;
    frame[at] ^= 0x20;
    frame
}

#[test]
fn an_injected_old_replica_is_dropped_and_no_evidence() {
    let receiver = receiver_with(&seal_key(1));
    let captured = tagged(FIRST, SENT);
    assert!(passes(&receiver, &captured));
    assert!(passes(
        &receiver,
        &tagged(FIRST + REMEMBERED + 32, SENT + SECOND)
    ));
    let mut records = Vec::new();
    receiver.arrivals().unwrap().drain(&mut records);
    for _ in 0..3 {
        assert!(!passes(&receiver, &captured));
    }
    assert_eq!(
        counted(receiver.reasons().unwrap()),
        [("dropped_outdated", 3)]
    );
    assert_eq!(
        (
            stats(&receiver).first,
            stats(&receiver).packets,
            stats(&receiver).outdated
        ),
        (2, 2, 3)
    );
    records.clear();
    receiver.arrivals().unwrap().drain(&mut records);
    assert_eq!(records, []);
}

#[test]
fn a_replica_of_an_ended_session_is_dropped() {
    let receiver = receiver_with(&seal_key(1));
    for n in 0..100 {
        assert!(passes(&receiver, &tagged(FIRST + n, SENT)));
    }
    let session = FIRST + (1 << 30);
    for n in 0..100 {
        assert!(
            passes(&receiver, &tagged(session + n, SENT + 60 * SECOND)),
            "packet {n} of the session after"
        );
    }
    for n in 0..100 {
        assert!(
            !passes(&receiver, &tagged(FIRST + n, SENT)),
            "a captured packet {n}"
        );
        assert!(
            !passes(&receiver, &tagged(FIRST + 5_000 + n, SENT)),
            "a delayed packet {n}"
        );
    }
    assert_eq!(
        counted(receiver.reasons().unwrap()),
        [("dropped_outdated", 100), ("dropped_expired", 100)]
    );
}

#[test]
fn a_delayed_replica_is_dropped() {
    let receiver = receiver_with(&seal_key(1));
    assert!(passes(&receiver, &tagged(FIRST + 1, SENT + 10 * SECOND)));
    assert!(!passes(&receiver, &tagged(FIRST, SENT)));
    assert_eq!(
        counted(receiver.reasons().unwrap()),
        [("dropped_expired", 1)]
    );
    assert_eq!(stats(&receiver).expired, 1);
}

#[test]
fn a_reflected_replica_is_dropped() {
    let shared = Key::from_bytes([1; 16]);
    let receiver = receiver_with(&SealKey::derive(&shared, "viewer", "publisher"));
    let own = sealed(
        path(0),
        FIRST,
        SENT,
        Cover::Headers,
        &SealKey::derive(&shared, "publisher", "viewer"),
    );
    assert!(!passes(&receiver, &own));
    assert_eq!(counted(receiver.reasons().unwrap()), [("dropped_tag", 1)]);
    assert_eq!(stats(&receiver).tag_failures, 1);
}

#[test]
fn an_altered_first_copy_does_not_displace_the_good_one() {
    for (cover, from_the_end) in [(Cover::Headers, 18), (Cover::Whole, 18), (Cover::Whole, 1)] {
        let key = seal_key(1);
        let receiver = receiver_with(&key);
        let copy = |by| sealed(by, FIRST, SENT, cover, &key);
        assert!(
            !passes(&receiver, &altered(&copy(path(0)), from_the_end)),
            "{cover:?}, {from_the_end}"
        );
        assert_eq!(counted(receiver.reasons().unwrap()), [("dropped_tag", 1)]);
        let good = receiver.run(&copy(path(1)), 1).unwrap();
        assert_eq!(good.action, XDP_PASS);
        assert_eq!(
            good.frame,
            decapsulated(&udp4("192.0.2.9", b"what is sent"))
        );
    }
}

#[test]
fn a_receiver_that_requires_whole_packet_tags_drops_others() {
    let key = seal_key(1);
    let receiver = receiver();
    let demanding = SealRing {
        required_cover: Cover::Whole,
        ..ring(Some(&key), None)
    };
    receiver.set_flow(flow(7), Some(&demanding)).unwrap();
    assert!(!passes(
        &receiver,
        &sealed(path(0), FIRST, SENT, Cover::Headers, &key)
    ));
    assert_eq!(
        counted(receiver.reasons().unwrap()),
        [("dropped_partial_tag", 1)]
    );
    assert!(passes(
        &receiver,
        &sealed(path(0), FIRST, SENT, Cover::Whole, &key)
    ));
}

#[test]
fn every_length_is_covered_wholly() {
    let key = seal_key(1);
    let receiver = receiver_with(&key);
    let payload: Vec<u8> = (0..1500u32).map(|n| ((n * 7919) >> 3) as u8).collect();
    for (sequence, length) in (FIRST..).zip((0..80).chain(1380..1445)) {
        for (by, inner) in [
            (path(0), udp4("192.0.2.9", &payload[..length])),
            (path(1), udp6("2001:db8::9", &payload[..length])),
        ] {
            let number = 2 * sequence + by.index() as u64;
            let shim = Shim {
                sent_micros: SENT,
                ..shim(by, number)
            };
            let copy = towards_here(by)
                .frame(
                    &shim.sealed(KeySlot::Zero, &key, Cover::Whole, &inner),
                    &inner,
                )
                .unwrap();
            if length > 0 {
                assert!(
                    !passes(&receiver, &altered(&copy, 1)),
                    "{length} bytes, altered"
                );
            }
            assert!(passes(&receiver, &copy), "{length} bytes");
        }
    }
}

#[test]
fn a_sender_that_starts_again_loses_nothing() {
    let receiver = receiver_with(&seal_key(1));
    let (mut start, mut clock) = (FIRST, SENT);
    // After a restart of the sender's agent, after a year without traffic, and with a clock that
    // was stopped in the meantime.
    for (further, later) in [
        (1 << 24, 5 * SECOND),
        (1 << 46, 365 * 86_400 * SECOND),
        (1 << 22, 1),
    ] {
        for n in 0..1_000 {
            assert!(
                passes(&receiver, &tagged(start + n, clock + n)),
                "packet {n} at {start:#x}"
            );
        }
        start += further;
        clock += later + 1_000;
    }
    assert_eq!(counted(receiver.reasons().unwrap()), []);
}

#[test]
fn nothing_is_lost_where_numbers_and_times_wrap() {
    let receiver = receiver_with(&seal_key(1));
    for n in 0..1_000u64 {
        let sent = ((1 << 48) - 500_000 + n * 1_000) & ((1 << 48) - 1);
        assert!(
            passes(&receiver, &tagged((u64::MAX - 499).wrapping_add(n), sent)),
            "packet {n}"
        );
    }
    assert_eq!(counted(receiver.reasons().unwrap()), []);
}

#[test]
fn nothing_is_lost_by_a_skew_of_450_ms() {
    let receiver = receiver_with(&seal_key(1));
    let sent = |n: u64| SENT + n * 1_000;
    for n in 0..2_000 {
        // Every other packet is lost on the fast path.
        assert!(passes(&receiver, &tagged(FIRST + 2 * n, sent(n))));
        if let Some(n) = n.checked_sub(450) {
            assert!(
                passes(&receiver, &tagged(FIRST + 2 * n + 1, sent(n))),
                "packet {n} on the slow path"
            );
        }
    }
    assert_eq!(counted(receiver.reasons().unwrap()), []);
}

#[test]
fn a_key_replaced_by_another_lets_another_sender_begin() {
    let (old, new) = (seal_key(1), seal_key(2));
    let receiver = receiver_with(&old);
    let by = |key, sequence| sealed(path(0), sequence, SENT, Cover::Headers, key);
    assert!(passes(&receiver, &by(&old, FIRST + REMEMBERED + 32)));
    receiver
        .set_flow(flow(7), Some(&ring(Some(&old), None)))
        .unwrap();
    assert!(
        !passes(&receiver, &by(&old, FIRST)),
        "the same key: the window stays"
    );
    receiver
        .set_flow(flow(7), Some(&ring(Some(&new), None)))
        .unwrap();
    assert!(passes(&receiver, &by(&new, FIRST)));
}
