use super::Waiting;
use super::chance::Chance;
use super::fifo::Fifo;
use super::pi2::{L4S_MAX, Pi2};
use crate::config::{self, L4sAqm, Scheduler};
use crate::stats::Class;
use hawser_units::{ByteSize, Ecn, Instant};
use std::time::Duration;

/// The queues of DualPI2 (RFC 9332, appendix A). Names in the text of the RFC: `l4s` is `lq`,
/// `classic` is `cq`.
#[derive(Debug, Clone)]
pub(crate) struct DualPi2<P> {
    config: config::DualPi2,
    pi2: Pi2,
    l4s: Fifo<P>,
    classic: Fifo<P>,
    l4s_chance: Chance,
    classic_chance: Chance,
    /// The bytes that the L4S queue has sent beyond its share, weighted: above zero it is the turn of
    /// the Classic queue.
    credit: f64,
    last_pushed: Class,
}

/// The fate of a packet at the head of its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Pass,
    Mark,
    Drop,
}

impl<P> DualPi2<P> {
    pub(crate) fn new(config: config::DualPi2, seed: u64) -> Self {
        DualPi2 {
            pi2: Pi2::new(&config),
            l4s: Fifo::default(),
            classic: Fifo::default(),
            l4s_chance: Chance::new(config.decisions, seed, 0),
            classic_chance: Chance::new(config.decisions, seed, 1),
            credit: first_credit(config.scheduler),
            last_pushed: Class::Classic,
            config,
        }
    }

    pub(crate) fn push(&mut self, now: Instant, packet: Waiting<P>) {
        self.update(now);
        self.last_pushed = packet.class();
        self.queue(self.last_pushed).push(packet);
    }

    /// Takes the packet that leaves `now` (`dualpi2_dequeue()`).
    pub(crate) fn pop(&mut self, now: Instant, dropped: &mut u64) -> Option<Waiting<P>> {
        self.update(now);
        loop {
            let is_contended = !self.l4s.is_empty() && !self.classic.is_empty();
            let class = self.schedule(now)?;
            let mut packet = self.queue(class).pop()?;
            match self.judge(class, now, &packet) {
                Verdict::Drop => {
                    *dropped += 1;
                    continue;
                }
                verdict => packet.is_marked = verdict == Verdict::Mark,
            }
            if is_contended {
                self.charge(class, packet.size);
            }
            return Some(packet);
        }
    }

    /// Takes the packet that arrived last.
    pub(crate) fn shed(&mut self) -> Option<Waiting<P>> {
        self.queue(self.last_pushed).pop_last()
    }

    pub(crate) fn packets(&self) -> u64 {
        self.l4s.packets() + self.classic.packets()
    }

    pub(crate) fn bytes(&self) -> ByteSize {
        self.l4s.bytes() + self.classic.bytes()
    }

    fn queue(&mut self, class: Class) -> &mut Fifo<P> {
        match class {
            Class::L4s => &mut self.l4s,
            Class::Classic => &mut self.classic,
        }
    }

    fn update(&mut self, now: Instant) {
        let (l4s, classic) = (&self.l4s, &self.classic);
        self.pi2.run(now, |at| l4s.wait(at).max(classic.wait(at)));
    }

    /// Chooses the queue that sends next, or returns `None` if both are empty.
    fn schedule(&mut self, now: Instant) -> Option<Class> {
        match (self.l4s.is_empty(), self.classic.is_empty()) {
            (true, true) => {
                self.credit = first_credit(self.config.scheduler);
                None
            }
            (true, false) => Some(Class::Classic),
            (false, true) => Some(Class::L4s),
            (false, false) if self.is_turn_of_l4s(now) => Some(Class::L4s),
            (false, false) => Some(Class::Classic),
        }
    }

    fn is_turn_of_l4s(&self, now: Instant) -> bool {
        match self.config.scheduler {
            Scheduler::Wrr(_) => self.credit <= 0.0,
            Scheduler::TimeShift(shift) => {
                self.l4s.wait(now).saturating_add(shift) >= self.classic.wait(now)
            }
        }
    }

    fn charge(&mut self, class: Class, size: ByteSize) {
        if let Scheduler::Wrr(share) = self.config.scheduler {
            let weight = match class {
                Class::L4s => share.get(),
                Class::Classic => share.get() - 1.0,
            };
            self.credit += weight * size.0 as f64;
        }
    }

    fn judge(&mut self, class: Class, now: Instant, packet: &Waiting<P>) -> Verdict {
        match class {
            Class::L4s => self.judge_l4s(packet.waited(now)),
            Class::Classic => self.judge_classic(packet.ecn),
        }
    }

    fn judge_l4s(&mut self, waited: Duration) -> Verdict {
        let coupled = self.pi2.coupled();
        if coupled < L4S_MAX {
            let likelihood = self.native(waited).max(coupled);
            return verdict(self.l4s_chance.hits(likelihood), Verdict::Mark);
        }
        // The queues are overloaded: marks no longer suffice.
        if self.l4s_chance.hits(self.pi2.classic()) {
            return Verdict::Drop;
        }
        verdict(self.l4s_chance.hits(coupled), Verdict::Mark)
    }

    fn judge_classic(&mut self, ecn: Ecn) -> Verdict {
        let likelihood = self.pi2.classic();
        let is_markable = ecn.is_capable() && likelihood < self.pi2.classic_max();
        let signal = if is_markable {
            Verdict::Mark
        } else {
            Verdict::Drop
        };
        verdict(self.classic_chance.hits(likelihood), signal)
    }

    /// Returns the probability of the native AQM of the L4S queue (`laqm()`).
    fn native(&self, waited: Duration) -> f64 {
        if self.l4s.packets() <= self.config.l4s_min_packets.into() {
            return 0.0;
        }
        match self.config.l4s {
            L4sAqm::Step(threshold) => f64::from(waited >= threshold),
            L4sAqm::Ramp { min, range } if waited >= min.saturating_add(range) => 1.0,
            L4sAqm::Ramp { min, .. } if waited <= min => 0.0,
            L4sAqm::Ramp { min, range } => (waited - min).as_secs_f64() / range.as_secs_f64(),
        }
    }
}

fn verdict(hit: bool, signal: Verdict) -> Verdict {
    if hit { signal } else { Verdict::Pass }
}

/// Returns the credit of idle queues, which the L4S queue may use up before Classic gets its share.
fn first_credit(scheduler: Scheduler) -> f64 {
    const MTU: f64 = 1500.0;
    match scheduler {
        Scheduler::Wrr(share) => MTU * (2.0 * share.get() - 1.0),
        Scheduler::TimeShift(_) => 0.0,
    }
}

#[cfg(test)]
mod appendix;
