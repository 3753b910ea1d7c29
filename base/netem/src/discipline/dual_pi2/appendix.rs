//! A plain reading of the pseudo-code of RFC 9332, appendix A, in its names, and the comparison with
//! [`DualPi2`](super::DualPi2).

use crate::config::{self, Decisions, L4sAqm, Scheduler};
use crate::discipline::Waiting;
use crate::discipline::dual_pi2::DualPi2;
use crate::discipline::operations::{Operation, operations, packet};
use crate::random::{Draws, Stream};
use hawser_units::{ByteSize, Ecn, Instant};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;

const SEED: u64 = 3;

struct Q {
    pkts: VecDeque<Waiting<()>>,
    count: f64,
    rand: Draws,
}

/// The state of the appendix, with the default parameters.
struct Appendix {
    random: bool,
    tshift: Option<f64>,
    step: bool,
    lq: Q,
    cq: Q,
    credit: f64,
    p: f64,
    prevq: f64,
    next_update: Option<Instant>,
    drops: u64,
}

fn seconds(now: Instant, then: Instant) -> f64 {
    now.saturating_since(then).as_secs_f64()
}

fn time(q: &Q, now: Instant) -> f64 {
    q.pkts.front().map_or(0.0, |pkt| seconds(now, pkt.arrived))
}

fn recur(random: bool, q: &mut Q, likelihood: f64) -> bool {
    if random {
        return q.rand.draw() < likelihood;
    }
    q.count += likelihood;
    if q.count > 1.0 {
        q.count -= 1.0;
        return true;
    }
    false
}

impl Appendix {
    fn new(config: &config::DualPi2) -> Appendix {
        let q = |number| Q {
            pkts: VecDeque::new(),
            count: 0.0,
            rand: Draws::new(SEED, Stream::Discipline, number),
        };
        Appendix {
            random: config.decisions == Decisions::Random,
            tshift: match config.scheduler {
                Scheduler::Wrr(_) => None,
                Scheduler::TimeShift(shift) => Some(shift.as_secs_f64()),
            },
            step: matches!(config.l4s, L4sAqm::Step(_)),
            lq: q(0),
            cq: q(1),
            credit: 1500.0 * (0.1 - 0.9),
            p: 0.0,
            prevq: 0.0,
            next_update: None,
            drops: 0,
        }
    }

    fn p_cl(&self) -> f64 {
        2.0 * self.p
    }

    fn p_c(&self) -> f64 {
        self.p * self.p
    }

    fn dualpi2_update(&mut self, now: Instant) {
        let curq = f64::max(time(&self.cq, now), time(&self.lq, now));
        self.p = self.p + 0.16 * (curq - 0.015) + 3.2 * (curq - self.prevq);
        self.p = self.p.clamp(0.0, 1.0);
        self.prevq = curq;
    }

    fn every_tupdate(&mut self, now: Instant) {
        let tupdate = Duration::from_millis(16);
        let mut next = self.next_update.unwrap_or(now + tupdate);
        while next <= now {
            self.dualpi2_update(next);
            next += tupdate;
        }
        self.next_update = Some(next);
    }

    fn dualpi2_enqueue(&mut self, pkt: Waiting<()>) {
        self.every_tupdate(pkt.arrived);
        if pkt.ecn.bits() % 2 == 1 {
            self.lq.pkts.push_back(pkt);
        } else {
            self.cq.pkts.push_back(pkt);
        }
    }

    fn scheduler_is_lq(&self, now: Instant) -> bool {
        if self.lq.pkts.is_empty() || self.cq.pkts.is_empty() {
            return !self.lq.pkts.is_empty();
        }
        match self.tshift {
            Some(tshift) => time(&self.lq, now) + tshift >= time(&self.cq, now),
            None => self.credit <= 0.0,
        }
    }

    fn laqm(&self, lq_time: f64) -> f64 {
        if self.step {
            return if lq_time >= 0.001 { 1.0 } else { 0.0 };
        }
        if lq_time >= 0.0012 {
            1.0
        } else if lq_time > 0.0008 {
            (lq_time - 0.0008) / 0.0004
        } else {
            0.0
        }
    }

    fn dualpi2_dequeue(&mut self, now: Instant) -> Option<(u64, bool)> {
        self.every_tupdate(now);
        while !self.lq.pkts.is_empty() || !self.cq.pkts.is_empty() {
            let contended = !self.lq.pkts.is_empty() && !self.cq.pkts.is_empty();
            let mut mark = false;
            let pkt;
            if self.scheduler_is_lq(now) {
                pkt = self.lq.pkts.pop_front()?;
                if self.p_cl() < 1.0 {
                    let native = if self.lq.pkts.len() > 1 {
                        self.laqm(seconds(now, pkt.arrived))
                    } else {
                        0.0
                    };
                    let p_l = f64::max(native, self.p_cl());
                    mark = recur(self.random, &mut self.lq, p_l);
                } else {
                    let p_c = self.p_c();
                    if recur(self.random, &mut self.lq, p_c) {
                        self.drops += 1;
                        continue;
                    }
                    let p_cl = f64::min(self.p_cl(), 1.0);
                    if recur(self.random, &mut self.lq, p_cl) {
                        mark = true;
                    }
                }
                self.credit += if contended {
                    0.1 * pkt.size.0 as f64
                } else {
                    0.0
                };
            } else {
                pkt = self.cq.pkts.pop_front()?;
                let p_c = self.p_c();
                if recur(self.random, &mut self.cq, p_c) {
                    if pkt.ecn == Ecn::NotEct || p_c >= 0.25 {
                        self.drops += 1;
                        continue;
                    }
                    mark = true;
                }
                self.credit += if contended {
                    (0.1 - 1.0) * pkt.size.0 as f64
                } else {
                    0.0
                };
            }
            return Some((pkt.number, mark));
        }
        self.credit = 1500.0 * (2.0 * 0.1 - 1.0);
        None
    }
}

fn configs() -> impl Strategy<Value = config::DualPi2> {
    (prop::bool::ANY, prop::bool::ANY, prop::bool::ANY).prop_map(|(random, shifted, step)| {
        let defaults = config::DualPi2::default();
        config::DualPi2 {
            decisions: if random {
                Decisions::Random
            } else {
                Decisions::Recur
            },
            scheduler: if shifted {
                Scheduler::TimeShift(Duration::from_millis(50))
            } else {
                defaults.scheduler
            },
            l4s: if step {
                L4sAqm::Step(Duration::from_millis(1))
            } else {
                defaults.l4s
            },
            ..defaults
        }
    })
}

/// Compares the two after each operation, and returns the drops and the marks.
fn compare(config: config::DualPi2, operations: &[Operation]) -> (u64, u64) {
    let (mut queues, mut appendix) = (DualPi2::new(config, SEED), Appendix::new(&config));
    let (mut drops, mut marks) = (0, 0);
    for operation in operations {
        match operation {
            Operation::Push(packet) => {
                queues.push(packet.arrived, packet.clone());
                appendix.dualpi2_enqueue(packet.clone());
            }
            Operation::Pop(now) => {
                let popped = queues.pop(*now, &mut drops);
                let popped = popped.map(|packet| (packet.number, packet.is_marked));
                assert_eq!(popped, appendix.dualpi2_dequeue(*now));
                marks += u64::from(popped.is_some_and(|(_, is_marked)| is_marked));
            }
        }
        assert_eq!(drops, appendix.drops);
        assert_eq!(queues.pi2.classic(), appendix.p_c());
        assert_eq!(queues.pi2.coupled(), appendix.p_cl().min(1.0));
    }
    (drops, marks)
}

proptest! {
    #[test]
    fn each_decision_is_the_one_of_the_appendix(
        config in configs(),
        operations in prop_oneof![
            operations(Duration::from_micros(200)),
            operations(Duration::from_millis(2)),
            operations(Duration::from_millis(20)),
        ],
    ) {
        compare(config, &operations);
    }
}

#[test]
fn an_overload_reaches_every_branch_of_the_appendix() {
    let at = |us| Instant::ZERO + Duration::from_micros(us);
    // Each class sends at the rate of the link.
    let operations: Vec<Operation> = (0..60_000u64)
        .flat_map(|number| {
            let ecn = Ecn::from_octet((number % 4) as u8);
            let size = ByteSize(1500).0;
            [
                Operation::Push(packet(2 * number, at(100 * number), Ecn::Ect1, size)),
                Operation::Push(packet(2 * number + 1, at(100 * number), ecn, size)),
                Operation::Pop(at(100 * number)),
            ]
        })
        .collect();
    for decisions in [Decisions::Recur, Decisions::Random] {
        let config = config::DualPi2 {
            decisions,
            ..config::DualPi2::default()
        };
        let (drops, marks) = compare(config, &operations);
        assert!(drops > 10_000 && marks > 10_000, "{drops} {marks}");
    }
}
