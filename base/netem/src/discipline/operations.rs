//! Random operations on a queue, with which the tests compare it with a plain reading of its RFC.

use super::Waiting;
use hawser_units::{ByteSize, Ecn, Instant};
use proptest::prelude::*;
use std::time::Duration;

/// An operation at a time.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Push(Waiting<()>),
    Pop(Instant),
}

/// Returns operations in order of time. On average, as many packets leave as arrive.
pub(crate) fn operations(longest_gap: Duration) -> impl Strategy<Value = Vec<Operation>> {
    let nanos = u64::try_from(longest_gap.as_nanos()).expect("a short gap");
    let step = (0..nanos, 0u8..4, 60u64..1514, prop::bool::ANY);
    prop::collection::vec(step, 1..500).prop_map(|steps| {
        let mut at = Instant::ZERO;
        let mut operation = |(number, (gap, ecn, size, is_push)): (u64, (u64, u8, u64, bool))| {
            at += Duration::from_nanos(gap);
            if is_push {
                Operation::Push(packet(number, at, Ecn::from_octet(ecn), size))
            } else {
                Operation::Pop(at)
            }
        };
        (0..).zip(steps).map(&mut operation).collect()
    })
}

/// Returns a packet of the flow of its ECN field.
pub(crate) fn packet(number: u64, at: Instant, ecn: Ecn, size: u64) -> Waiting<()> {
    Waiting {
        number,
        arrived: at,
        size: ByteSize(size),
        ecn,
        flow: ecn.bits().into(),
        is_marked: false,
        payload: (),
    }
}
