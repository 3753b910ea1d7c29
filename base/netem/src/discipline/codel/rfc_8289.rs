//! A plain reading of the pseudo-code of RFC 8289, section 5, in its names, and the comparison with
//! [`Codel`](super::Codel).

use crate::config::CodelSettings;
use crate::discipline::Waiting;
use crate::discipline::codel::Codel;
use crate::discipline::fifo::Fifo;
use crate::discipline::operations::{Operation, operations, packet};
use hawser_units::{ByteSize, Ecn, Instant};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;

/// Times are nanoseconds, as the differences of the RFC may be negative.
struct CoDelQueue {
    target: i64,
    interval: i64,
    maxpacket: u64,
    pkts: VecDeque<Waiting<()>>,
    first_above_time: i64,
    drop_next: i64,
    count: i64,
    lastcount: i64,
    dropping: bool,
    drops: Vec<u64>,
}

fn nanos(at: Instant) -> i64 {
    at.as_nanos() as i64
}

impl CoDelQueue {
    fn bytes(&self) -> u64 {
        self.pkts.iter().map(|pkt| pkt.size.0).sum()
    }

    fn control_law(&self, t: i64, count: i64) -> i64 {
        let interval = self.interval as f64 / 1e9 / (count as f64).sqrt();
        t + Duration::from_secs_f64(interval).as_nanos() as i64
    }

    fn dodequeue(&mut self, now: i64) -> (Option<Waiting<()>>, bool) {
        let mut ok_to_drop = false;
        let p = self.pkts.pop_front();
        match &p {
            None => self.first_above_time = 0,
            Some(p) => {
                let sojourn_time = now - nanos(p.arrived);
                if sojourn_time < self.target || self.bytes() <= self.maxpacket {
                    self.first_above_time = 0;
                } else if self.first_above_time == 0 {
                    self.first_above_time = now + self.interval;
                } else if now >= self.first_above_time {
                    ok_to_drop = true;
                }
            }
        }
        (p, ok_to_drop)
    }

    fn dequeue(&mut self, now: i64) -> Option<u64> {
        let (mut p, mut ok_to_drop) = self.dodequeue(now);
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            while now >= self.drop_next && self.dropping {
                self.drops.push(p?.number);
                self.count += 1;
                (p, ok_to_drop) = self.dodequeue(now);
                if !ok_to_drop {
                    self.dropping = false;
                } else {
                    self.drop_next = self.control_law(self.drop_next, self.count);
                }
            }
        } else if ok_to_drop {
            self.drops.push(p?.number);
            (p, _) = self.dodequeue(now);
            self.dropping = true;
            let delta = self.count - self.lastcount;
            self.count = 1;
            if delta > 1 && now - self.drop_next < 16 * self.interval {
                self.count = delta;
            }
            self.drop_next = self.control_law(now, self.count);
            self.lastcount = self.count;
        }
        p.map(|p| p.number)
    }
}

fn settings(ecn: bool) -> CodelSettings {
    CodelSettings {
        target: Duration::from_millis(5),
        interval: Duration::from_millis(100),
        mtu: ByteSize(1514),
        ecn,
    }
}

/// Compares the two after each operation, and returns the drops.
fn compare(operations: &[Operation]) -> u64 {
    let (mut codel, mut queue, mut dropped) = (Codel::new(settings(false)), Fifo::default(), 0);
    let mut rfc = CoDelQueue {
        target: 5_000_000,
        interval: 100_000_000,
        maxpacket: 1514,
        pkts: VecDeque::new(),
        first_above_time: 0,
        drop_next: 0,
        count: 0,
        lastcount: 0,
        dropping: false,
        drops: Vec::new(),
    };
    for operation in operations {
        match operation {
            Operation::Push(packet) => {
                queue.push(packet.clone());
                rfc.pkts.push_back(packet.clone());
            }
            Operation::Pop(now) => {
                let popped = codel.pop(*now, &mut queue, &mut dropped);
                let expected = rfc.dequeue(nanos(*now));
                assert_eq!(popped.map(|packet| packet.number), expected);
            }
        }
        assert_eq!(dropped, rfc.drops.len() as u64);
        let state = (
            codel.is_dropping,
            i64::from(codel.count),
            nanos(codel.drop_next),
        );
        assert_eq!(state, (rfc.dropping, rfc.count, rfc.drop_next));
    }
    dropped
}

/// Packets that arrive every `arrival_us`, while one leaves each millisecond; and then none, until
/// the queue is empty.
fn overload(arrival_us: u64, count: u64, ecn: Ecn) -> Vec<Operation> {
    let at = |us| Instant::ZERO + Duration::from_micros(us);
    let pushes = (0..count).map(|number| (arrival_us * number, Some(number)));
    let pops = (0..count).map(|number| (1000 * number, None));
    let mut all: Vec<_> = pushes.chain(pops).collect();
    all.sort();
    let operation = |(us, number): (u64, Option<u64>)| match number {
        Some(number) => Operation::Push(packet(number, at(us), ecn, 1500)),
        None => Operation::Pop(at(us)),
    };
    all.into_iter().map(operation).collect()
}

proptest! {
    #[test]
    fn each_decision_is_the_one_of_the_rfc(
        operations in prop_oneof![
            operations(Duration::from_millis(2)),
            operations(Duration::from_millis(20)),
            operations(Duration::from_millis(100)),
        ],
    ) {
        compare(&operations);
    }
}

#[test]
fn bursts_of_overload_reach_every_branch_of_the_rfc() {
    let first = overload(800, 3000, Ecn::NotEct);
    let second = overload(700, 3000, Ecn::NotEct);
    let later = Duration::from_millis(3200);
    let second = second.into_iter().map(|operation| match operation {
        Operation::Push(packet) => Operation::Push(Waiting {
            arrived: packet.arrived + later,
            ..packet
        }),
        Operation::Pop(now) => Operation::Pop(now + later),
    });
    let drops = compare(&first.into_iter().chain(second).collect::<Vec<_>>());
    assert!(drops > 50, "{drops}");
}

#[test]
fn drops_come_at_intervals_that_shrink_with_the_square_root() {
    let mut codel = Codel::new(settings(true));
    let (mut queue, mut dropped, mut marks) = (Fifo::default(), 0, Vec::new());
    for operation in overload(500, 3000, Ecn::Ect0) {
        match operation {
            Operation::Push(packet) => queue.push(packet),
            Operation::Pop(now) => {
                let packet = codel.pop(now, &mut queue, &mut dropped);
                marks.extend(packet.filter(|packet| packet.is_marked).map(|_| now));
            }
        }
    }
    assert_eq!(dropped, 0);
    // Packet 8 arrives at 4 ms and leaves at 9 ms: it has waited for the target of 5 ms. An interval
    // later the wait is too long.
    assert_eq!(marks[0], Instant::ZERO + Duration::from_millis(109));
    let mut due = marks[0];
    for (count, mark) in (1..).zip(&marks[1..20]) {
        due += Duration::from_secs_f64(0.1 / f64::from(count).sqrt());
        assert!(
            (due..due + Duration::from_millis(1)).contains(mark),
            "{mark:?}"
        );
    }
}
