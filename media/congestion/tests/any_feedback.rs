//! Any sequence of packets, reports and timeouts, true or not, leaves rates within their bounds and
//! windows positive.

use hawser_congestion::{
    Acked, Bounds, Feedback, PaperConfig, PaperL4s, Prague, PragueConfig, RateControl, bulk,
};
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use proptest::prelude::*;
use std::time::Duration;

#[derive(Debug, Clone)]
enum Operation {
    Advance(u64),
    Send {
        count: u64,
        skip: u64,
        size: u64,
    },
    Report {
        acked: Vec<Acked>,
        lost: Vec<u64>,
        app_limited: bool,
        back: u64,
    },
    Timeout,
}

fn ecn() -> impl Strategy<Value = Ecn> {
    (0u8..4).prop_map(Ecn::from_octet)
}

fn held() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0u64..30_000_000).prop_map(Duration::from_nanos),
        any::<u64>().prop_map(Duration::from_nanos),
        Just(Duration::MAX),
    ]
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..400, any::<u64>()]
}

fn acked() -> impl Strategy<Value = Acked> {
    (number(), held(), ecn()).prop_map(|(number, held, ecn)| Acked { number, held, ecn })
}

/// Reports of a block of packets that were sent, as a receiver that lies only a little would make.
fn block() -> impl Strategy<Value = Vec<Acked>> {
    (0u64..300, 1u64..60, ecn(), 0u64..10_000_000).prop_map(|(first, count, ecn, held)| {
        let acked = |number| Acked {
            number,
            held: Duration::from_nanos(held),
            ecn,
        };
        (first..first + count).map(acked).collect()
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let acked = prop_oneof![prop::collection::vec(acked(), 0..20), block()];
    let lost = prop::collection::vec(number(), 0..8);
    let back = prop_oneof![9 => Just(0u64), 1 => any::<u64>()];
    let report = (acked, lost, any::<bool>(), back).prop_map(|(acked, lost, app_limited, back)| {
        Operation::Report {
            acked,
            lost,
            app_limited,
            back,
        }
    });
    let size = prop_oneof![9 => 0u64..1500, 1 => any::<u64>()];
    let skip = prop_oneof![9 => Just(1u64), 1 => 0u64..1 << 60];
    prop_oneof![
        (0u64..100_000_000).prop_map(Operation::Advance),
        (1u64..60, skip, size).prop_map(|(count, skip, size)| Operation::Send {
            count,
            skip,
            size
        }),
        report,
        Just(Operation::Timeout),
    ]
}

fn assert_sane(control: &impl RateControl, bounds: &Bounds) {
    let target = control.target();
    assert!((bounds.minimum()..=bounds.maximum()).contains(&target));
    assert!(control.pacing_rate() >= target);
    assert!(control.pacing_rate().bps() <= 3 * bounds.maximum().bps());
    assert!(control.window() > ByteSize(0));
}

fn apply(control: &mut impl RateControl, bounds: &Bounds, operations: &[Operation]) {
    let mut now = Instant::ZERO;
    let mut next = 0u64;
    for operation in operations {
        match operation {
            Operation::Advance(nanos) => now += Duration::from_nanos(*nanos),
            Operation::Send { count, skip, size } => {
                for _ in 0..*count {
                    control.handle_sent(now, next, ByteSize(*size));
                    next = next.wrapping_add(*skip);
                }
            }
            Operation::Report {
                acked,
                lost,
                app_limited,
                back,
            } => {
                control.handle_feedback(&Feedback {
                    now: now - Duration::from_nanos(*back),
                    // The receiver's clock is anything.
                    reported: Instant::from_nanos(back.wrapping_mul(u64::MAX / 7)),
                    acked,
                    lost,
                    abandoned: &[],
                    is_answer: true,
                    app_limited: *app_limited,
                });
            }
            Operation::Timeout => {
                now = now.max(control.poll_timeout().unwrap_or(now));
                control.handle_timeout(now);
            }
        }
        assert_sane(control, bounds);
    }
}

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

    #[test]
    fn the_papers_controller_stays_within_its_bounds(
        operations in prop::collection::vec(operation(), 0..120),
    ) {
        let config = PaperConfig::default();
        apply(&mut PaperL4s::new(config, Instant::ZERO), &config.bounds, &operations);
    }

    #[test]
    fn bulk_senders_take_any_acknowledgement(
        acknowledgements in prop::collection::vec((number(), ecn(), 0u64..300_000_000), 0..200),
    ) {
        let mut prague = bulk::Sender::prague();
        let mut cubic = bulk::Sender::cubic();
        let mut now = Instant::ZERO;
        for (number, ecn, nanos) in acknowledgements {
            now += Duration::from_nanos(nanos);
            let acknowledgement = bulk::Acknowledgement { number, ecn };
            exercise(&mut prague, now, acknowledgement);
            exercise(&mut cubic, now, acknowledgement);
        }
    }
}

fn exercise<W: bulk::Window>(
    sender: &mut bulk::Sender<W>,
    now: Instant,
    acknowledgement: bulk::Acknowledgement,
) {
    sender.handle_timeout(now);
    while sender.poll_transmit(now).is_some() {}
    sender.handle_acknowledgement(now, acknowledgement);
    assert!(sender.window().segments() >= 1.0 && sender.window().segments().is_finite());
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
    // Of each round's packets 160 were not sent yet, three times.
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
