//! Derives the proposed policy from the evidence.

use super::Evidence;
use super::bound::{lower_limit, upper_limit};
use super::history::USELESS_AFTER;
use super::window::{Damage, Damages};
use crate::judgement::Judgement;
use hawser_units::{PathId, PathSet, PolicyCode};
use std::cmp::Reverse;
use std::time::Duration;

/// Probes per second: enough to find out within half a second whether a path is useful.
const PROBES_PER_SECOND: f64 = 25.0;

/// Minimum number of packets per probed copy.
const PACKETS_PER_PROBE: u32 = 32;

/// The probing interval in packets while the packet rate is unknown.
const PROBE_EVERY_AT_FIRST: u32 = 64;

/// A path may help if this share of its last probes was useful.
pub(super) const MIN_HELP_RATIO: f64 = 0.5;

/// Upper bound on the minimum number of packets of a slot, for a low tolerance.
const MAX_SLOT_PACKETS: u64 = 100_000;

/// Minimum age of the evidence for removing paths. A flow that was just helped sends less at first,
/// and paths carry it that will not later.
pub(super) const SETTLING_TIME: Duration = Duration::from_secs(2);

/// One packet in this many takes another path in addition while the flow is damaged within the
/// tolerance.
const HEDGE_EVERY: u16 = 4;

/// A path may hedge if this share of its last probes was useful: it delivers packets that the
/// others lost, even late.
const MIN_HEDGE_RATIO: f64 = 0.25;

/// Hedging starts above this share of the tolerated damage...
const HEDGE_FROM: f64 = 0.1;

/// ...and ends below this share, which is approximately the limit that a window can show for a path
/// without damage.
const HEDGE_UNTIL: f64 = 0.5;

/// Minimum number of packets before the budget is enforced.
const MIN_BUDGET_PACKETS: u64 = 100;

impl Evidence {
    /// Proposes a policy, unless it is in force or was proposed recently.
    pub(super) fn evaluate(&mut self) {
        let is_pending = self.proposal.repeat_at().is_some_and(|due| self.now < due);
        if self.code.is_empty() || is_pending {
            return;
        }
        let damages = self.window.damages();
        let change = self
            .without_useless()
            .or_else(|| self.within_budget(&damages));
        if let Some(trials) = self.auto.as_mut().filter(|_| change.is_some()) {
            trials.fail_in_force(self.code, self.now);
        }
        let change = match change {
            None if self.auto.is_some() => self.choose(),
            None => self
                .with_help(&damages)
                .or_else(|| self.with_fewer(&damages)),
            change => change,
        };
        let (code, reason) = match change {
            Some((code, reason)) => (code, Some(reason)),
            None => (self.code, None),
        };
        let (probes, probe_every) = self
            .hedge(code, &damages)
            .unwrap_or_else(|| self.probing(code));
        let is_probed = probes == self.probes && is_about(probe_every, self.probe_every);
        let Some(reason) = reason.or_else(|| (!is_probed).then(|| "probing".to_owned())) else {
            self.proposal.withdraw();
            return;
        };
        let code = PolicyCode(code.bits());
        self.proposal.propose(
            Judgement {
                code,
                probes,
                probe_every,
                reason,
            },
            self.now,
        );
    }

    /// Returns the paths without those that are useless.
    fn without_useless(&self) -> Option<(PathSet, String)> {
        let useless = |path: &PathId| self.history[path.index()].useless;
        // Paths that are about to become useless are removed together with those that are.
        self.code
            .iter()
            .find(|path| useless(path) >= USELESS_AFTER)?;
        let leaving: PathSet = self
            .code
            .iter()
            .filter(|path| useless(path) >= USELESS_AFTER * 3 / 4)
            .collect();
        let mut left = self.code.difference(leaving);
        if left.is_empty() {
            left = self.code.iter().min_by_key(useless).into_iter().collect();
        }
        left = self.protected(left);
        if left.len() < 2
            && self.is_protected()
            && self.code.iter().any(|path| self.has_stopped(path))
        {
            // A path that was cut may be back before the other one fails.
            return None;
        }
        let reason = format!(
            "{} useless for {USELESS_AFTER} packets in a row",
            names(self.code.difference(left))
        );
        (left != self.code).then_some((left, reason))
    }

    /// Returns the best set within the budget, if the set in use exceeds it.
    fn within_budget(&self, damages: &Damages) -> Option<(PathSet, String)> {
        let affordable = self.affordable();
        if self.code.len() <= affordable {
            return None;
        }
        let known = subsets(self.code).filter(|paths| paths.len() == affordable);
        let known = known.map(|paths| (paths, damages.without_others(paths)));
        let best = known
            .filter(|(_, damage)| damage.packets >= MIN_BUDGET_PACKETS)
            .min_by(|(a, x), (b, y)| {
                x.rate()
                    .total_cmp(&y.rate())
                    .then(self.skew(*a).total_cmp(&self.skew(*b)))
            });
        best.map(|(paths, _)| (paths, "limited by the budget".to_owned()))
    }

    /// Returns the set with added paths whose probes show that they would have helped, if damage
    /// exceeds the tolerance.
    fn with_help(&self, damages: &Damages) -> Option<(PathSet, String)> {
        let damage = self.excess_damage(damages)?;
        let helped = self.helped(damage);
        let reason = format!(
            "{} damages {}; {} may help",
            names(self.code),
            self.percentage(damage),
            names(helped.difference(self.code))
        );
        (helped != self.code).then_some((helped, reason))
    }

    /// Returns the paths in use with as many others as may bring `damage` within the tolerance.
    pub(super) fn helped(&self, damage: f64) -> PathSet {
        let tolerated = self.tolerated(self.code);
        // If the paths in use have just failed, recent damage exceeds what the window shows.
        let works = self
            .code
            .iter()
            .any(|path| self.promise(path) >= MIN_HELP_RATIO);
        let mut remaining = if works { damage } else { 1.0 };
        let mut helped = self.code;
        for path in self.helpers() {
            if remaining <= tolerated {
                break;
            }
            if helped.len() >= self.affordable() {
                let Some(worst) = self.worse_than(path, helped) else {
                    break;
                };
                helped = helped.without(worst);
            }
            helped = helped.with(path);
            // Sixteen probes cannot distinguish a path that always helps from one that mostly does.
            remaining *= (1.0 - self.promise(path)).max(1.0 / 32.0);
        }
        helped
    }

    /// Returns the paths not in use that have recently helped, the most promising ones first.
    fn helpers(&self) -> Vec<PathId> {
        let backoff = |path: PathId| self.history[path.index()].backoff;
        let unused = self.paths.difference(self.code);
        let mut helpers: Vec<PathId> = unused
            .iter()
            .filter(|path| self.promise(*path) >= MIN_HELP_RATIO)
            .filter(|path| backoff(*path).is_over(self.now))
            .collect();
        helpers.sort_by(|a, b| {
            let failures = backoff(*a).failures.cmp(&backoff(*b).failures);
            failures.then(self.promise(*b).total_cmp(&self.promise(*a)))
        });
        helpers
    }

    /// Returns the share of the last copies over the path that were useful. In the mode `auto`, a path
    /// of which nothing is known may help as well as not.
    pub(super) fn promise(&self, path: PathId) -> f64 {
        let history = &self.history[path.index()];
        if self.auto.is_some() && !history.is_known(self.now) {
            return 0.5;
        }
        history.recent_use()
    }

    /// Returns the share of packets damaged over the paths in use, if it exceeds the tolerance.
    pub(super) fn excess_damage(&self, damages: &Damages) -> Option<f64> {
        let tolerated = self.tolerated(self.code);
        let is_too_much =
            |damage: &Damage| lower_limit(damage.damaged) > tolerated * damage.packets as f64;
        let observed = [damages.whole(self.code), damages.without_others(self.code)];
        observed
            .iter()
            .filter(|damage| is_too_much(damage))
            .map(Damage::rate)
            .reduce(f64::max)
    }

    /// Returns the smallest set of paths with which damage would stay within the tolerance.
    fn with_fewer(&self, damages: &Damages) -> Option<(PathSet, String)> {
        if self.window.span(self.now) < SETTLING_TIME {
            return None;
        }
        let upper = |paths: PathSet| {
            let damage = damages.without_others(paths);
            upper_limit(damage.damaged) / damage.packets as f64
        };
        let enough = subsets(self.code)
            .filter(|paths| !self.has_degraded(*paths) && upper(*paths) <= self.tolerated(*paths))
            .min_by(|a, b| {
                a.len()
                    .cmp(&b.len())
                    .then(self.skew(*a).total_cmp(&self.skew(*b)))
            })?;
        let reason = format!(
            "{} alone damages {} at most",
            names(enough),
            self.percentage(upper(enough))
        );
        Some((enough, reason))
    }

    /// Returns the path that one packet in [`HEDGE_EVERY`] takes in addition to `code`, if `code`
    /// is damaged within the tolerance. No other path is probed at that time: this one is the first
    /// candidate for help.
    fn hedge(&self, code: PathSet, damages: &Damages) -> Option<(PathSet, u16)> {
        if self.auto.is_some() || self.is_in_order(code) {
            return None;
        }
        let is_hedged = self.probe_every == HEDGE_EVERY && self.probes.len() == 1;
        let threshold = if is_hedged {
            MIN_HEDGE_RATIO / 2.0
        } else {
            MIN_HEDGE_RATIO
        };
        let history = |path: &PathId| &self.history[path.index()];
        let others = if is_hedged { self.probes } else { self.paths }.difference(code);
        let helpful = others
            .iter()
            .filter(|path| history(path).recent_use() >= threshold);
        let path = helpful.max_by_key(|path| (history(path).recent(), Reverse(path.index())))?;

        let damage = damages.whole(code);
        let tolerated = self.tolerated(code) * damage.packets as f64;
        let is_worth = if is_hedged {
            upper_limit(damage.damaged) > HEDGE_UNTIL * tolerated
        } else {
            lower_limit(damage.damaged) > HEDGE_FROM * tolerated
        };
        let cost = code.len() as f64 + 1.0 / f64::from(HEDGE_EVERY);
        let is_affordable = self.config.budget_ratio.is_none_or(|budget| cost <= budget);
        (is_worth && is_affordable).then(|| (PathSet::EMPTY.with(path), HEDGE_EVERY))
    }

    /// Returns the paths to probe if `code` is in use, and the probing interval in packets.
    pub(super) fn probing(&self, code: PathSet) -> (PathSet, u16) {
        let probes = self.paths.difference(code);
        let count = probes.len() as u32;
        let by_rate = match self.window.rate(self.now) {
            Some(rate) => power_of_two_below(rate / PROBES_PER_SECOND),
            None => PROBE_EVERY_AT_FIRST,
        };
        let left = self
            .config
            .budget_ratio
            .map_or(f64::INFINITY, |budget| budget - code.len() as f64);
        let by_budget = f64::from(count) / left.max(0.0);
        let every = by_rate
            .max(count * PACKETS_PER_PROBE)
            .max(by_budget.min(65536.0).ceil() as u32);
        match u16::try_from(every.next_power_of_two()) {
            Ok(every) if count > 0 => (probes, every),
            _ => (PathSet::EMPTY, 0),
        }
    }

    /// Returns the share of packets that may be damaged over `paths` alone.
    pub(super) fn tolerated(&self, paths: PathSet) -> f64 {
        let factor = if self.is_in_order(paths) {
            self.config.in_order_factor
        } else {
            1.0
        };
        let tolerated = |ratio: f64| (ratio * factor).clamp(0.0, 0.9);
        match self.packets_per_frame {
            Some(packets) => {
                1.0 - (1.0 - tolerated(self.config.tolerated_frames)).powf(1.0 / packets)
            }
            None => tolerated(self.config.tolerated_packets),
        }
    }

    /// Returns whether packets of a flow that takes `paths` do not overtake each other.
    fn is_in_order(&self, paths: PathSet) -> bool {
        paths.len() == 1 && paths.iter().all(|path| self.window.keeps_order(path))
    }

    /// Returns the minimum number of packets of a slot: enough for the window to show that damage
    /// is within the tolerance.
    pub(super) fn min_slot_packets(&self) -> u64 {
        // In the mode `auto`, a set that meets the aim only seemingly is found out when it is in force.
        let damaged = if self.auto.is_some() { 1.0 } else { 2.0 };
        ((damaged / self.tolerated(PathSet::EMPTY)) as u64).min(MAX_SLOT_PACKETS)
    }

    /// Returns the share of damaged frames, given the share of damaged packets.
    pub(super) fn frame_ratio(&self, packets: f64) -> f64 {
        self.packets_per_frame
            .map_or(packets, |n| 1.0 - (1.0 - packets.min(1.0)).powf(n))
    }

    pub(super) fn percentage(&self, packets: f64) -> String {
        let of = if self.packets_per_frame.is_some() {
            "frames"
        } else {
            "packets"
        };
        format!("{:.2} % of {of}", self.frame_ratio(packets) * 100.0)
    }

    pub(super) fn affordable(&self) -> usize {
        self.config
            .budget_ratio
            .map_or(usize::MAX, |budget| budget.max(1.0) as usize)
    }

    /// Returns the mean skew of the copies on the best of `paths`, in seconds.
    pub(super) fn skew(&self, paths: PathSet) -> f64 {
        paths
            .iter()
            .map(|path| self.history[path.index()].skew)
            .fold(f64::INFINITY, f64::min)
    }

    /// Returns the path in `paths` that was the least useful recently, if `path` was clearly more
    /// useful.
    pub(super) fn worse_than(&self, path: PathId, paths: PathSet) -> Option<PathId> {
        let recent = |path: PathId| self.history[path.index()].recent();
        paths
            .iter()
            .min_by_key(|path| recent(*path))
            .filter(|worst| recent(*worst) + 4 <= recent(path))
    }

    /// Returns whether the experience degraded with `paths` or a superset, and the backoff is not
    /// over.
    pub(super) fn has_degraded(&self, paths: PathSet) -> bool {
        self.degraded_sets.iter().any(|(set, backoff)| {
            paths.difference(PathSet::from_bits(*set)).is_empty() && !backoff.is_over(self.now)
        })
    }
}

impl Damage {
    pub(super) fn rate(&self) -> f64 {
        self.damaged as f64 / self.packets as f64
    }
}

/// Returns the non-empty proper subsets of `paths`.
pub(super) fn subsets(paths: PathSet) -> impl Iterator<Item = PathSet> {
    (1..paths.bits())
        .filter(move |bits| bits & !paths.bits() == 0)
        .map(PathSet::from_bits)
}

pub(super) fn names(paths: PathSet) -> String {
    paths
        .iter()
        .map(|path| path.to_string())
        .collect::<Vec<_>>()
        .join(" and ")
}

/// Returns whether two probing intervals are within a factor of two of each other.
fn is_about(every: u16, other: u16) -> bool {
    let ratio = f64::from(every) / f64::from(other);
    every == other || (0.5..=2.0).contains(&ratio)
}

fn power_of_two_below(number: f64) -> u32 {
    1 << number.clamp(1.0, 32768.0).log2() as u32
}
