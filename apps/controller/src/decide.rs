//! Decisions and their way into the store.
//!
//! What is decided is in `hawser_control::decide`. Here it becomes a policy with the next epoch, written only if the flow
//! and the policy are still those that were looked at, so that epochs rise without gaps whoever decides.

use crate::api::precondition::IfMatch;
use crate::audit::Origin;
use crate::controller::{About, Controller};
use crate::record::{emit, key, unix_ms};
use crate::store::{Error, Expect, Revision, Write};
use crate::view::At;
use hawser_control::Name;
use hawser_control::decide::{Decision, Situation, Void};
use hawser_control::resource::{Cause, Policy};

/// How often a decision is tried when flow or policy change meanwhile.
const ATTEMPTS: usize = 32;

/// What came of it.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// This is in force now.
    Decided(At<Policy>),
    /// This stays in force.
    Stays(At<Policy>),
    /// The one in force is of this revision, for which the request is not meant.
    Changed(Revision),
    /// What asked for a decision may not.
    Void(Void),
    /// There is no such flow.
    Gone,
}

/// An operator's request for a decision.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) origin: &'a Origin,
    /// The policy that is to be replaced.
    pub(crate) matching: &'a IfMatch,
}

/// Chooses the paths of a flow; nothing when its policy is to stay.
pub(crate) type Choose<'a> =
    dyn Fn(Situation<'_>, &Policy) -> Result<Option<Decision>, Void> + Sync + 'a;

/// The kind and the message of the event that tells of a policy.
pub(crate) type Describe<'a> = dyn Fn(&Policy) -> (&'static str, String) + Sync + 'a;

/// A policy in words.
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
    /// Decides about a flow and puts the new policy into force, together with the other writes. `by`: the request of an
    /// operator; none: the controller's own decision.
    ///
    /// # Errors
    /// When the store does not answer, or one of the other writes collides.
    pub(crate) async fn decide(
        &self,
        flow: &Name,
        with: Vec<Write>,
        by: Option<Asked<'_>>,
        choose: &Choose<'_>,
        describe: &Describe<'_>,
    ) -> Result<Outcome, Error> {
        let keys = [key::of(key::FLOW, flow), key::of(key::POLICY, flow)];
        for attempt in 1.. {
            let (about, policy, read) = {
                let view = self.view();
                let (
                    Some(record),
                    Some(At {
                        value: before,
                        revision,
                    }),
                ) = (view.flow(flow), view.policy(flow))
                else {
                    return Ok(Outcome::Gone);
                };
                if let Some(Asked { matching, .. }) = by
                    && !matching.matches(*revision)
                {
                    return Ok(Outcome::Changed(*revision));
                }
                let chosen = match choose(view.situation(&record.value.flow), before) {
                    Err(void) => Err(Outcome::Void(void)),
                    Ok(None) => Err(Outcome::Stays(At {
                        value: before.clone(),
                        revision: *revision,
                    })),
                    Ok(Some(decision)) => Ok(decision.following(Some(before), flow, unix_ms())),
                };
                let by = by.map(|asked| asked.origin.changes(flow, *revision));
                let about = About {
                    by,
                    ..About::tenant(&record.value.flow.tenant).flow(flow)
                };
                (about, chosen, [record.revision, *revision])
            };
            let policy = match policy {
                Ok(policy) => policy,
                Err(outcome) => {
                    // Another controller may have changed what this one still takes for granted.
                    let checks = keys
                        .iter()
                        .zip(read)
                        .map(|(key, read)| Write::check(key, Expect::Revision(read)));
                    match self.store.commit(checks.collect()).await {
                        Ok(_) => return Ok(outcome),
                        Err(Error::Conflict { found, .. }) if attempt < ATTEMPTS => {
                            self.caught_up(found).await;
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
                    self.metrics.decided(cause_name(policy.because));
                    tracing::debug!(%flow, policy.epoch, policy.code, policy.probes, "decided");
                    return Ok(Outcome::Decided(At {
                        value: policy,
                        revision,
                    }));
                }
                Err(Error::Conflict { key, found })
                    if keys.contains(&key) && attempt < ATTEMPTS =>
                {
                    self.caught_up(found).await;
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("the last attempt returns")
    }
}
