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
            Operation::Send { packets } => {
                arrived.extend(burst(&mut next, packets).flat_map(|n| [n, n]))
            }
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

/// A tagged packet as it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tagged {
    /// Its number.
    pub sequence: u64,
    /// The sender's clock when it was sent, microseconds of 48 bits.
    pub sent_micros: u64,
    /// The receiver's clock when it arrives, microseconds.
    pub now_micros: u64,
}

/// The same traffic from a sender whose sessions start ever higher: a session that is to start at a number starts that much,
/// as far as 2^40, after the one before. Its clock jumps ahead by as little as a machine's does that was away for hours. `clock` is what it
/// shows at first.
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
        .for_each(|operation| timed.play(*operation));
    timed.arrived
}

/// The receiver's clock at first.
const NOW: u64 = 1_000_000;

/// Between two packets, microseconds.
const GAP: u64 = 50;

struct Timed {
    next: u64,
    clock: u64,
    now: u64,
    /// Number and clock at the end of the session before.
    ended: (u64, u64),
    arrived: Vec<Tagged>,
}

impl Timed {
    fn play(&mut self, operation: Operation) {
        const LONGEST: u64 = 1 << 35;
        match operation {
            Operation::Send { packets } => self
                .burst(packets)
                .for_each(|sent| self.arrive(&[sent, sent])),
            Operation::Lose { packets } => {
                self.burst(packets).for_each(|sent| self.arrive(&[sent]))
            }
            Operation::Reorder { packets, seed } => {
                let mut deck: Vec<_> = self.burst(packets).flat_map(|sent| [sent, sent]).collect();
                shuffle(&mut deck, seed);
                self.arrive(&deck);
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

/// The packet that was sent `packets` before the next one.
fn before((next, clock): (u64, u64), packets: u64) -> (u64, u64) {
    (
        next.wrapping_sub(packets),
        clock.wrapping_sub((packets - 1).saturating_mul(GAP)),
    )
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
fn shuffle<T>(deck: &mut [T], mut seed: u64) {
    for last in (1..deck.len()).rev() {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        deck.swap(last, (seed >> 33) as usize % (last + 1));
    }
}
