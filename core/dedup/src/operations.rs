//! Random traffic for property tests: what a sender and five misbehaving paths do to the numbers of a flow.
//!
//! [`arrivals`] plays a list of [`Operation`]s and gives the sequence numbers in the order in which they reach the
//! window. A failing list shrinks, and then reads like a story that can be kept as a test with a name.

use proptest::prelude::*;

/// Something that happens to a flow with two paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Packets are sent and both copies of each arrive.
    Send {
        /// How many.
        packets: u16,
    },
    /// Packets are sent and one copy of each is lost.
    Lose {
        /// How many.
        packets: u16,
    },
    /// Packets are sent and both copies arrive, in the order of a shuffled deck.
    Reorder {
        /// How many.
        packets: u16,
        /// Of the shuffle.
        seed: u64,
    },
    /// Copies of old packets arrive once more, in order: a path that lags behind.
    Lag {
        /// How many.
        packets: u16,
        /// How much older than the newest packet the first of them is.
        behind: u64,
    },
    /// Packets are sent and all copies of all of them are lost.
    Jump {
        /// How many.
        packets: u64,
    },
    /// The sender starts again, at a number that it draws.
    Restart {
        /// The first number of the new session.
        start: u64,
    },
    /// Copies from the session before the last restart arrive.
    Straggle {
        /// How many, counted back from the last one sent.
        packets: u16,
    },
}

/// Operations, most of them such as happen every second.
pub fn operation() -> impl Strategy<Value = Operation> {
    let burst = 1..=200u16;
    prop_oneof![
        6 => burst.clone().prop_map(|packets| Operation::Send { packets }),
        4 => burst.clone().prop_map(|packets| Operation::Lose { packets }),
        4 => (burst.clone(), any::<u64>()).prop_map(|(packets, seed)| Operation::Reorder { packets, seed }),
        6 => (burst.clone(), magnitude(22)).prop_map(|(packets, behind)| Operation::Lag { packets, behind }),
        4 => magnitude(40).prop_map(|packets| Operation::Jump { packets }),
        1 => start().prop_map(|start| Operation::Restart { start }),
        1 => burst.prop_map(|packets| Operation::Straggle { packets }),
    ]
}

/// Where a session may start: anywhere, or shortly before the sequence number, the epoch or a slot wraps.
pub fn start() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => any::<u64>(),
        1 => magnitude(22).prop_map(|before| u64::MAX - before),
        1 => (any::<u16>(), magnitude(22))
            .prop_map(|(high, before)| (u64::from(high) << 48).wrapping_sub(before)),
        1 => (any::<u64>(), 0..64u64).prop_map(|(any, before)| (any & !0xffff).wrapping_sub(before)),
    ]
}

/// The sequence numbers of a flow whose first session begins at `start`, as they arrive.
pub fn arrivals(start: u64, operations: &[Operation]) -> Vec<u64> {
    let mut next = start;
    let mut ended = start;
    let mut arrived = Vec::new();
    for operation in operations {
        match *operation {
            Operation::Send { packets } => arrived.extend(burst(&mut next, packets).flat_map(|n| [n, n])),
            Operation::Lose { packets } => arrived.extend(burst(&mut next, packets)),
            Operation::Reorder { packets, seed } => {
                let mut deck: Vec<u64> = burst(&mut next, packets).flat_map(|n| [n, n]).collect();
                shuffle(&mut deck, seed);
                arrived.extend(deck);
            }
            Operation::Lag { packets, behind } => {
                // Not ahead of the newest packet: a copy cannot arrive before it was sent.
                let packets = u64::from(packets).min(behind);
                arrived.extend((0..packets).map(|n| next.wrapping_sub(behind).wrapping_add(n)));
            }
            Operation::Jump { packets } => next = next.wrapping_add(packets),
            Operation::Restart { start } => {
                ended = next;
                next = start;
            }
            Operation::Straggle { packets } => {
                arrived.extend((1..=u64::from(packets)).rev().map(|n| ended.wrapping_sub(n)));
            }
        }
    }
    arrived
}

/// A number of 1 to `bits` binary digits, each length as likely as the others.
fn magnitude(bits: u32) -> impl Strategy<Value = u64> {
    (0..bits, any::<u64>()).prop_map(|(bits, any)| 1 << bits | any & ((1 << bits) - 1))
}

fn burst(next: &mut u64, packets: u16) -> impl Iterator<Item = u64> + use<> {
    let first = *next;
    *next = first.wrapping_add(packets.into());
    (0..u64::from(packets)).map(move |n| first.wrapping_add(n))
}

/// Fisher-Yates with the generator of Knuth's MMIX.
fn shuffle(deck: &mut [u64], mut seed: u64) {
    for last in (1..deck.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        deck.swap(last, (seed >> 33) as usize % (last + 1));
    }
}
