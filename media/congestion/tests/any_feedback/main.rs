//! Any sequence of packets, reports and timeouts, true or not, leaves rates within their bounds and
//! windows positive.

mod operations;

use hawser_congestion::{Acked, Bounds, Feedback, Prague, PragueConfig, RateControl};
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use operations::{apply, operation};
use proptest::prelude::*;
use std::time::Duration;

proptest! {
    #[test]
    fn prague_stays_within_its_bounds(operations in prop::collection::vec(operation(), 0..120)) {
        let config = PragueConfig::default();
        apply(&mut Prague::new(config, Instant::ZERO), &config.bounds, &operations);
    }

    #[test]
    fn prague_takes_any_bounds(
        rates in any::<[u64; 3]>(),
        segment: u64,
        interval: u64,
        operations in prop::collection::vec(operation(), 0..40),
    ) {
        let [minimum, initial, maximum] = rates.map(|bps| Bitrate::from_bps(bps >> 14));
        let config = PragueConfig {
            bounds: Bounds::new(minimum, initial, maximum),
            segment: ByteSize(segment >> 40),
            feedback_interval: Duration::from_nanos(interval >> 34),
            l4s: true,
        };
        apply(&mut Prague::new(config, Instant::ZERO), &config.bounds, &operations);
    }
}

/// A receiver that acknowledges everything at once, often, and never reports a mark. It can bring
/// the sender to its maximum, which is what the bounds are for, but not beyond.
#[test]
fn a_liar_gains_no_more_than_the_maximum() {
    let config = PragueConfig::default();
    let mut control = Prague::new(config, Instant::ZERO);
    let mut now = Instant::ZERO;
    for round in 0..4000u64 {
        now += Duration::from_millis(5);
        let first = round * 40;
        (first..first + 40).for_each(|number| control.handle_sent(now, number, ByteSize(1200)));
        let acked: Vec<Acked> = (0..first + 200).rev().take(400).map(claim).collect();
        for _ in 0..3 {
            control.handle_feedback(&Feedback {
                now,
                reported: now,
                acked: &acked,
                lost: &[],
                abandoned: &[],
                is_answer: true,
                app_limited: false,
            });
        }
    }
    assert_eq!(control.target(), config.bounds.maximum());
    assert_eq!(control.in_flight(), ByteSize(0));
    assert!(control.pacing_rate().bps() <= 3 * config.bounds.maximum().bps());
    let refusals = control.refusals();
    // 160 packets of each round were not sent yet, three times.
    assert!(refusals.unknown >= 4000 * 160 * 3);
    assert!(refusals.repeated >= 4000 * 2 * 40);
}

fn claim(number: u64) -> Acked {
    Acked {
        number,
        held: Duration::ZERO,
        ecn: Ecn::Ect1,
    }
}

/// Lies about packets that were never sent, and repetitions, do not keep a dead path alive.
#[test]
fn refused_feedback_does_not_count_as_feedback() {
    let mut control = Prague::new(PragueConfig::default(), Instant::ZERO);
    control.handle_sent(Instant::ZERO, 0, ByteSize(1200));
    let due = control.poll_timeout();
    for step in 1..50 {
        control.handle_feedback(&Feedback {
            now: Instant::ZERO + Duration::from_millis(step),
            reported: Instant::ZERO + Duration::from_millis(step),
            acked: &[claim(7)],
            lost: &[9],
            abandoned: &[],
            is_answer: true,
            app_limited: false,
        });
    }
    assert!(due.is_some());
    assert_eq!(control.poll_timeout(), due);
    assert_eq!(control.refusals().unknown, 2 * 49);
}

/// CE on a packet counts once, so marks cannot exceed what was sent, and marks reduce.
#[test]
fn repeated_marks_reduce_no_further() {
    let rate_after = |repetitions: usize| {
        let mut control = Prague::new(PragueConfig::default(), Instant::ZERO);
        let mut now = Instant::ZERO;
        for round in 0..400u64 {
            now += Duration::from_millis(25);
            let numbers = round * 100..round * 100 + 100;
            numbers.clone().for_each(|number| {
                control.handle_sent(now - Duration::from_millis(20), number, ByteSize(1200));
            });
            let ecn = if round % 20 == 19 { Ecn::Ce } else { Ecn::Ect1 };
            let acked: Vec<Acked> = numbers.map(|n| Acked { ecn, ..claim(n) }).collect();
            for _ in 0..repetitions {
                control.handle_feedback(&Feedback {
                    now,
                    reported: now,
                    acked: &acked,
                    lost: &[],
                    abandoned: &[],
                    is_answer: true,
                    app_limited: false,
                });
            }
        }
        (control.target(), control.stats().alpha.to_bits())
    };
    assert_eq!(rate_after(1), rate_after(5));
}
