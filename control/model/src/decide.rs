//! Decisions about a flow's policy when something is observed.
//!
//! The functions are pure: the controller passes its knowledge of a flow and gets the paths of the
//! next policy, if there is one. It numbers, stores and sends policies itself.
//!
//! ```
//! use hawser_model::decide::{Situation, observed};
//! use hawser_model::node::Observation;
//! use hawser_model::resource::{Cause, Flow, Policy};
//! use hawser_units::{PathSet, PolicyCode};
//!
//! let flow: Flow = serde_json::from_str(
//!     r#"{ "name": "stage", "tenant": "acme", "ingress": "edge-1", "egress": "edge-2",
//!          "mode": "evidence", "select": { "destination": "203.0.113.0/24" },
//!          "trigger": { "select": { "destination": "198.51.100.0/24" } } }"#,
//! )?;
//! let paths = PathSet::from_bits(0b11);
//! let situation = Situation { flow: &flow, paths, health: &[], egress_ready: true };
//! let policy = situation.initial().into_policy(None, &flow.name, 0);
//! assert_eq!(policy.code, PolicyCode::OFF);
//!
//! let (since_due_us, silent_us) = (900, 450_900);
//! let degraded = Observation::Degraded { flow: flow.name.clone(), since_due_us, silent_us };
//! let decision = observed(situation, &policy, &degraded).unwrap().unwrap();
//! let next = decision.into_policy(Some(&policy), &flow.name, 1);
//! assert_eq!((next.code, next.epoch, next.reason), (PolicyCode(0b11), 2, Cause::Degraded));
//! # Ok::<(), serde_json::Error>(())
//! ```

use crate::name::Name;
use crate::node::Observation;
use crate::resource::{Cause, Flow, Mode, PathHealth, Policy};
use hawser_units::{PathId, PathSet, PolicyCode};

/// A redirected flow moves only if the other path's round-trip time is below this fraction of the
/// current path's. Smaller differences are measurement noise.
const REDIRECT_BELOW: f64 = 0.8;

/// The number of packets per probed copy of a flow that begins on one path.
const PACKETS_PER_PROBE: u16 = 32;

/// The controller's knowledge of a flow.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The flow as configured.
    pub flow: &'a Flow,
    /// The paths that both nodes have and that the flow may use.
    pub paths: PathSet,
    /// The health of the paths as last reported by the ingress.
    pub health: &'a [PathHealth],
    /// Whether the egress has reported that it deduplicates the flow's copies. A copy of a flow
    /// that the egress does not know is lost.
    pub egress_ready: bool,
}

/// A choice of paths for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The paths of every packet.
    pub code: PolicyCode,
    /// The paths that additionally carry one packet in `probe_every`.
    pub probes: PathSet,
    /// The probing interval in packets, a power of two; 0 if no path is probed.
    pub probe_every: u16,
    /// The reason for the decision.
    pub reason: Cause,
}

/// The reason why an observation is ignored. Ignored observations are counted by this reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// The observation is about another policy than the one in force.
    #[error("it judges a policy that is no longer in force")]
    Outdated,
    /// The paths of this flow are not judged.
    #[error("the flow's mode leaves no choice of paths to its egress")]
    NotJudged,
    /// The observation names no path, a path that the flow may not use, or a path both to use and
    /// to probe.
    #[error("it names paths that the flow does not have")]
    Paths,
    /// The probing interval is invalid.
    #[error("its probing interval is not a power of two")]
    ProbeEvery,
    /// An operator has fixed the policy.
    #[error("an operator has fixed the policy")]
    Fixed,
}

impl Situation<'_> {
    /// Returns the decision for a flow that is created or changed, or whose policy is released by
    /// an operator. A flow that always needs help gets it once its egress is ready.
    pub fn initial(self) -> Decision {
        if !self.flow.needs_help_always() || !self.egress_ready {
            return Decision::without_probes(PolicyCode::OFF, Cause::Configured);
        }
        match self.flow.mode {
            Mode::Auto => self.one_path(),
            _ => Decision::without_probes(self.help(PolicyCode::OFF), Cause::Configured),
        }
    }

    /// Returns the first path that answers, or else the first that is up, or else the first, with
    /// probes of the others: packets over a path that is dead show nothing.
    fn one_path(self) -> Decision {
        let which = |works: fn(&PathHealth) -> bool| {
            self.paths.iter().find(|path| {
                let health = self
                    .health
                    .iter()
                    .find(|health| health.number == path.number());
                health.is_some_and(works)
            })
        };
        let answering = which(|health| health.up && health.rtt_us.is_some());
        let first = answering
            .or_else(|| which(|health| health.up))
            .or_else(|| self.paths.iter().next());
        let Some(first) = first else {
            return Decision::without_probes(PolicyCode::OFF, Cause::Configured);
        };
        let probes = self.paths.without(first);
        let every = (probes.len() as u16 * PACKETS_PER_PROBE).next_power_of_two();
        Decision {
            code: PolicyCode(PathSet::EMPTY.with(first).bits()),
            probes,
            probe_every: if probes.is_empty() { 0 } else { every },
            reason: Cause::Configured,
        }
    }

    /// Returns the paths for a flow that needs help and now takes `current`.
    fn help(self, current: PolicyCode) -> PolicyCode {
        match self.flow.mode {
            Mode::Single => PolicyCode::OFF,
            Mode::Redirect => self.fastest(current),
            Mode::Auto | Mode::Replicate | Mode::Successive | Mode::Evidence => {
                PolicyCode(self.paths.bits())
            }
        }
    }

    /// Returns whether every path of the policy is down.
    fn is_cut_off(self, policy: &Policy) -> bool {
        let is_down = |path: PathId| {
            let health = self
                .health
                .iter()
                .find(|health| health.number == path.number());
            health.is_some_and(|health| !health.up)
        };
        let taken = policy.code.paths();
        !taken.is_empty() && taken.iter().all(is_down)
    }

    /// Returns the path with the smallest round-trip time, or `current` if it is about as fast or
    /// no round-trip time is known.
    fn fastest(self, current: PolicyCode) -> PolicyCode {
        let rtt = |health: &PathHealth| health.rtt_us.filter(|_| health.up);
        let candidates = self
            .health
            .iter()
            .filter_map(|health| Some((bit(health.number), rtt(health)?)));
        let candidates = candidates.filter(|(bit, _)| self.paths.bits() & bit != 0);
        let Some((best, best_us)) = candidates.clone().min_by_key(|(_, rtt_us)| *rtt_us) else {
            return current;
        };
        let current_us = candidates
            .clone()
            .find(|(bit, _)| *bit == current.0)
            .map(|(_, rtt_us)| rtt_us);
        match current_us {
            Some(current_us) if f64::from(best_us) >= f64::from(current_us) * REDIRECT_BELOW => {
                current
            }
            _ => PolicyCode(best),
        }
    }
}

impl Decision {
    /// Returns the decision for an operator's choice of paths.
    pub fn fixed(code: PolicyCode) -> Self {
        Decision::without_probes(code, Cause::Operator)
    }

    fn without_probes(code: PolicyCode, reason: Cause) -> Self {
        Decision {
            code,
            probes: PathSet::EMPTY,
            probe_every: 0,
            reason,
        }
    }

    /// Returns the policy that applies this decision, with the epoch after that of `before`.
    pub fn into_policy(self, before: Option<&Policy>, flow: &Name, now_unix_ms: u64) -> Policy {
        Policy {
            flow: flow.clone(),
            epoch: before.map_or(1, |policy| policy.epoch + 1),
            code: self.code,
            probes: self.probes,
            probe_every: self.probe_every,
            reason: self.reason,
            decided_unix_ms: now_unix_ms,
        }
    }

    /// Returns `None` if the policy already has these paths.
    fn unless_in_force(self, policy: &Policy) -> Option<Self> {
        let in_force = (policy.code, policy.probes, policy.probe_every);
        ((self.code, self.probes, self.probe_every) != in_force).then_some(self)
    }
}

/// Decides about a flow after an observation. Returns `None` if the policy stays.
///
/// # Errors
/// Returns why the observation is ignored.
pub fn observed(
    situation: Situation<'_>,
    policy: &Policy,
    observation: &Observation,
) -> Result<Option<Decision>, Ignored> {
    let asks = matches!(
        observation,
        Observation::Degraded { .. } | Observation::Judged { .. }
    );
    if asks && policy.reason == Cause::Operator {
        return Err(Ignored::Fixed);
    }
    let decision = match observation {
        Observation::Degraded { .. } => {
            Decision::without_probes(situation.help(policy.code), Cause::Degraded)
        }
        Observation::Judged {
            epoch,
            code,
            probes,
            probe_every,
            ..
        } => judged(
            situation,
            policy,
            *epoch,
            Decision {
                code: *code,
                probes: *probes,
                probe_every: *probe_every,
                reason: Cause::Judged,
            },
        )?,
        _ => return Ok(None),
    };
    Ok(decision.unless_in_force(policy))
}

fn judged(
    situation: Situation<'_>,
    policy: &Policy,
    epoch: u32,
    judgement: Decision,
) -> Result<Decision, Ignored> {
    let Decision {
        code,
        probes,
        probe_every,
        ..
    } = judgement;
    if !matches!(
        situation.flow.mode,
        Mode::Auto | Mode::Successive | Mode::Evidence
    ) {
        return Err(Ignored::NotJudged);
    }
    if epoch != policy.epoch {
        return Err(Ignored::Outdated);
    }
    let (used, probed, allowed) = (code.0, probes.bits(), situation.paths.bits());
    if used == 0 || (used | probed) & !allowed != 0 || used & probed != 0 {
        return Err(Ignored::Paths);
    }
    let is_probed_rightly = if probes.is_empty() {
        probe_every == 0
    } else {
        probe_every.is_power_of_two()
    };
    if !is_probed_rightly {
        return Err(Ignored::ProbeEvery);
    }
    Ok(judgement)
}

/// Decides about a flow after a change in the health of its paths: a redirected flow moves if its
/// path is down or no longer the fastest, and a flow in mode `auto` takes all paths if those that it
/// takes are down.
pub fn health_changed(situation: Situation<'_>, policy: &Policy) -> Option<Decision> {
    let is_helped = policy.code != PolicyCode::OFF || situation.initial().code != PolicyCode::OFF;
    if !is_helped || policy.reason == Cause::Operator {
        return None;
    }
    let reason = match situation.flow.mode {
        Mode::Redirect => Cause::Redirected,
        Mode::Auto if situation.is_cut_off(policy) => Cause::Degraded,
        _ => return None,
    };
    Decision::without_probes(situation.help(policy.code), reason).unless_in_force(policy)
}

/// Decides about a flow after the nodes' paths have changed or its egress has become ready. Returns
/// `None` if the policy can stay.
pub fn fitted(situation: Situation<'_>, policy: &Policy) -> Option<Decision> {
    let has_missing = (policy.code.0 | policy.probes.bits()) & !situation.paths.bits() != 0;
    let is_begun = situation.flow.mode == Mode::Auto && policy.code != PolicyCode::OFF;
    let decision = match policy.reason {
        Cause::Operator => return None,
        // Where a flow begins depends on the health of paths, with which it does not move. It does where it could not
        // know of a path: packets over one that is dead show nothing of those that are not probed.
        Cause::Configured if is_begun && !has_missing => {
            let taken = policy.code.paths().union(policy.probes);
            if situation.paths.difference(taken).is_empty() {
                return None;
            }
            situation.initial()
        }
        Cause::Configured => situation.initial(),
        Cause::Judged | Cause::Redirected if !has_missing => return None,
        Cause::Degraded | Cause::Judged | Cause::Redirected => {
            Decision::without_probes(situation.help(policy.code), Cause::Degraded)
        }
    };
    decision.unless_in_force(policy)
}

/// Returns the bit of a path in a policy code; 0 for an invalid path number.
fn bit(number: u8) -> u8 {
    number
        .checked_sub(1)
        .and_then(|index| 1u8.checked_shl(index.into()))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Pruning, Selector, Trigger};

    const PATHS: PathSet = PathSet::from_bits(0b1_1111);

    fn flow(mode: Mode, trigger: bool) -> Flow {
        let select = |destination: &str| Selector {
            destination: destination.to_owned(),
            protocol: None,
            source_ports: None,
            destination_ports: None,
        };
        let trigger = trigger.then(|| Trigger {
            select: select("198.51.100.0/24"),
            request_bytes: Trigger::request_bytes(),
            late_after_ms: Trigger::late_after_ms(),
            consecutive: Trigger::consecutive(),
        });
        let name = |text: &str| text.parse().unwrap();
        Flow {
            name: name("stage"),
            tenant: name("acme"),
            ingress: name("edge-1"),
            egress: name("edge-2"),
            select: select("203.0.113.0/24"),
            paths: Vec::new(),
            mode,
            trigger,
            pruning: Pruning::default(),
            transparent: false,
        }
    }

    fn health(rtts: &[Option<u32>]) -> Vec<PathHealth> {
        let numbered = (1..).zip(rtts);
        numbered
            .map(|(number, rtt_us)| PathHealth {
                number,
                up: true,
                rtt_us: *rtt_us,
                dropped_by_device: 0,
            })
            .collect()
    }

    fn policy(code: u8, epoch: u32, reason: Cause) -> Policy {
        Policy {
            flow: "stage".parse().unwrap(),
            epoch,
            code: PolicyCode(code),
            probes: PathSet::EMPTY,
            probe_every: 0,
            reason,
            decided_unix_ms: 0,
        }
    }

    fn degraded() -> Observation {
        Observation::Degraded {
            flow: "stage".parse().unwrap(),
            since_due_us: 0,
            silent_us: 450_000,
        }
    }

    fn judged(epoch: u32, code: u8, probes: u8, probe_every: u16) -> Observation {
        Observation::Judged {
            flow: "stage".parse().unwrap(),
            epoch,
            code: PolicyCode(code),
            probes: PathSet::from_bits(probes),
            probe_every,
            reason: String::new(),
        }
    }

    #[test]
    fn a_flow_with_a_trigger_waits_for_it() {
        let health = health(&[Some(40_000), Some(30_000), None]);
        for (mode, helped) in [
            (Mode::Single, 0),
            (Mode::Redirect, 0b10),
            (Mode::Replicate, 0b1_1111),
            (Mode::Successive, 0b1_1111),
            (Mode::Evidence, 0b1_1111),
        ] {
            let flow = flow(mode, true);
            let waiting = Situation {
                flow: &flow,
                paths: PATHS,
                health: &health,
                egress_ready: true,
            };
            assert_eq!(waiting.initial().code, PolicyCode::OFF, "{mode:?}");
            let decision =
                observed(waiting, &policy(0, 1, Cause::Configured), &degraded()).unwrap();
            assert_eq!(
                decision.map_or(0, |decision| decision.code.0),
                helped,
                "{mode:?}"
            );
        }
    }

    #[test]
    fn a_flow_without_trigger_is_helped_when_its_egress_is_ready() {
        const ALL: u8 = PATHS.bits();
        let health = health(&[Some(40_000), Some(30_000)]);
        for (mode, trigger, received, helped) in [
            (Mode::Single, false, true, 0),
            (Mode::Redirect, false, false, 0),
            (Mode::Redirect, false, true, 0b10),
            (Mode::Replicate, false, false, 0),
            (Mode::Replicate, false, true, ALL),
            (Mode::Replicate, true, true, 0),
            (Mode::Evidence, false, false, 0),
            (Mode::Evidence, false, true, ALL),
            (Mode::Evidence, true, true, 0),
        ] {
            let row = format!("{mode:?}, {trigger}, {received}");
            let flow = flow(mode, trigger);
            let situation = Situation {
                flow: &flow,
                paths: PATHS,
                health: &health,
                egress_ready: received,
            };
            let fit =
                |code, reason| fitted(situation, &policy(code, 1, reason)).map(|next| next.code.0);
            assert_eq!(situation.initial().code.0, helped, "{row}");
            assert_eq!(
                fit(0, Cause::Configured),
                (helped != 0).then_some(helped),
                "{row}"
            );
            assert_eq!(fit(helped, Cause::Configured), None, "{row}");
            assert_eq!(
                (fit(0b1, Cause::Operator), fit(0b1, Cause::Judged)),
                (None, None),
                "{row}"
            );
        }
    }

    #[test]
    fn degradation_brings_back_every_path_that_was_removed() {
        let flow = flow(Mode::Evidence, true);
        let situation = Situation {
            flow: &flow,
            paths: PATHS,
            health: &[],
            egress_ready: true,
        };
        let reduced = Policy {
            probes: PathSet::from_bits(0b1_1110),
            probe_every: 64,
            ..policy(0b1, 9, Cause::Judged)
        };
        let decision = observed(situation, &reduced, &degraded()).unwrap().unwrap();
        assert_eq!(
            (decision.code, decision.probes),
            (PolicyCode(0b1_1111), PathSet::EMPTY)
        );
        let full = policy(0b1_1111, 10, Cause::Degraded);
        assert_eq!(observed(situation, &full, &degraded()), Ok(None));
    }

    #[test]
    fn judgements_apply_to_the_policy_in_force_only() {
        let evidence = flow(Mode::Evidence, true);
        let replicate = flow(Mode::Replicate, true);
        let situation = |flow| Situation {
            flow,
            paths: PathSet::from_bits(0b111),
            health: &[],
            egress_ready: true,
        };
        let in_force = policy(0b111, 7, Cause::Degraded);
        let judge = |observation| observed(situation(&evidence), &in_force, &observation);

        let reduced = Decision {
            code: PolicyCode(0b11),
            probes: PathSet::from_bits(0b100),
            probe_every: 64,
            reason: Cause::Judged,
        };
        assert_eq!(judge(judged(7, 0b11, 0b100, 64)), Ok(Some(reduced)));
        assert_eq!(judge(judged(7, 0b111, 0, 0)), Ok(None));
        assert_eq!(judge(judged(6, 0b11, 0, 0)), Err(Ignored::Outdated));
        assert_eq!(judge(judged(8, 0b11, 0, 0)), Err(Ignored::Outdated));
        assert_eq!(judge(judged(7, 0, 0b11, 64)), Err(Ignored::Paths));
        assert_eq!(judge(judged(7, 0b1000, 0, 0)), Err(Ignored::Paths));
        assert_eq!(judge(judged(7, 0b11, 0b10, 64)), Err(Ignored::Paths));
        assert_eq!(judge(judged(7, 0b11, 0b100, 63)), Err(Ignored::ProbeEvery));
        assert_eq!(judge(judged(7, 0b11, 0b100, 0)), Err(Ignored::ProbeEvery));
        assert_eq!(judge(judged(7, 0b11, 0, 64)), Err(Ignored::ProbeEvery));
        let of_another_mode = observed(situation(&replicate), &in_force, &judged(7, 0b11, 0, 0));
        assert_eq!(of_another_mode, Err(Ignored::NotJudged));
    }

    #[test]
    fn nothing_overrules_an_operator() {
        let evidence = flow(Mode::Evidence, true);
        let redirect = flow(Mode::Redirect, true);
        let health = health(&[Some(90_000), Some(10_000)]);
        let fixed = policy(0b1, 3, Cause::Operator);
        let situation = Situation {
            flow: &evidence,
            paths: PATHS,
            health: &health,
            egress_ready: true,
        };
        assert_eq!(
            observed(situation, &fixed, &degraded()),
            Err(Ignored::Fixed)
        );
        assert_eq!(
            observed(situation, &fixed, &judged(3, 0b10, 0, 0)),
            Err(Ignored::Fixed)
        );
        assert_eq!(
            health_changed(
                Situation {
                    flow: &redirect,
                    ..situation
                },
                &fixed
            ),
            None
        );
    }

    #[test]
    fn a_redirected_flow_follows_round_trips_but_not_noise() {
        let flow = flow(Mode::Redirect, true);
        let moved = |policy: &Policy, rtts: &[Option<u32>]| {
            let health = health(rtts);
            let situation = Situation {
                flow: &flow,
                paths: PATHS,
                health: &health,
                egress_ready: true,
            };
            health_changed(situation, policy).map(|decision| decision.code.0)
        };
        let on_second = policy(0b10, 2, Cause::Degraded);
        assert_eq!(moved(&on_second, &[Some(28_000), Some(30_000)]), None);
        assert_eq!(moved(&on_second, &[Some(20_000), Some(30_000)]), Some(0b1));
        assert_eq!(moved(&on_second, &[Some(50_000), None]), Some(0b1));
        assert_eq!(moved(&on_second, &[None, None]), None);
        // Until the trigger fires, the flow stays where routing puts it.
        let on_none = policy(0, 1, Cause::Configured);
        assert_eq!(moved(&on_none, &[Some(1), None]), None);
        // Without one it leaves as soon as a round-trip time is known.
        let always = self::flow(Mode::Redirect, false);
        let health = self::health(&[Some(1), None]);
        let situation = Situation {
            flow: &always,
            paths: PATHS,
            health: &health,
            egress_ready: true,
        };
        assert_eq!(
            health_changed(situation, &on_none).map(|decision| decision.code.0),
            Some(0b1)
        );
    }

    #[test]
    fn auto_begins_on_the_first_path_that_answers() {
        let flow = flow(Mode::Auto, true);
        let begun = |rtts: &[Option<u32>], egress_ready| {
            let health = health(rtts);
            let situation = Situation {
                flow: &flow,
                paths: PATHS,
                health: &health,
                egress_ready,
            };
            let Decision {
                code,
                probes,
                probe_every,
                ..
            } = situation.initial();
            (code.0, probes.bits(), probe_every)
        };
        assert_eq!(begun(&[None, Some(1)], false), (0, 0, 0));
        assert_eq!(begun(&[None, Some(1)], true), (0b10, 0b1_1101, 128));
        assert_eq!(begun(&[None, None], true), (0b1, 0b1_1110, 128));
        assert_eq!(begun(&[], true), (0b1, 0b1_1110, 128));
    }

    #[test]
    fn auto_probes_a_path_that_comes_before_it_has_judged() {
        let flow = flow(Mode::Auto, false);
        let with = |paths| Situation {
            flow: &flow,
            paths,
            health: &[],
            egress_ready: true,
        };
        let alone = with(PathSet::from_bits(0b1));
        let policy = alone.initial().into_policy(None, &flow.name, 0);
        assert_eq!(fitted(alone, &policy), None);
        let fitted = fitted(with(PathSet::from_bits(0b11)), &policy).unwrap();
        assert_eq!((fitted.code.0, fitted.probes.bits()), (0b1, 0b10));
    }

    #[test]
    fn auto_takes_all_paths_when_its_own_are_down() {
        let flow = flow(Mode::Auto, false);
        let decided = |up: [bool; 2], code| {
            let mut health = health(&[Some(1), Some(1)]);
            health
                .iter_mut()
                .zip(up)
                .for_each(|(path, up)| path.up = up);
            let situation = Situation {
                flow: &flow,
                paths: PATHS,
                health: &health,
                egress_ready: true,
            };
            health_changed(situation, &policy(code, 2, Cause::Judged)).map(|next| next.code.0)
        };
        assert_eq!(decided([false, true], 0b1), Some(0b1_1111));
        assert_eq!(decided([false, true], 0b11), None);
        assert_eq!(decided([true, false], 0b1), None);
        assert_eq!(decided([false, false], 0b11), Some(0b1_1111));
    }

    #[test]
    fn a_policy_is_fitted_to_the_paths_that_are_left() {
        let flow = flow(Mode::Evidence, true);
        let fit = |policy: &Policy| {
            let paths = PathSet::from_bits(0b11);
            let situation = Situation {
                flow: &flow,
                paths,
                health: &[],
                egress_ready: true,
            };
            fitted(situation, policy).map(|decision| decision.code.0)
        };
        assert_eq!(fit(&policy(0b1_1111, 2, Cause::Degraded)), Some(0b11));
        assert_eq!(fit(&policy(0b11, 2, Cause::Degraded)), None);
        assert_eq!(fit(&policy(0b1, 3, Cause::Judged)), None);
        assert_eq!(fit(&policy(0b100, 3, Cause::Judged)), Some(0b11));
        assert_eq!(fit(&policy(0, 1, Cause::Configured)), None);
        assert_eq!(fit(&policy(0b100, 4, Cause::Operator)), None);
    }

    #[test]
    fn epochs_rise_by_one_from_one() {
        let flow = flow(Mode::Evidence, true);
        let situation = Situation {
            flow: &flow,
            paths: PATHS,
            health: &[],
            egress_ready: true,
        };
        let first = situation.initial().into_policy(None, &flow.name, 5);
        assert_eq!((first.epoch, first.decided_unix_ms), (1, 5));
        assert_eq!(
            Decision::fixed(PolicyCode::OFF)
                .into_policy(Some(&first), &flow.name, 6)
                .epoch,
            2
        );
    }
}
