use super::history::Backoff;
use super::protection::Protection;
use super::silence::Silence;
use hawser_units::{Instant, PathSet};
use std::collections::BTreeMap;
use std::time::Duration;

/// Observations of a set that are older than this say nothing about it.
const FRESH: Duration = Duration::from_secs(30);

/// A set that met the aim for this long has proved itself: its failures are forgotten.
const PROVED: Duration = Duration::from_secs(60);

/// The policies that were really in force, and what was observed of them.
///
/// Copies on several paths may harm each other, and a path that carries probes may not carry the
/// flow. Both show only while a set is in force.
#[derive(Debug, Clone)]
pub(super) struct Trials {
    sets: BTreeMap<u8, Trial>,
    /// The range of epochs of the policies in force that had the same paths.
    epochs: (u8, u8),
    /// The set in force, and the arrival time of the first packet that was sent over it.
    next: Option<(PathSet, Option<Instant>)>,
    /// The set whose packets arrive, and since when: that in force, or the one before.
    arriving: Option<(PathSet, Instant)>,
    has_failed: bool,
    /// The set on which the flow stays because none meets the aim.
    settled: Option<Settled>,
    settling: Backoff,
    /// Candidates tried since the flow settled.
    searched: u32,
    /// The path that copies are sent over to find out whether it suffices alone.
    pub(super) verified: Option<PathSet>,
    pub(super) silence: Silence,
    pub(super) protection: Protection,
}

#[derive(Debug, Clone, Copy, Default)]
struct Trial {
    /// The share of packets that were damaged on the set, and when that was observed.
    observed: Option<(Rate, Instant)>,
    backoff: Backoff,
}

/// The shares of packets that were lost and late.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rate {
    pub(super) lost: f64,
    pub(super) late: f64,
}

impl Rate {
    pub(super) fn total(self) -> f64 {
        self.lost + self.late
    }
}

#[derive(Debug, Clone, Copy)]
struct Settled {
    set: PathSet,
    rate: f64,
}

impl Trials {
    pub(super) fn new(silent_after: Duration) -> Self {
        Trials {
            sets: BTreeMap::new(),
            epochs: (0, 0),
            next: None,
            arriving: None,
            has_failed: false,
            settled: None,
            settling: Backoff::default(),
            searched: 0,
            verified: None,
            silence: Silence::new(silent_after),
            protection: Protection::default(),
        }
    }

    /// Notes that a policy came into force. Its packets are told by the epoch, and arrive later.
    pub(super) fn begin(&mut self, epoch: u32, set: PathSet) {
        let epoch = epoch as u8;
        if self.next.is_some_and(|(next, _)| next == set) {
            self.epochs.1 = epoch;
            return;
        }
        self.epochs = (epoch, epoch);
        self.next = Some((set, None));
        self.has_failed = false;
    }

    /// Returns the set whose packets arrive, and the arrival time of the first one, if that set is
    /// left with a packet of this epoch.
    pub(super) fn is_left_with(&self, epoch: u8) -> bool {
        let (first, last) = self.epochs;
        let is_of_it = epoch.wrapping_sub(first) <= last.wrapping_sub(first);
        is_of_it && self.next.is_some_and(|(_, from)| from.is_none())
    }

    /// Notes the first packet of the policy in force.
    pub(super) fn enter(&mut self, at: Instant) {
        if let Some((set, from)) = &mut self.next {
            *from = Some(at);
            self.arriving = Some((*set, at));
        }
    }

    /// Returns the set whose packets arrive, and since when.
    pub(super) fn arriving(&self) -> Option<(PathSet, Instant)> {
        self.arriving
    }

    /// Returns the arrival time of the first packet of the policy in force, once there is one.
    pub(super) fn from(&self) -> Option<Instant> {
        self.next.and_then(|(_, from)| from)
    }

    /// Notes the packets that were damaged while `set` was in force.
    pub(super) fn observe(&mut self, set: PathSet, rate: Rate, now: Instant) {
        self.sets.entry(set.bits()).or_default().observed = Some((rate, now));
    }

    /// Returns the sets that were recently in force, with the packets that were damaged.
    pub(super) fn all_observed(&self, now: Instant) -> impl Iterator<Item = (PathSet, Rate)> + '_ {
        self.sets.iter().filter_map(move |(bits, trial)| {
            let (rate, at) = trial.observed?;
            let is_fresh = now.saturating_since(at) < FRESH;
            is_fresh.then_some((PathSet::from_bits(*bits), rate))
        })
    }

    fn held(&self, now: Instant) -> Duration {
        let from = self.from();
        from.map_or(Duration::ZERO, |from| now.saturating_since(from))
    }

    /// Notes that the set in force fails, once for each time that it came into force.
    pub(super) fn fail_in_force(&mut self, set: PathSet, now: Instant) {
        let held = self.held(now);
        if !std::mem::replace(&mut self.has_failed, true) {
            self.fail(set, now, held);
        }
    }

    /// Notes that a set failed after `held`: it is not tried again for a time that doubles.
    pub(super) fn fail(&mut self, set: PathSet, now: Instant, held: Duration) {
        let trial = self.sets.entry(set.bits()).or_default();
        trial.backoff.fail_again(now, held >= PROVED);
    }

    /// Returns whether a set has failed and is not to be tried again yet.
    pub(super) fn is_blocked(&self, set: PathSet, now: Instant) -> bool {
        let trial = self.sets.get(&set.bits());
        trial.is_some_and(|trial| !trial.backoff.is_over(now))
    }

    /// Returns for how long a set that failed is not tried again.
    pub(super) fn blocked_for(&self, set: PathSet, now: Instant) -> Duration {
        let trial = self.sets.get(&set.bits());
        trial.map_or(Duration::ZERO, |trial| trial.backoff.left(now))
    }

    /// Returns how often a set has failed.
    pub(super) fn failures(&self, set: PathSet) -> u32 {
        let trial = self.sets.get(&set.bits());
        trial.map_or(0, |trial| trial.backoff.failures)
    }

    /// Stays on a set although it fails, because no other is better.
    pub(super) fn settle(&mut self, set: PathSet, rate: f64, now: Instant) {
        self.settled = Some(Settled { set, rate });
        self.searched = 0;
        self.settling.fail_again(now, false);
    }

    /// Returns whether the flow stays on the set in force although it fails at this rate.
    pub(super) fn is_settled(&self, set: PathSet, rate: f64, now: Instant) -> bool {
        let is_known = |settled: &Settled| settled.set == set && rate < settled.rate * 2.0;
        self.settled.as_ref().is_some_and(is_known) && !self.settling.is_over(now)
    }

    /// Returns whether another candidate may be tried: all at first, then one each time that the
    /// flow has stayed on the best one for long enough.
    pub(super) fn may_search(&self) -> bool {
        self.settled.is_none() || self.searched == 0
    }

    pub(super) fn note_search(&mut self) {
        self.searched += 1;
    }

    /// Returns for how long the flow stays on the set on which it has settled.
    pub(super) fn settled_for(&self, now: Instant) -> Duration {
        self.settling.left(now)
    }

    /// Notes that the policy in force meets the aim.
    pub(super) fn meet(&mut self, now: Instant) {
        let held = self.held(now);
        if held >= PROVED / 4 {
            self.settled = None;
            self.settling = Backoff::default();
            self.searched = 0;
        }
    }

    /// Lets other candidates be tried, because a path has become useful.
    pub(super) fn unsettle(&mut self) {
        self.settled = None;
        self.searched = 0;
    }

    /// Forgets the failures of sets with a path that has changed.
    pub(super) fn release(&mut self, path: PathSet) {
        for (bits, trial) in &mut self.sets {
            if !PathSet::from_bits(*bits).intersection(path).is_empty() {
                *trial = Trial::default();
            }
        }
        self.settled = None;
        self.settling = Backoff::default();
        self.searched = 0;
    }
}
