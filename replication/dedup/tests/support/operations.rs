//! Random traffic for property tests: the sequence numbers of a flow from one sender over
//! misbehaving paths.
//!
//! [`arrivals`] executes a list of [`Operation`]s and returns the sequence numbers in the order in
//! which they reach the window. A failing list shrinks to a readable sequence that can be kept as a
//! named test.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by several programs of tests, each of which uses only a part"
)]

use proptest::prelude::*;

/// An operation on a flow with two paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Packets are sent and both copies of each arrive.
    Send {
        /// The number of packets.
        packets: u16,
    },
    /// Packets are sent and one copy of each is lost.
    Lose {
        /// The number of packets.
        packets: u16,
    },
    /// Packets are sent and both copies of each arrive, in random order.
    Reorder {
        /// The number of packets.
        packets: u16,
        /// The seed of the random order.
        seed: u64,
    },
    /// Copies of old packets arrive again, in order: a path that lags behind.
    Lag {
        /// The number of packets.
        packets: u16,
        /// The distance of the first of them from the newest packet, in sequence numbers.
        behind: u64,
    },
    /// Packets are sent and all copies of all of them are lost.
    Jump {
        /// The number of packets.
        packets: u64,
    },
    /// The sender restarts at a random number.
    Restart {
        /// The first number of the new session.
        start: u64,
    },
    /// Copies from the session before the last restart arrive.
    Straggle {
        /// The number of packets, counted back from the last one sent.
        packets: u16,
    },
}

/// Generates operations; frequent events are more likely.
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

/// Generates the first number of a session: any number, or one shortly before the sequence number,
/// the epoch or a slot wraps.
pub fn start() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => any::<u64>(),
        1 => magnitude(22).prop_map(|before| u64::MAX - before),
        1 => (any::<u16>(), magnitude(22))
            .prop_map(|(high, before)| (u64::from(high) << 48).wrapping_sub(before)),
        1 => (any::<u64>(), 0..64u64).prop_map(|(any, before)| (any & !0xffff).wrapping_sub(before)),
    ]
}

/// Returns the sequence numbers of a flow whose first session starts at `start`, in order of
/// arrival.
pub fn arrivals(start: u64, operations: &[Operation]) -> Vec<u64> {
    let mut next = start;
    let mut ended = start;
    let mut arrived = Vec::new();
    for operation in operations {
        match *operation {
            Operation::Send { packets } => {
                arrived.extend(burst(&mut next, packets).flat_map(|n| [n, n]))
            }
            Operation::Lose { packets } => arrived.extend(burst(&mut next, packets)),
            Operation::Reorder { packets, seed } => {
                let mut copies: Vec<u64> = burst(&mut next, packets).flat_map(|n| [n, n]).collect();
                shuffle(&mut copies, seed);
                arrived.extend(copies);
            }
            Operation::Lag { packets, behind } => {
                // A copy cannot arrive before it was sent.
                let packets = u64::from(packets).min(behind);
                arrived.extend((0..packets).map(|n| next.wrapping_sub(behind).wrapping_add(n)));
            }
            Operation::Jump { packets } => next = next.wrapping_add(packets),
            Operation::Restart { start } => {
                ended = next;
                next = start;
            }
            Operation::Straggle { packets } => {
                arrived.extend(
                    (1..=u64::from(packets))
                        .rev()
                        .map(|n| ended.wrapping_sub(n)),
                );
            }
        }
    }
    arrived
}

/// An arriving tagged packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tagged {
    /// The sequence number.
    pub sequence: u64,
    /// The sender's clock when it was sent, in microseconds; 48 bits.
    pub sent_micros: u64,
    /// The receiver's clock when it arrives, in microseconds.
    pub now_micros: u64,
}

/// Returns the same traffic from a sender whose sessions start at ever higher numbers: an
/// [`Operation::Restart`] advances the number by its `start` modulo 2^40. At a restart, the
/// sender's clock may advance less than the receiver's, like that of a machine that was off for
/// hours. `clock` is its initial value.
pub fn tagged_arrivals(start: u64, clock: u64, operations: &[Operation]) -> Vec<Tagged> {
    let mut timed = Timed {
        next: start,
        clock,
        now: NOW,
        ended: (start, clock),
        arrived: Vec::new(),
    };
    operations
        .iter()
        .for_each(|operation| timed.execute(*operation));
    timed.arrived
}

/// The initial value of the receiver's clock, in microseconds.
const NOW: u64 = 1_000_000;

/// The interval between two packets, in microseconds.
const GAP: u64 = 50;

struct Timed {
    next: u64,
    clock: u64,
    now: u64,
    /// Number and clock at the end of the previous session.
    ended: (u64, u64),
    arrived: Vec<Tagged>,
}

impl Timed {
    fn execute(&mut self, operation: Operation) {
        const LONGEST: u64 = 1 << 35;
        match operation {
            Operation::Send { packets } => self
                .burst(packets)
                .for_each(|sent| self.arrive(&[sent, sent])),
            Operation::Lose { packets } => {
                self.burst(packets).for_each(|sent| self.arrive(&[sent]))
            }
            Operation::Reorder { packets, seed } => {
                let mut copies: Vec<_> =
                    self.burst(packets).flat_map(|sent| [sent, sent]).collect();
                shuffle(&mut copies, seed);
                self.arrive(&copies);
            }
            Operation::Lag { packets, behind } => {
                let origin = (self.next, self.clock);
                let packets = u64::from(packets).min(behind);
                (0..packets).for_each(|n| self.arrive(&[before(origin, behind - n)]));
            }
            Operation::Jump { packets } => {
                self.next = self.next.wrapping_add(packets);
                let time = packets.saturating_mul(GAP).min(LONGEST);
                self.clock = self.clock.wrapping_add(time);
                self.now += time;
            }
            Operation::Restart { start } => {
                self.ended = (self.next, self.clock);
                self.next = self.next.wrapping_add(start % (1 << 40));
                self.clock = self.clock.wrapping_add(start % LONGEST);
                self.now += start.rotate_left(32) % LONGEST;
            }
            Operation::Straggle { packets } => {
                let ended = self.ended;
                (1..=u64::from(packets))
                    .rev()
                    .for_each(|n| self.arrive(&[before(ended, n)]));
            }
        }
    }

    fn burst(&mut self, packets: u16) -> std::vec::IntoIter<(u64, u64)> {
        let sent: Vec<_> = burst(&mut self.next, packets)
            .map(|number| {
                self.clock = self.clock.wrapping_add(GAP);
                (number, self.clock)
            })
            .collect();
        sent.into_iter()
    }

    fn arrive(&mut self, packets: &[(u64, u64)]) {
        for (sequence, sent) in packets {
            self.now += GAP / 2;
            let sent_micros = sent & ((1 << 48) - 1);
            self.arrived.push(Tagged {
                sequence: *sequence,
                sent_micros,
                now_micros: self.now,
            });
        }
    }
}

/// Returns the number and the clock of the packet sent `packets` before the next one.
fn before((next, clock): (u64, u64), packets: u64) -> (u64, u64) {
    (
        next.wrapping_sub(packets),
        clock.wrapping_sub((packets - 1).saturating_mul(GAP)),
    )
}

/// Generates a number of 1 to `bits` bits, each length equally likely.
fn magnitude(bits: u32) -> impl Strategy<Value = u64> {
    (0..bits, any::<u64>()).prop_map(|(bits, any)| 1 << bits | any & ((1 << bits) - 1))
}

fn burst(next: &mut u64, packets: u16) -> impl Iterator<Item = u64> + use<> {
    let first = *next;
    *next = first.wrapping_add(packets.into());
    (0..u64::from(packets)).map(move |n| first.wrapping_add(n))
}

/// Shuffles with Fisher-Yates and the generator of Knuth's MMIX.
fn shuffle<T>(copies: &mut [T], mut seed: u64) {
    for last in (1..copies.len()).rev() {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        copies.swap(last, (seed >> 33) as usize % (last + 1));
    }
}
