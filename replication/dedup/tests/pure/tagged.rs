//! Guarantees of the window for tagged flows under random traffic.

use crate::operations::{Operation, Tagged, operation, start, tagged_arrivals};
use hawser_dedup::{REMEMBERED, Times, Verdict, Window};
use proptest::prelude::*;
use std::collections::HashSet;

const MAX_AGE: u32 = 2_000_000;

fn observe(window: &Window, packet: Tagged) -> Verdict {
    let Tagged {
        sequence,
        sent_micros,
        now_micros,
    } = packet;
    window.observe_tagged(
        sequence,
        Times {
            sent_micros,
            now_micros,
            max_age_micros: MAX_AGE,
        },
    )
}

/// Returns a packet of a session that starts at number 2^40, sent `sent_ms` after its start and
/// delayed by `took_ms`.
fn packet(number: u64, sent_ms: u64, took_ms: u64) -> Tagged {
    Tagged {
        sequence: (1 << 40) + number,
        sent_micros: 5_000_000_000 + sent_ms * 1000,
        now_micros: 1_000_000 + (sent_ms + took_ms) * 1000,
    }
}

/// Generates a clock, possibly about to wrap.
fn clock() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..1u64 << 48,
        (0..1u64 << 36).prop_map(|before| (1 << 48) - 1 - before)
    ]
}

/// Generates operations without late arrivals of old copies.
fn punctual() -> impl Strategy<Value = Operation> {
    operation().prop_filter("comes late", |operation| {
        !matches!(
            operation,
            Operation::Lag { .. } | Operation::Straggle { .. }
        )
    })
}

proptest! {
    #[test]
    fn nothing_is_accepted_twice(
        start in start(),
        clock in clock(),
        operations in proptest::collection::vec(operation(), 1..40),
        delays in proptest::collection::vec(0..1u64 << 40, 1..20),
    ) {
        let window = Window::new();
        let mut accepted = HashSet::new();
        let packets = tagged_arrivals(start, clock, &operations);
        for packet in &packets {
            if observe(&window, *packet).accepts() {
                prop_assert!(accepted.insert(packet.sequence), "{packet:x?}");
            }
        }
        // All packets were recorded and are replayed, at once or much later.
        let end = packets.iter().map(|packet| packet.now_micros).max().unwrap_or_default();
        for (packet, delay) in packets.iter().rev().zip(delays.iter().cycle()) {
            let replayed = Tagged { now_micros: end + delay, ..*packet };
            let verdict = observe(&window, replayed);
            prop_assert!(!verdict.accepts() || accepted.insert(packet.sequence), "{packet:x?}: {verdict:?}");
        }
    }

    #[test]
    fn no_first_copy_is_refused_that_is_punctual(
        start in start(),
        clock in clock(),
        operations in proptest::collection::vec(punctual(), 1..60),
    ) {
        let window = Window::new();
        let mut seen = HashSet::new();
        for packet in tagged_arrivals(start, clock, &operations) {
            let known = !seen.insert(packet.sequence);
            let verdict = observe(&window, packet);
            prop_assert!(verdict.accepts() != known, "{packet:x?}: {verdict:?}");
        }
    }
}

#[test]
fn an_only_copy_that_is_450_ms_behind_is_delivered() {
    let window = Window::new();
    for n in 0..2_000 {
        assert!(observe(&window, packet(2 * n, n, 1)).accepts());
        if let Some(n) = n.checked_sub(450) {
            assert_eq!(
                observe(&window, packet(2 * n + 1, n, 451)),
                Verdict::First,
                "packet {n}"
            );
        }
    }
}

#[test]
fn a_delayed_copy_is_refused_with_an_unseen_number() {
    let window = Window::new();
    for n in 0..2_000 {
        observe(&window, packet(2 * n, n, 1));
    }
    assert_eq!(observe(&window, packet(3, 1, 2_001)), Verdict::First);
    assert_eq!(observe(&window, packet(5, 1, 2_500)), Verdict::Expired);
    // The same for a packet that is newer than all others.
    assert_eq!(
        observe(&window, packet(4_001, 2_001, 2_500)),
        Verdict::Expired
    );
}

#[test]
fn a_network_that_delays_ever_more_is_detected() {
    let window = Window::new();
    let mut verdicts = (0..10_000).map(|n| observe(&window, packet(n, n, n)));
    let refused = verdicts.find(|verdict| !verdict.accepts());
    assert_eq!(refused, Some(Verdict::Expired));
}

#[test]
fn clocks_that_run_apart_by_a_thousandth_part_lose_nothing() {
    let window = Window::new();
    for n in 0..10_000_000 {
        let took = 1_000_000 + n * 9 / 10_000;
        let packet = Tagged {
            now_micros: packet(n, n, 0).now_micros + took,
            ..packet(n, n, 0)
        };
        assert!(observe(&window, packet).accepts(), "{packet:?}");
    }
}

#[test]
fn a_stopped_clock_is_accepted_again_after_as_long() {
    let window = Window::new();
    for n in 0..1_000 {
        observe(&window, packet(n, n, 1));
    }
    for n in 1_000..40_000 {
        let expected = n >= 10_999;
        assert_eq!(
            observe(&window, packet(n, n, 10_001)).accepts(),
            expected,
            "packet {n}"
        );
    }
}

#[test]
fn a_session_may_start_with_a_clock_that_is_behind() {
    let window = Window::new();
    observe(&window, packet(0, 1_000, 1));
    // An hour later, of which the sender's clock counted ten seconds.
    let restarted = |n: u64| packet((1 << 30) + n, 11_000 + n, 3_600_000);
    for n in 0..1_000 {
        assert!(observe(&window, restarted(n)).accepts(), "packet {n}");
    }
    assert_eq!(
        observe(&window, packet(40_000, 1_001, 3_612_000)),
        Verdict::Expired
    );
}

#[test]
fn a_session_that_was_left_is_refused_for_good() {
    let window = Window::new();
    for n in 0..REMEMBERED {
        observe(&window, packet(n, n / 64, 1));
    }
    let session = |n: u64| packet((1 << 30) + n, 5_000 + n / 64, 1);
    for n in 0..2 * REMEMBERED {
        assert!(observe(&window, session(n)).accepts());
    }
    for n in 0..REMEMBERED {
        assert_eq!(
            observe(&window, packet(n, n / 64, 10_000)),
            Verdict::Outdated,
            "packet {n}"
        );
    }
}
