//! Chooses the cheapest paths that meet the aim of a flow: the mode `auto`.

use super::bound::{lower_limit, upper_limit};
use super::evaluate::{MIN_HELP_RATIO, SETTLING_TIME, names, subsets};
use super::trials::Rate;
use super::window::Damage;
use super::{EVALUATION_INTERVAL, Evidence};
use crate::judgement::Judgement;
use hawser_units::{Instant, PathId, PathSet, PolicyCode};
use std::cmp::Reverse;
use std::time::Duration;

/// Packets of the last time are judged on their own as well, so that what just began is not hidden
/// by what was before.
const RECENT: Duration = Duration::from_secs(1);

/// A set that has met the aim for this long is compared with paths that are not in use.
const FEWER_SPAN: Duration = Duration::from_secs(4);

/// Copies help if they leave less than this share of the damage of fewer paths.
const HELPED_BELOW: f64 = 0.85;

/// Copies harm if damage exceeds this multiple of that of fewer paths.
const HARMED_ABOVE: f64 = 1.5;

/// The best set is left for another one only if that damages less than this share of it.
const BETTER_BELOW: f64 = 0.8;

/// Sets of more than one path that are tried, for each number of paths.
const TRIED_OF_EACH_SIZE: usize = 2;

/// Damage that is spread over fewer evaluations is a burst.
const MIN_INTERVALS: u32 = 3;

/// Minimum number of probes without damage before a path may suffice alone.
const MIN_PROBES: u64 = 128;

/// The state of the set in force.
struct State {
    /// The share of packets that were lost or late.
    rate: f64,
    /// The share of packets that were damaged more than is tolerated.
    excess: f64,
    /// The reason why it does not meet the aim, if it does not.
    failure: Option<String>,
    /// Whether copies help less than they cost: fewer paths were observed to be about as good.
    is_in_vain: bool,
}

impl Evidence {
    /// Returns the set to take next, if it is another one than that in force.
    pub(super) fn choose(&mut self) -> Option<(PathSet, String)> {
        let from = self.auto.as_ref()?.from()?;
        let rate = self.observe()?;
        self.note_useful_paths();
        let state = self.state(from, rate)?;
        let (code, now) = (self.code, self.now);
        let trials = self.auto.as_mut()?;
        if state.failure.is_none() {
            trials.meet(now);
            return self.protect().or_else(|| self.economise(from));
        }
        if state.is_in_vain {
            trials.protection.end(now);
        }
        trials.fail_in_force(code, now);
        if let Some(path) = trials.verified.take() {
            trials.fail(path, now, Duration::ZERO);
        }
        self.is_degraded = false;
        self.escalate(&state)
    }

    /// Notes the share of damaged packets of the set whose packets arrive, and returns it. What has
    /// just begun is not diluted by what was before.
    pub(super) fn observe(&mut self) -> Option<Rate> {
        let trials = self.auto.as_ref()?;
        let (set, from) = trials.arriving()?;
        let (lost, late) = self.lost_and_late(set, from);
        if lost.packets == 0 {
            return None;
        }
        let (newest_lost, newest_late) = self.lost_and_late(set, from.max(self.now - RECENT));
        let rate = Rate {
            lost: lost.rate().max(newest_lost.rate_or_zero()),
            late: late.rate().max(newest_late.rate_or_zero()),
        };
        self.auto.as_mut()?.observe(set, rate, self.now);
        Some(rate)
    }

    /// Lets other sets be tried if a path has become useful.
    fn note_useful_paths(&mut self) {
        let mut has_become_useful = false;
        for path in self.paths.iter() {
            has_become_useful |= self.history[path.index()].has_become_useful();
        }
        if has_become_useful && let Some(trials) = &mut self.auto {
            trials.unsettle();
        }
    }

    /// Returns the packets that were lost since `since` while `set` was in force, and those of which
    /// every copy was late.
    fn lost_and_late(&self, set: PathSet, since: Instant) -> (Damage, Damage) {
        let lost = self.window.damages_since(since).whole(set);
        let late = Damage {
            damaged: self.window.late_since(since),
            ..lost
        };
        (lost, late)
    }

    /// Judges the set in force, whose packets were damaged at `rate`.
    fn state(&self, from: Instant, rate: Rate) -> Option<State> {
        let tolerated = self.tolerated(self.code);
        let since = [from, from.max(self.now - RECENT)];
        // A burst of losses is one event, however many packets it takes.
        let is_burst = |since: &Instant| self.damaged_intervals_since(*since) < MIN_INTERVALS;
        let excess = since
            .iter()
            .filter(|since| !is_burst(since))
            .filter_map(|since| self.excess_damage(&self.window.damages_since(*since)))
            .reduce(f64::max);
        let in_vain = self.fewer_as_good(rate);
        let is_damaged = since.iter().any(|since| {
            let (lost, late) = self.lost_and_late(self.code, *since);
            let damaged = lost.damaged + late.damaged;
            !is_burst(since) && lower_limit(damaged) > tolerated * lost.packets as f64
        });
        let failure = match (in_vain.filter(|_| is_damaged), excess) {
            (Some((fewer, of_fewer)), _) => Some(format!(
                "copies on {} {}: {} are damaged, {} on {} alone",
                names(self.code),
                if rate.total() > of_fewer.total() * HARMED_ABOVE {
                    "harm each other"
                } else {
                    "do not help"
                },
                self.percentage(rate.total()),
                self.percentage(of_fewer.total()),
                names(fewer)
            )),
            (None, Some(excess)) => Some(format!(
                "on {}, {} are damaged, and {} are tolerated",
                names(self.code),
                self.percentage(excess),
                self.percentage(tolerated)
            )),
            (None, None) => self
                .is_degraded
                .then(|| format!("the viewer fares badly on {}", names(self.code))),
        };
        Some(State {
            rate: rate.total(),
            // The viewer's experience shows that more is damaged than is tolerated.
            excess: excess.unwrap_or(tolerated * 2.0),
            failure,
            is_in_vain: in_vain.is_some(),
        })
    }

    /// Returns fewer of the paths in force that were observed to be about as good as all of them, or
    /// clearly better.
    fn fewer_as_good(&self, rate: Rate) -> Option<(PathSet, Rate)> {
        let trials = self.auto.as_ref()?;
        let tolerated = self.tolerated(self.code);
        let is_no_better = |all: f64, fewer: f64| fewer <= tolerated || all > fewer * HELPED_BELOW;
        trials
            .all_observed(self.now)
            .filter(|(set, _)| *set != self.code && set.difference(self.code).is_empty())
            .filter(|(_, fewer)| {
                let is_useless =
                    is_no_better(rate.lost, fewer.lost) && is_no_better(rate.late, fewer.late);
                let harms = rate.total() > fewer.total() * HARMED_ABOVE;
                rate.total() > tolerated && (is_useless || harms)
            })
            .min_by(|(_, a), (_, b)| a.total().total_cmp(&b.total()))
    }

    /// Returns another set if the one in force fails.
    fn escalate(&mut self, state: &State) -> Option<(PathSet, String)> {
        let (now, code) = (self.now, self.code);
        let trials = self.auto.as_ref()?;
        let why = state.failure.clone().unwrap_or_default();
        if trials.is_settled(code, state.rate, now) {
            return None;
        }
        let may_search = trials.may_search();
        let is_helped = may_search && !state.is_in_vain;
        let helped = is_helped.then(|| self.helped(state.excess));
        if let Some(helped) = helped.filter(|helped| *helped != code)
            && !trials.is_blocked(helped, now)
        {
            let trials = self.auto.as_mut()?;
            trials.note_search();
            let reason = format!(
                "{why}; {} may help; fewer are considered after {}, {} alone after {}",
                names(helped.difference(code)),
                seconds(SETTLING_TIME),
                names(code),
                seconds(trials.blocked_for(code, now).max(SETTLING_TIME))
            );
            return Some((helped, reason));
        }
        if may_search && let Some(next) = self.untried(state.is_in_vain) {
            let reason = format!("{why}; {} is tried", names(next));
            self.auto.as_mut()?.note_search();
            return Some((next, reason));
        }
        let (best, rate) = self.best_observed(state.rate)?;
        let trials = self.auto.as_mut()?;
        trials.settle(best, rate, now);
        let kept = seconds(trials.settled_for(now));
        let reason = format!(
            "{why}; nothing is known to be better than {}, which stays for {kept}",
            names(best)
        );
        (best != code).then_some((best, reason))
    }

    /// Returns the cheapest set that may meet the aim and is not known to fail. Sets with all paths in
    /// force are left out if the copies on these are in vain.
    fn untried(&self, is_in_vain: bool) -> Option<PathSet> {
        let trials = self.auto.as_ref()?;
        let usable: PathSet = self.paths.iter().filter(|path| self.works(*path)).collect();
        let damages = self.window.damages();
        let predicted = |set: PathSet| {
            let damage = damages.without_others(set);
            (damage.rate_or_zero(), self.skew(set))
        };
        // Where copies were observed to help, fewer are as good as they seem, and not better.
        let least = self.least_if_copies_help();
        (1..=usable.len().min(self.affordable())).find_map(|size| {
            let mut sets: Vec<PathSet> = subsets(usable)
                .chain([usable])
                .filter(|set| set.len() == size && *set != self.code)
                .filter(|set| !is_in_vain || !self.code.difference(*set).is_empty())
                .filter(|set| least.is_none_or(|least| predicted(*set).0 < least))
                .collect();
            sets.sort_by(|a, b| {
                let ((a, a_skew), (b, b_skew)) = (predicted(*a), predicted(*b));
                a.total_cmp(&b).then(a_skew.total_cmp(&b_skew))
            });
            let tried = if size == 1 {
                sets.len()
            } else {
                TRIED_OF_EACH_SIZE
            };
            sets.into_iter()
                .take(tried)
                .find(|set| !trials.is_blocked(*set, self.now))
        })
    }

    /// Returns the least damage that was observed, if most sets of which more paths and fewer were
    /// observed show that copies help.
    fn least_if_copies_help(&self) -> Option<f64> {
        let trials = self.auto.as_ref()?;
        let observed: Vec<_> = trials.all_observed(self.now).collect();
        let pairs = observed.iter().flat_map(|more| {
            let is_part = |fewer: &&(PathSet, Rate)| {
                fewer.0 != more.0 && fewer.0.difference(more.0).is_empty()
            };
            let parts = observed.iter().filter(is_part);
            parts.map(|fewer| more.1.total() < fewer.1.total() * HELPED_BELOW)
        });
        let (helps, total) = pairs.fold((0, 0), |sum, helps| (sum.0 + u32::from(helps), sum.1 + 1));
        let rates = observed.iter().map(|(_, rate)| rate.total());
        (helps * 2 > total).then(|| rates.fold(f64::INFINITY, f64::min))
    }

    /// Returns the cheapest of the sets that were observed to be about as good as the best, and its
    /// rate.
    fn best_observed(&self, rate: f64) -> Option<(PathSet, f64)> {
        let trials = self.auto.as_ref()?;
        let allowed = |set: &PathSet| {
            let delivers = set.iter().any(|path| !self.has_stopped(path));
            delivers && set.difference(self.paths).is_empty() && set.len() <= self.affordable()
        };
        let observed = || {
            trials
                .all_observed(self.now)
                .filter(|(set, _)| allowed(set))
        };
        let rates = observed().map(|(_, rate)| rate.total());
        let least = rates.fold(rate, f64::min);
        observed()
            .map(|(set, rate)| (set, rate.total()))
            .filter(|(_, rate)| rate * BETTER_BELOW <= least)
            .min_by_key(|(set, _)| (set.len(), Reverse(*set == self.code)))
    }

    /// Returns whether the flow is to keep two paths that work.
    pub(super) fn is_protected(&self) -> bool {
        let trials = self.auto.as_ref();
        let is_on = trials.is_some_and(|trials| trials.protection.is_on(self.now));
        is_on && self.affordable() >= 2 && self.paths.len() >= 2
    }

    /// Returns whether a path alone would carry most packets, as far as is known.
    fn works(&self, path: PathId) -> bool {
        !self.has_stopped(path) && self.promise(path) >= MIN_HELP_RATIO
    }

    fn working(&self, set: PathSet) -> usize {
        set.iter().filter(|path| self.works(*path)).count()
    }

    /// Returns whether nothing arrives over a path any more.
    pub(super) fn has_stopped(&self, path: PathId) -> bool {
        let stopped = self.auto.as_ref().map(|trials| trials.silence.stopped());
        stopped.is_some_and(|stopped| stopped.contains(path))
    }

    /// Returns whether enough paths of a set work, or not even enough of those in force, so that these
    /// protect nothing. A path that has stopped is kept beside another one: it may be back before the
    /// other one fails.
    fn protects(&self, set: PathSet) -> bool {
        let is_waiting = self.code.iter().any(|path| self.has_stopped(path));
        !self.is_protected() || self.working(set) >= 2 || self.working(self.code) < 2 && !is_waiting
    }

    /// Returns `set`, with the most useful other path if it protects the flow only with that.
    pub(super) fn protected(&self, set: PathSet) -> PathSet {
        if !self.is_protected() || self.working(set) >= 2 {
            return set;
        }
        let has_failed = |set: PathSet| {
            let trials = self.auto.as_ref();
            trials.is_some_and(|trials| trials.failures(set) > 0)
        };
        let others = self.paths.difference(set).iter();
        let usable = others.filter(|path| self.works(*path) && !has_failed(set.with(*path)));
        let best = usable.min_by(|a, b| {
            let useful = self.promise(*b).total_cmp(&self.promise(*a));
            let skew = |path: &PathId| self.history[path.index()].skew;
            useful.then(skew(a).total_cmp(&skew(b)))
        });
        best.map_or(set, |best| set.with(best))
    }

    /// Returns the paths in force with another one, if they do not protect the flow.
    fn protect(&self) -> Option<(PathSet, String)> {
        let protected = self.protected(self.code);
        let left = self.auto.as_ref()?.protection.left(self.now);
        let reason = format!(
            "{} in addition: two paths are kept for {}",
            names(protected.difference(self.code)),
            seconds(left)
        );
        (protected != self.code).then_some((protected, reason))
    }

    /// Returns fewer paths that meet the aim, or one more path that may suffice alone.
    fn economise(&mut self, from: Instant) -> Option<(PathSet, String)> {
        let (now, code) = (self.now, self.code);
        if code.len() < 2 || now.saturating_since(from) < SETTLING_TIME {
            return None;
        }
        if let Some((fewer, span)) = self.fewer(from) {
            let trials = self.auto.as_mut()?;
            let verified = trials.verified.take();
            if let Some(path) = verified.filter(|path| !path.difference(fewer).is_empty()) {
                trials.fail(path, now, Duration::ZERO);
            }
            let damages = self.window.damages_since(now - span);
            let reason = format!(
                "on {} alone, {} would have been damaged in {}; it stays while less than {} are",
                names(fewer),
                self.percentage(damages.without_others(fewer).rate_or_zero()),
                seconds(span),
                self.percentage(self.tolerated(fewer))
            );
            return Some((fewer, reason));
        }
        let path = self.unverified(from)?;
        let one = PathSet::EMPTY.with(path);
        let with = code.with(path);
        let affordable = self.affordable();
        let trials = self.auto.as_mut()?;
        if with.len() <= affordable && !trials.is_blocked(with, now) {
            trials.verified = Some(one);
            let reason = format!(
                "{path} may suffice alone: copies show it within {}",
                seconds(FEWER_SPAN)
            );
            return Some((with, reason));
        }
        if self.history[path.index()].backoff.failures > 0 {
            return None;
        }
        let reason = format!("{path} may suffice alone and is tried");
        Some((one, reason))
    }

    /// Returns the smallest set of paths in force that would have met the aim, and in what time. A set
    /// that has failed has to meet it for longer each time, because losses come in bursts. If there are
    /// too few packets to show that the aim is met, none of them may be damaged.
    fn fewer(&self, from: Instant) -> Option<(PathSet, Duration)> {
        let trials = self.auto.as_ref()?;
        let held = self.now.saturating_since(from);
        let damages = [SETTLING_TIME, SETTLING_TIME * 2, SETTLING_TIME * 4]
            .map(|span| (span, self.window.damages_since(from.max(self.now - span))));
        let meets = |set: &PathSet| {
            let (span, damages) = &damages[(trials.failures(*set) as usize).min(2)];
            let damage = damages.without_others(*set);
            let tolerated = self.tolerated(*set) * damage.packets as f64;
            let is_enough = damage.damaged == 0 || upper_limit(damage.damaged) <= tolerated;
            held >= *span && damage.packets > 0 && is_enough
        };
        let has_sufficient = |set: &PathSet| {
            let mut alone = set.iter().map(|path| PathSet::EMPTY.with(path));
            alone.any(|one| meets(&one))
        };
        let least = subsets(self.code)
            .filter(|set| !trials.is_blocked(*set, self.now) && !self.has_degraded(*set))
            .filter(|set| meets(set) && self.protects(*set))
            .min_by(|a, b| {
                let has_better = has_sufficient(b).cmp(&has_sufficient(a));
                let order = a.len().cmp(&b.len()).then(has_better);
                order.then(self.skew(*a).total_cmp(&self.skew(*b)))
            })?;
        Some((least, damages[(trials.failures(least) as usize).min(2)].0))
    }

    /// Returns a path not in use whose probes show no damage, if the flow takes several and has met
    /// its aim for a while.
    fn unverified(&self, from: Instant) -> Option<PathId> {
        let trials = self.auto.as_ref()?;
        if self.now.saturating_since(from) < FEWER_SPAN || trials.verified.is_some() {
            return None;
        }
        let damages = self.window.damages();
        let is_clean = |path: &PathId| {
            let one = PathSet::EMPTY.with(*path);
            let probes = damages.without_others(one);
            probes.packets >= MIN_PROBES && probes.damaged == 0 && !trials.is_blocked(one, self.now)
        };
        let unused = self.paths.difference(self.code).iter();
        let has_failed = |path: &PathId| !self.history[path.index()].backoff.is_over(self.now);
        unused.filter(|path| !has_failed(path)).find(is_clean)
    }

    /// Returns the number of evaluations since `since` before which a packet was damaged.
    fn damaged_intervals_since(&self, since: Instant) -> u32 {
        let intervals =
            self.now.saturating_since(since).as_nanos() / EVALUATION_INTERVAL.as_nanos();
        let kept = u32::try_from(intervals)
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        let mask = 1u128.checked_shl(kept).map_or(u128::MAX, |bit| bit - 1);
        (self.damaged_intervals & mask).count_ones()
    }

    /// Proposes all paths if nothing has arrived for too long: nothing is known any more. Replaces a
    /// path that has stopped beside others.
    pub(super) fn handle_silence(&mut self) {
        let (now, since, code) = (self.now, self.since, self.code);
        let Some(trials) = self.auto.as_mut().filter(|_| !code.is_empty()) else {
            return;
        };
        let stopped = trials.silence.newly_stopped(code, since);
        if !stopped.is_empty() {
            trials.protection.fail(now);
            self.replace_stopped(stopped);
            return;
        }
        let Some((silent, has_failed)) = trials.silence.poll(now, code, since) else {
            return;
        };
        if has_failed {
            trials.protection.fail(now);
        }
        let all = self.all_affordable();
        self.propose(
            all,
            format!(
                "nothing has arrived for {}: {} are taken until packets show which are needed",
                seconds(silent),
                names(all)
            ),
        );
    }

    /// Proposes another path instead of those that have stopped, if there is one.
    fn replace_stopped(&mut self, stopped: PathSet) {
        let next = self.protected(self.code.difference(stopped));
        if next.len() >= 2 {
            let reason = format!(
                "nothing arrives over {} any more: {} are taken",
                names(stopped),
                names(next)
            );
            self.propose(next, reason);
        }
    }

    /// Returns all paths, as far as the budget allows. Without room for others beside those in force,
    /// the others come first.
    fn all_affordable(&self) -> PathSet {
        let affordable = self.affordable();
        let others = self.paths.difference(self.code).iter();
        let in_force = self.code.iter();
        if self.code.len() < affordable {
            in_force.chain(others).take(affordable).collect()
        } else {
            others.chain(in_force).take(affordable).collect()
        }
    }

    /// Proposes paths that are not in force.
    fn propose(&mut self, paths: PathSet, reason: String) {
        if paths == self.code {
            return;
        }
        let (probes, probe_every) = self.probing(paths);
        self.proposal.propose(
            Judgement {
                code: PolicyCode(paths.bits()),
                probes,
                probe_every,
                reason,
            },
            self.now,
        );
    }
}

impl Damage {
    fn rate_or_zero(&self) -> f64 {
        if self.packets == 0 { 0.0 } else { self.rate() }
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
