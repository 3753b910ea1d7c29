//! Guarantees of the window under random traffic.

use crate::operations::{Operation, arrivals, operation, start};
use hawser_dedup::{REMEMBERED, SLOT_BITS, SLOTS, Verdict, Window};
use proptest::prelude::*;
use std::collections::HashSet;

/// The number of sequence numbers that the window distinguishes.
const NUMBERS: u64 = 1 << 48;

const ROUND: u64 = SLOTS as u64 * SLOT_BITS;

/// Generates traffic of one session that stays close to its newest packet, as on any network.
fn ordinary() -> impl Strategy<Value = Operation> {
    operation().prop_filter_map("leaves the session", |operation| match operation {
        Operation::Restart { .. } | Operation::Straggle { .. } => None,
        Operation::Lag { packets, behind } => Some(Operation::Lag {
            packets,
            behind: behind % (2 * ROUND),
        }),
        Operation::Jump { packets } => Some(Operation::Jump {
            packets: packets % (4 * ROUND),
        }),
        other => Some(other),
    })
}

proptest! {
    #[test]
    fn a_first_copy_is_never_refused(
        start in start(),
        operations in proptest::collection::vec(operation(), 1..60),
    ) {
        let window = Window::new();
        let mut seen = HashSet::new();
        for sequence in arrivals(start, &operations) {
            let known = !seen.insert(sequence % NUMBERS);
            prop_assert!(window.observe(sequence).accepts() || known, "{sequence:#x}");
        }
    }

    #[test]
    fn no_session_is_refused_because_of_another(
        starts in proptest::collection::vec(start(), 2..9),
        operations in proptest::collection::vec(ordinary(), 1..20),
    ) {
        let window = Window::new();
        let mut former: Vec<u64> = Vec::new();
        for start in starts {
            let apart = |other: &u64| {
                let distance = start.wrapping_sub(*other) % NUMBERS;
                distance.min(NUMBERS - distance) > 1 << 26
            };
            if !former.iter().all(apart) {
                continue;
            }
            former.push(start);

            let mut seen = HashSet::new();
            for sequence in arrivals(start, &operations) {
                prop_assert!(window.observe(sequence).accepts() || seen.contains(&sequence), "{sequence:#x}");
                seen.insert(sequence);
            }
        }
    }

    #[test]
    fn a_recorded_number_is_refused_until_the_window_passes(
        start in start(),
        operations in proptest::collection::vec(ordinary(), 1..60),
    ) {
        let window = Window::new();
        let mut recorded = HashSet::new();
        // Positions are counted from the start, so that their order is clear although the numbers
        // wrap. A lag may reach below the start.
        let origin = 1 << 30;
        let mut newest = 0;
        for sequence in arrivals(start, &operations) {
            let position = sequence.wrapping_sub(start).wrapping_add(origin);
            newest = newest.max(position);
            let verdict = window.observe(sequence);
            if recorded.contains(&position) && newest - position <= REMEMBERED {
                prop_assert_eq!(verdict, Verdict::Duplicate, "{:#x}", sequence);
            }
            if matches!(verdict, Verdict::First | Verdict::Reset) {
                recorded.insert(position);
            }
        }
    }

    #[test]
    fn only_packets_older_than_the_window_are_late(
        start in start(),
        operations in proptest::collection::vec(ordinary(), 1..8),
    ) {
        let window = Window::new();
        let origin = 1 << 30;
        let mut newest = 0;
        for sequence in arrivals(start, &operations) {
            let position = sequence.wrapping_sub(start).wrapping_add(origin);
            newest = newest.max(position);
            let verdict = window.observe(sequence);
            prop_assert!(verdict != Verdict::Late || newest - position > REMEMBERED, "{sequence:#x}");
            prop_assert!(verdict != Verdict::Contended, "one thread cannot lose a race");
        }
    }
}

#[test]
fn a_path_that_lags_by_most_of_the_window_adds_nothing() {
    let window = Window::new();
    let start = u64::MAX - (1 << 21);
    for n in 0..1 << 22 {
        assert!(window.observe(start.wrapping_add(n)).accepts());
        if let Some(lagging) = n.checked_sub(REMEMBERED) {
            assert_eq!(
                window.observe(start.wrapping_add(lagging)),
                Verdict::Duplicate
            );
        }
    }
}

#[test]
fn a_late_only_copy_is_delivered() {
    let window = Window::new();
    for n in 1..200_000 {
        window.observe((1 << 40) + n);
    }
    assert_eq!(window.observe(1 << 40), Verdict::Late);
}
