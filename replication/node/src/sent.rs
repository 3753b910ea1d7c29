use crate::message::PolicyWord;
use hawser_model::node::Send;
use hawser_model::resource::Policy;
use hawser_units::PathSet;

/// A flow that the node replicates, with the one record of its policy.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SentFlow {
    /// The flow as assigned, with the newest policy that took effect.
    pub(crate) assigned: Send,
    /// The last effect that was reported.
    effect: Effect,
}

/// A policy that took effect, as reported to the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Effect {
    epoch: u32,
    paths: PathSet,
}

/// The change of paths when a policy takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathChange {
    pub(crate) before: PathSet,
    pub(crate) after: PathSet,
}

impl SentFlow {
    /// Returns a flow whose policy has not taken effect yet.
    pub(crate) fn new(assigned: Send) -> Self {
        SentFlow {
            assigned,
            effect: Effect::default(),
        }
    }

    /// Returns a flow whose policy an earlier process reported.
    pub(crate) fn restored(assigned: Send) -> Self {
        let effect = Effect::of((&assigned.policy).into());
        SentFlow { assigned, effect }
    }

    /// Returns the flow after a new assignment with the same name and number.
    pub(crate) fn reassigned(&self, assigned: Send) -> Self {
        SentFlow {
            assigned,
            effect: self.effect,
        }
    }

    /// Returns the paths under the last policy whose effect was reported.
    pub(crate) fn paths_in_use(&self) -> PathSet {
        self.effect.paths
    }

    /// Records a policy that the kernel was told to use, and has put into force.
    pub(crate) fn applied(&mut self, policy: &Policy) -> PathChange {
        self.assigned.policy = policy.clone();
        self.change_to(Effect::of(policy.into()))
    }

    /// Records a policy that the kernel already held, or held a newer one of. A signal does not
    /// carry the reason of its policy.
    pub(crate) fn confirmed(&mut self, policy: &Policy) -> bool {
        let is_newest = policy.epoch >= self.assigned.policy.epoch;
        if is_newest {
            self.assigned.policy = policy.clone();
        }
        is_newest
    }

    /// Records a policy that arrived by signal. Returns `None` if a newer one has taken effect
    /// since. The reason is unknown until the controller sends the same policy.
    pub(crate) fn signalled(&mut self, word: PolicyWord) -> Option<PathChange> {
        let policy = &mut self.assigned.policy;
        if word.epoch > policy.epoch {
            (policy.epoch, policy.code) = (word.epoch, word.code);
            (policy.probes, policy.probe_every) = (word.probes, word.probe_every);
        }
        (word.epoch > self.effect.epoch).then(|| self.change_to(Effect::of(word)))
    }

    fn change_to(&mut self, effect: Effect) -> PathChange {
        let before = std::mem::replace(&mut self.effect, effect);
        PathChange {
            before: before.paths,
            after: effect.paths,
        }
    }
}

impl Effect {
    fn of(word: PolicyWord) -> Self {
        Effect {
            epoch: word.epoch,
            paths: word.code.paths(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_model::resource::Cause;
    use hawser_units::PolicyCode;

    fn flow() -> SentFlow {
        let text = r#"{ "flow": "stage", "number": 4, "peer": "egress",
            "select": { "destination": "10.0.0.0/8" },
            "policy": { "flow": "stage", "epoch": 4, "code": 1, "probes": 0, "probe_every": 0,
                        "reason": "configured", "decided_unix_ms": 0 } }"#;
        SentFlow::restored(serde_json::from_str(text).unwrap())
    }

    fn policy(epoch: u32, code: u8) -> Policy {
        Policy {
            epoch,
            code: PolicyCode(code),
            reason: Cause::Degraded,
            ..flow().assigned.policy
        }
    }

    fn change(before: u8, after: u8) -> PathChange {
        let [before, after] = [before, after].map(PathSet::from_bits);
        PathChange { before, after }
    }

    #[test]
    fn a_signal_brings_a_policy_and_the_stream_its_reason() {
        let mut flow = flow();
        let signalled = PolicyWord::from(&policy(5, 0b11));
        assert_eq!(flow.signalled(signalled), Some(change(0b1, 0b11)));
        assert_eq!(
            (flow.assigned.policy.epoch, flow.assigned.policy.reason),
            (5, Cause::Configured)
        );
        assert!(flow.confirmed(&policy(5, 0b11)));
        assert_eq!(flow.assigned.policy, policy(5, 0b11));
        assert!(!flow.confirmed(&policy(4, 0b1)));
    }

    #[test]
    fn a_signal_that_is_read_late_does_not_undo_a_newer_policy() {
        let mut flow = flow();
        assert_eq!(flow.applied(&policy(6, 0b10)), change(0b1, 0b10));
        assert_eq!(flow.signalled(PolicyWord::from(&policy(5, 0b11))), None);
        assert_eq!(flow.assigned.policy, policy(6, 0b10));
        assert_eq!(flow.paths_in_use(), PathSet::from_bits(0b10));
    }

    #[test]
    fn a_signals_effect_counts_after_the_stream_told_it() {
        let mut flow = flow();
        assert!(flow.confirmed(&policy(5, 0b11)));
        let signalled = PolicyWord::from(&policy(5, 0b11));
        assert_eq!(flow.signalled(signalled), Some(change(0b1, 0b11)));
        assert_eq!(flow.assigned.policy, policy(5, 0b11));
    }
}
