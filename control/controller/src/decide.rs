//! Decisions and how they are written to the store.
//!
//! The decision itself is made in `hawser_model::decide`. Here it becomes a policy with the next
//! epoch. It is written only if flow and policy are unchanged since they were read, so that epochs
//! rise without gaps regardless of which controller decides.

use crate::audit::Origin;
use crate::controller::{About, Controller};
use crate::limit::Checked;
use crate::precondition::Precondition;
use crate::record::{emit, key};
use crate::store::{Error, Expect, Revision, Write};
use crate::view::Versioned;
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::decide::{Decision, Ignored, Situation};
use hawser_model::resource::Policy;
use hawser_units::{PathSet, PolicyCode};

/// The number of attempts at a decision while flow or policy change concurrently.
const ATTEMPTS: usize = 32;

/// The outcome of a decision.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// This policy is in force now.
    Decided(Versioned<Policy>),
    /// This policy stays in force.
    Unchanged(Versioned<Policy>),
    /// The policy in force has this revision, which does not match the request's `If-Match`.
    PreconditionFailed(Revision),
    /// The observation is ignored.
    Ignored(Ignored),
    /// The flow does not exist.
    NoSuchFlow,
}

/// An operator's request for a decision.
#[derive(Clone, Copy)]
pub(crate) struct OperatorRequest<'a> {
    origin: &'a Origin,
    /// The precondition on the policy to be replaced.
    matching: &'a Precondition,
}

impl<'a> OperatorRequest<'a> {
    pub(crate) fn new(origin: &'a Origin, matching: &'a Precondition) -> Self {
        OperatorRequest { origin, matching }
    }
}

/// Chooses the paths of a flow. Returns `None` if its policy stays.
pub(crate) type Choose<'a> =
    dyn Fn(Situation<'_>, &Policy) -> Result<Option<Decision>, Ignored> + Sync + 'a;

/// Returns the kind and the message of the event for a policy.
pub(crate) type Describe<'a> = dyn Fn(&Policy) -> (&'static str, String) + Sync + 'a;

/// Describes a policy for people.
pub(crate) fn described(policy: &Policy) -> String {
    let numbers = |paths: PathSet| {
        paths
            .iter()
            .map(|path| (path.index() + 1).to_string())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let paths = match policy.code {
        PolicyCode::OFF => "the default route".to_owned(),
        PolicyCode(bits) => format!("paths {}", numbers(PathSet::from_bits(bits))),
    };
    let probes = if policy.probes.is_empty() {
        String::new()
    } else {
        let (every, on) = (policy.probe_every, numbers(policy.probes));
        format!(", one packet in {every} on {on} too")
    };
    format!("epoch {}, {paths}{probes}", policy.epoch)
}

/// The choice of a flow's next policy according to the view.
struct Choice {
    about: About,
    /// The policy to commit, or the outcome if there is none.
    policy: Result<Policy, Outcome>,
    /// The revisions of the flow and of its policy on which the choice is based.
    read: [Revision; 2],
}

impl Controller {
    /// Decides about a flow and commits the new policy together with other writes. `by` is the
    /// request of an operator; `None` for the controller's own decision.
    ///
    /// # Errors
    /// Returns an error if the store does not respond, or one of the other writes conflicts.
    pub(crate) async fn decide(
        &self,
        checked: &Checked,
        flow: &Name,
        with: Vec<Write>,
        by: Option<OperatorRequest<'_>>,
        choose: &Choose<'_>,
        describe: &Describe<'_>,
    ) -> Result<Outcome, Error> {
        let keys = [key::of(key::FLOW, flow), key::of(key::POLICY, flow)];
        for attempt in 1.. {
            let fault = self.view().fault();
            fault.map_or(Ok(()), |fault| Err(Error::Unavailable(fault)))?;
            let choice = match self.choose(flow, by, choose) {
                Ok(choice) => choice,
                Err(outcome) => return Ok(outcome),
            };
            match self
                .carry_out(checked, choice, &keys, with.clone(), describe)
                .await
            {
                Err(Error::Conflict { key, found })
                    if keys.contains(&key) && attempt < ATTEMPTS =>
                {
                    self.catch_up(found).await;
                }
                outcome => return outcome,
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Chooses the next policy of a flow according to the view. Returns the outcome if there is no such
    /// flow, or the operator's precondition fails.
    fn choose(
        &self,
        flow: &Name,
        by: Option<OperatorRequest<'_>>,
        choose: &Choose<'_>,
    ) -> Result<Choice, Outcome> {
        let view = self.view();
        let (Some(record), Some(before)) = (view.flow(flow), view.policy(flow)) else {
            return Err(Outcome::NoSuchFlow);
        };
        let revision = before.revision;
        if by.is_some_and(|request| !request.matching.matches(revision)) {
            return Err(Outcome::PreconditionFailed(revision));
        }
        let chosen = choose(view.situation(&record.value.flow), &before.value);
        let by = by.map(|request| request.origin.changes(flow, revision));
        Ok(Choice {
            about: About {
                by,
                ..About::tenant(&record.value.flow.tenant).flow(flow)
            },
            policy: next_policy(chosen, before),
            read: [record.revision, revision],
        })
    }

    /// Commits a choice together with other writes. `keys` are those of the flow and its policy.
    async fn carry_out(
        &self,
        checked: &Checked,
        choice: Choice,
        keys: &[String; 2],
        mut with: Vec<Write>,
        describe: &Describe<'_>,
    ) -> Result<Outcome, Error> {
        let [read_flow, read_policy] = choice.read.map(Expect::Revision);
        match choice.policy {
            Ok(policy) => {
                with.push(Write::check(&keys[0], read_flow));
                with.push(Write::put(&keys[1], emit(&policy)).when(read_policy));
                let (kind, message) = describe(&policy);
                let revision = self
                    .commit(checked, with, choice.about, kind, message)
                    .await?;
                Ok(self.decided(policy, revision))
            }
            Err(outcome) => {
                // The view may be behind the store, so check that nothing has changed.
                let flow = Write::check(&keys[0], read_flow);
                let policy = Write::check(&keys[1], read_policy);
                self.store(checked).commit(vec![flow, policy]).await?;
                Ok(outcome)
            }
        }
    }

    /// Signals and counts a policy that was committed.
    fn decided(&self, policy: Policy, revision: Revision) -> Outcome {
        self.signal(&policy);
        self.metrics.decided(policy.reason.name());
        tracing::debug!(flow = %policy.flow, policy.epoch, code = policy.code.0, probes = policy.probes.bits(), "decided");
        Outcome::Decided(Versioned {
            value: policy,
            revision,
        })
    }
}

/// Returns the policy that follows from a decision, or the outcome if the policy stays.
fn next_policy(
    chosen: Result<Option<Decision>, Ignored>,
    before: &Versioned<Policy>,
) -> Result<Policy, Outcome> {
    match chosen {
        Err(ignored) => Err(Outcome::Ignored(ignored)),
        Ok(None) => Err(Outcome::Unchanged(before.clone())),
        Ok(Some(decision)) => {
            let flow = &before.value.flow;
            Ok(decision.into_policy(Some(&before.value), flow, unix_ms()))
        }
    }
}
