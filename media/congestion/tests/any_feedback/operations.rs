//! Sequences of packets, reports and timeouts for a controller.

use hawser_congestion::{Acked, Bounds, Feedback, RateControl};
use hawser_units::{ByteSize, Ecn, Instant};
use proptest::prelude::*;
use std::time::Duration;

#[derive(Debug, Clone)]
pub(crate) enum Operation {
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

pub(crate) fn ecn() -> impl Strategy<Value = Ecn> {
    (0u8..4).prop_map(Ecn::from_octet)
}

fn held() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0u64..30_000_000).prop_map(Duration::from_nanos),
        any::<u64>().prop_map(Duration::from_nanos),
        Just(Duration::MAX),
    ]
}

pub(crate) fn number() -> impl Strategy<Value = u64> {
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

pub(crate) fn operation() -> impl Strategy<Value = Operation> {
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

pub(crate) fn apply(control: &mut impl RateControl, bounds: &Bounds, operations: &[Operation]) {
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
