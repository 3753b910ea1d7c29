//! Decisions and how they are written to the store.
//!
//! The decision itself is made in `hawser_control::decide`. Here it becomes a policy with the next
//! epoch. It is written only if flow and policy are unchanged since they were read, so that epochs
//! rise without gaps regardless of which controller decides.

use crate::api::precondition::IfMatch;
use crate::audit::Origin;
use crate::controller::{About, Controller};
use crate::record::{emit, key, unix_ms};
use crate::store::{Error, Expect, Revision, Write};
use crate::view::Versioned;
use hawser_control::Name;
use hawser_control::decide::{Decision, Ignored, Situation};
use hawser_control::resource::{Cause, Policy};

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
    pub(crate) origin: &'a Origin,
    /// The precondition on the policy to be replaced.
    pub(crate) matching: &'a IfMatch,
}

/// Chooses the paths of a flow. Returns `None` if its policy stays.
pub(crate) type Choose<'a> =
    dyn Fn(Situation<'_>, &Policy) -> Result<Option<Decision>, Ignored> + Sync + 'a;

/// Returns the kind and the message of the event for a policy.
pub(crate) type Describe<'a> = dyn Fn(&Policy) -> (&'static str, String) + Sync + 'a;

/// Describes a policy for people.
pub(crate) fn described(policy: &Policy) -> String {
    let numbers = |bits: u8| {
        (1..=8)
            .filter(|n| bits & 1 << (n - 1) != 0)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let paths = match policy.code {
        0 => "the default route".to_owned(),
        code => format!("paths {}", numbers(code)),
    };
    let probes = match policy.probes {
        0 => String::new(),
        probes => format!(
            ", one packet in {} on {} too",
            policy.probe_every,
            numbers(probes)
        ),
    };
    format!("epoch {}, {paths}{probes}", policy.epoch)
}

fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Configured => "configured",
        Cause::Degraded => "degraded",
        Cause::Judged => "judged",
        Cause::Redirected => "redirected",
        Cause::Operator => "operator",
    }
}

impl Controller {
    /// Decides about a flow and commits the new policy together with other writes. `by` is the
    /// request of an operator; `None` for the controller's own decision.
    ///
    /// # Errors
    /// Returns an error if the store does not respond, or one of the other writes conflicts.
    pub(crate) async fn decide(
        &self,
        flow: &Name,
        with: Vec<Write>,
        by: Option<OperatorRequest<'_>>,
        choose: &Choose<'_>,
        describe: &Describe<'_>,
    ) -> Result<Outcome, Error> {
        let keys = [key::of(key::FLOW, flow), key::of(key::POLICY, flow)];
        for attempt in 1.. {
            let (about, policy, read) = {
                let view = self.view();
                let (
                    Some(record),
                    Some(Versioned {
                        value: before,
                        revision,
                    }),
                ) = (view.flow(flow), view.policy(flow))
                else {
                    return Ok(Outcome::NoSuchFlow);
                };
                if let Some(OperatorRequest { matching, .. }) = by
                    && !matching.matches(*revision)
                {
                    return Ok(Outcome::PreconditionFailed(*revision));
                }
                let chosen = match choose(view.situation(&record.value.flow), before) {
                    Err(ignored) => Err(Outcome::Ignored(ignored)),
                    Ok(None) => Err(Outcome::Unchanged(Versioned {
                        value: before.clone(),
                        revision: *revision,
                    })),
                    Ok(Some(decision)) => Ok(decision.into_policy(Some(before), flow, unix_ms())),
                };
                let by = by.map(|request| request.origin.changes(flow, *revision));
                let about = About {
                    by,
                    ..About::tenant(&record.value.flow.tenant).flow(flow)
                };
                (about, chosen, [record.revision, *revision])
            };
            let policy = match policy {
                Ok(policy) => policy,
                Err(outcome) => {
                    // The view may be behind the store, so check that nothing has changed.
                    let checks = keys
                        .iter()
                        .zip(read)
                        .map(|(key, read)| Write::check(key, Expect::Revision(read)));
                    match self.store.commit(checks.collect()).await {
                        Ok(_) => return Ok(outcome),
                        Err(Error::Conflict { found, .. }) if attempt < ATTEMPTS => {
                            self.catch_up(found).await;
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
            };
            let mut writes = with.clone();
            writes.push(Write::check(&keys[0], Expect::Revision(read[0])));
            writes.push(Write::put(&keys[1], emit(&policy)).when(Expect::Revision(read[1])));
            let (kind, message) = describe(&policy);
            match self.commit(writes, about, kind, message).await {
                Ok(revision) => {
                    self.signal(&policy);
                    self.metrics.decided(cause_name(policy.reason));
                    tracing::debug!(%flow, policy.epoch, policy.code, policy.probes, "decided");
                    return Ok(Outcome::Decided(Versioned {
                        value: policy,
                        revision,
                    }));
                }
                Err(Error::Conflict { key, found })
                    if keys.contains(&key) && attempt < ATTEMPTS =>
                {
                    self.catch_up(found).await;
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("the last attempt returns")
    }
}
