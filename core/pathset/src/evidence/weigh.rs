//! From what was seen to what should be done.

use super::Evidence;
use super::bound::{at_least, at_most};
use super::standing::USELESS_AFTER;
use super::window::{Damage, Damages};
use crate::judgement::Judgement;
use hawser_units::{PathId, PathSet, PolicyCode};
use std::cmp::Reverse;
use std::time::Duration;

/// Probes a second that tell within half a second whether a path is of use.
const PROBES_PER_SECOND: f64 = 25.0;

/// A probed path takes at most one packet in so many, unless it is the only one of few.
const PACKETS_PER_PROBE: u32 = 32;

/// One packet in so many is a probe while the rate of packets is unknown.
const PROBE_EVERY_AT_FIRST: u32 = 64;

/// A path may help that was of use to this share of its last probes.
const MAY_HELP: f64 = 0.5;

/// A slot waits for no more packets than this, however little is tolerated.
const MOST_OF_A_SLOT: u64 = 100_000;

/// A flow that was just helped is not yet what it will be: it sends less, and paths carry it that will not.
const SETTLING: Duration = Duration::from_secs(2);

/// One packet in so many takes another path as well while the flow is damaged, but not more than is tolerated.
const HEDGED: u16 = 4;

/// A path may hedge that was of use to this share of its last probes: what others lost it brings, however late it is.
const MAY_HEDGE: f64 = 0.25;

/// Damage is hedged against when it is more than this part of what is tolerated...
const WORTH_HEDGING: f64 = 0.1;

/// ...and until it is less than this part, which is about what a window can show of a path without any.
const NOT_WORTH_HEDGING: f64 = 0.5;

/// Packets that have to be seen before a budget decides.
const BUDGET_AFTER: u64 = 100;

impl Evidence {
    /// Says what the policy should be, unless it is in force or has just been said.
    pub(super) fn weigh(&mut self) {
        let is_waiting = self
            .proposal
            .again_at()
            .is_some_and(|again| self.now < again);
        if self.code.is_empty() || is_waiting {
            return;
        }
        let damages = self.window.damages();
        let change = self
            .without_useless()
            .or_else(|| self.within_budget(&damages))
            .or_else(|| self.with_help(&damages))
            .or_else(|| self.with_fewer(&damages));
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
        self.proposal.say(
            Judgement {
                code,
                probes,
                probe_every,
                reason,
            },
            self.now,
        );
    }

    /// Without the paths that are of no use at all.
    fn without_useless(&self) -> Option<(PathSet, String)> {
        let useless = |path: &PathId| self.standing[path.index()].useless;
        // Who will be there in a moment leaves with who is.
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
        let reason = format!(
            "{} of no use to any of {USELESS_AFTER} packets",
            names(self.code.difference(left))
        );
        (left != self.code).then_some((left, reason))
    }

    /// The best set that the budget allows, when more is in use.
    fn within_budget(&self, damages: &Damages) -> Option<(PathSet, String)> {
        let affordable = self.affordable();
        if self.code.len() <= affordable {
            return None;
        }
        let known = subsets(self.code).filter(|paths| paths.len() == affordable);
        let known = known.map(|paths| (paths, damages.without_others(paths)));
        let best = known
            .filter(|(_, damage)| damage.packets >= BUDGET_AFTER)
            .min_by(|(a, x), (b, y)| {
                x.rate()
                    .total_cmp(&y.rate())
                    .then(self.skew(*a).total_cmp(&self.skew(*b)))
            });
        best.map(|(paths, _)| (paths, "the budget allows no more".to_owned()))
    }

    /// With paths whose probes say that they would have helped, when the flow suffers.
    fn with_help(&self, damages: &Damages) -> Option<(PathSet, String)> {
        let damage = self.suffered(damages)?;
        let tolerated = self.tolerated(self.code);

        let standing = |path: &PathId| &self.standing[path.index()];
        let mut candidates: Vec<PathId> = self
            .paths
            .difference(self.code)
            .iter()
            .filter(|path| {
                standing(path).recent_use() >= MAY_HELP && standing(path).wait.is_over(self.now)
            })
            .collect();
        candidates.sort_by_key(|path| {
            (
                standing(path).wait.failures,
                Reverse(standing(path).recent()),
            )
        });

        // What was damaged lately is more than what the window says when the paths in use have just failed.
        let works = self
            .code
            .iter()
            .any(|path| standing(&path).recent_use() >= MAY_HELP);
        let mut remaining = if works { damage } else { 1.0 };
        let mut helped = self.code;
        for path in candidates {
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
            // Sixteen probes cannot tell a path that always helps from one that mostly does.
            remaining *= (1.0 - standing(&path).recent_use()).max(1.0 / 32.0);
        }
        let reason = format!(
            "{} damages {}; {} may help",
            names(self.code),
            self.percentage(damage),
            names(helped.difference(self.code))
        );
        (helped != self.code).then_some((helped, reason))
    }

    /// The part of packets that was damaged with the paths in use, when it is more than is tolerated.
    pub(super) fn suffered(&self, damages: &Damages) -> Option<f64> {
        let tolerated = self.tolerated(self.code);
        let is_too_much =
            |damage: &Damage| at_least(damage.damaged) > tolerated * damage.packets as f64;
        let seen = [damages.whole(self.code), damages.without_others(self.code)];
        seen.iter()
            .filter(|damage| is_too_much(damage))
            .map(Damage::rate)
            .reduce(f64::max)
    }

    /// The smallest set of paths without whose others the flow would not suffer more than is tolerated.
    fn with_fewer(&self, damages: &Damages) -> Option<(PathSet, String)> {
        if self.window.span(self.now) < SETTLING {
            return None;
        }
        let most = |paths: PathSet| {
            let damage = damages.without_others(paths);
            at_most(damage.damaged) / damage.packets as f64
        };
        let enough = subsets(self.code)
            .filter(|paths| !self.is_blamed(*paths) && most(*paths) <= self.tolerated(*paths))
            .min_by(|a, b| {
                a.len()
                    .cmp(&b.len())
                    .then(self.skew(*a).total_cmp(&self.skew(*b)))
            })?;
        let reason = format!(
            "{} alone damages {} at most",
            names(enough),
            self.percentage(most(enough))
        );
        Some((enough, reason))
    }

    /// The path that one packet in [`HEDGED`] takes besides `code`, which is damaged, but less than is tolerated. Others are
    /// not probed meanwhile: this one is the first to turn to.
    fn hedge(&self, code: PathSet, damages: &Damages) -> Option<(PathSet, u16)> {
        if self.is_in_order(code) {
            return None;
        }
        let is_hedged = self.probe_every == HEDGED && self.probes.len() == 1;
        let least = if is_hedged {
            MAY_HEDGE / 2.0
        } else {
            MAY_HEDGE
        };
        let standing = |path: &PathId| &self.standing[path.index()];
        let others = if is_hedged { self.probes } else { self.paths }.difference(code);
        let helpful = others
            .iter()
            .filter(|path| standing(path).recent_use() >= least);
        let path = helpful.max_by_key(|path| (standing(path).recent(), Reverse(path.index())))?;

        let damage = damages.whole(code);
        let tolerated = self.tolerated(code) * damage.packets as f64;
        let is_worth = if is_hedged {
            at_most(damage.damaged) > NOT_WORTH_HEDGING * tolerated
        } else {
            at_least(damage.damaged) > WORTH_HEDGING * tolerated
        };
        let cost = code.len() as f64 + 1.0 / f64::from(HEDGED);
        let is_affordable = self.config.budget_ratio.is_none_or(|budget| cost <= budget);
        (is_worth && is_affordable).then(|| (PathSet::EMPTY.with(path), HEDGED))
    }

    /// The paths to probe when `code` is in use, and how often.
    fn probing(&self, code: PathSet) -> (PathSet, u16) {
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

    /// The part of packets that may be damaged when only `paths` are used.
    fn tolerated(&self, paths: PathSet) -> f64 {
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

    /// Whether packets of a flow that takes `paths` do not overtake each other.
    fn is_in_order(&self, paths: PathSet) -> bool {
        paths.len() == 1 && paths.iter().all(|path| self.window.keeps_order(path))
    }

    /// How many packets a slot of the window has at least: enough for the window to show that what is tolerated is.
    pub(super) fn packets_of_a_slot(&self) -> u64 {
        ((2.0 / self.tolerated(PathSet::EMPTY)) as u64).min(MOST_OF_A_SLOT)
    }

    /// The part of frames that is damaged when this part of packets is.
    pub(super) fn of_frames(&self, packets: f64) -> f64 {
        self.packets_per_frame
            .map_or(packets, |n| 1.0 - (1.0 - packets.min(1.0)).powf(n))
    }

    fn percentage(&self, packets: f64) -> String {
        let of = if self.packets_per_frame.is_some() {
            "frames"
        } else {
            "packets"
        };
        format!("{:.2} % of {of}", self.of_frames(packets) * 100.0)
    }

    fn affordable(&self) -> usize {
        self.config
            .budget_ratio
            .map_or(usize::MAX, |budget| budget.max(1.0) as usize)
    }

    /// Mean skew of the copies on the best of `paths`, seconds.
    fn skew(&self, paths: PathSet) -> f64 {
        paths
            .iter()
            .map(|path| self.standing[path.index()].skew)
            .fold(f64::INFINITY, f64::min)
    }

    /// The path in `paths` that was of least use lately, if `path` clearly was of more.
    fn worse_than(&self, path: PathId, paths: PathSet) -> Option<PathId> {
        let recent = |path: PathId| self.standing[path.index()].recent();
        paths
            .iter()
            .min_by_key(|path| recent(*path))
            .filter(|worst| recent(*worst) + 4 <= recent(path))
    }

    /// Whether the experience degraded with `paths` or more of them a while ago.
    fn is_blamed(&self, paths: PathSet) -> bool {
        self.blamed.iter().any(|(set, wait)| {
            paths.difference(PathSet::from_bits(*set)).is_empty() && !wait.is_over(self.now)
        })
    }
}

impl Damage {
    fn rate(&self) -> f64 {
        self.damaged as f64 / self.packets as f64
    }
}

/// The sets of some, but not all, of `paths`.
fn subsets(paths: PathSet) -> impl Iterator<Item = PathSet> {
    (1..paths.bits())
        .filter(move |bits| bits & !paths.bits() == 0)
        .map(PathSet::from_bits)
}

fn names(paths: PathSet) -> String {
    paths
        .iter()
        .map(|path| path.to_string())
        .collect::<Vec<_>>()
        .join(" and ")
}

/// Whether probing so often is nearly as good.
fn is_about(every: u16, other: u16) -> bool {
    let ratio = f64::from(every) / f64::from(other);
    every == other || (0.5..=2.0).contains(&ratio)
}

fn power_of_two_below(number: f64) -> u32 {
    1 << number.clamp(1.0, 32768.0).log2() as u32
}
