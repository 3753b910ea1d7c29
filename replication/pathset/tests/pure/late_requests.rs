//! The trigger fires exactly when the configured number of requests in a row is late, however often
//! it is polled.

use hawser_pathset::{Trigger, TriggerConfig};
use hawser_units::Instant;
use proptest::prelude::*;
use std::time::Duration;

const LATE_AFTER: u64 = 150;

/// Returns when the last of the late requests was due, by counting.
fn expected(requests: &[u64], in_a_row: u64, until: u64) -> Option<u64> {
    let mut late = 0;
    for (n, request) in requests.iter().enumerate() {
        let next = requests.get(n + 1).copied().unwrap_or(until);
        for due in (1..)
            .map(|times| request + times * LATE_AFTER)
            .take_while(|due| *due < next)
        {
            late += 1;
            if late == in_a_row {
                return Some(due);
            }
        }
        if next - request <= LATE_AFTER {
            late = 0;
        }
    }
    None
}

proptest! {
    #[test]
    fn it_fires_when_the_last_late_request_is_due(
        gaps in proptest::collection::vec(prop_oneof![0..150u64, 140..170u64, 150..800u64], 1..40),
        timeouts in proptest::collection::vec(0..20_000u64, 0..30),
        in_a_row in 1..5u32,
    ) {
        let requests: Vec<u64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
        let until = requests.last().unwrap() + 1;
        let late_after = Duration::from_millis(LATE_AFTER);
        let mut trigger = Trigger::new(TriggerConfig { late_after, in_a_row, hold_off: Duration::ZERO });

        // A request precedes a timeout at the same time.
        let mut steps: Vec<(u64, bool)> = requests.iter().map(|at| (*at, false)).collect();
        steps.extend(timeouts.iter().filter(|at| **at < until).map(|at| (*at, true)));
        steps.sort_unstable();
        for (at, is_timeout) in steps {
            let at = Instant::ZERO + Duration::from_millis(at);
            if is_timeout { trigger.handle_timeout(at) } else { trigger.handle_request(at) }
        }
        trigger.handle_timeout(Instant::ZERO + Duration::from_millis(until));

        let fired = trigger.poll_event().map(|degraded| degraded.due);
        let expected = expected(&requests, in_a_row.into(), until);
        prop_assert_eq!(fired, expected.map(|due| Instant::ZERO + Duration::from_millis(due)));
    }
}
