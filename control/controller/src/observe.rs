//! Observations of nodes, from their arrival to a decision.
//!
//! The leader decides immediately. Another controller writes observations that need a decision to
//! the store, where the leader finds them.

use crate::access::Certified;
use crate::controller::{About, Controller};
use crate::decide::{Outcome, described};
use crate::limit::Checked;
use crate::record::{FlowRecord, emit, key, parse, random_hex};
use crate::store::{Error, Expect, Leadership, Write};
use crate::view::Versioned;
use futures_util::future::try_join_all;
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::decide::{Ignored, Situation, observed};
use hawser_model::node::{Observation, Report};
use hawser_model::resource::Policy;
use hawser_units::Line;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The maximum number of observations that wait for a leader. Beyond it, nodes have to retry.
const MAX_WAITING: usize = 10_000;

/// An observation that waits for the leader.
#[derive(Debug, Serialize, Deserialize)]
struct ObservationRecord {
    node: Name,
    observation: Observation,
}

/// Returns the flow that an observation is about, and whether its ingress (`true`), its egress
/// (`false`) or either may report it.
pub(crate) fn about(observation: &Observation) -> Option<(&Name, Option<bool>)> {
    match observation {
        Observation::Degraded { flow, .. }
        | Observation::Judged { flow, .. }
        | Observation::PathSilent { flow, .. }
        | Observation::PathRestored { flow, .. }
        | Observation::LatentError { flow, .. } => Some((flow, Some(false))),
        Observation::Applied { flow, .. } | Observation::FirstReplica { flow, .. } => {
            Some((flow, Some(true)))
        }
        Observation::NotApplied { flow, .. } => Some((flow, None)),
        Observation::SignalRefused { .. } => None,
    }
}

/// Returns the kind and the message of the event for an observation. Returns `None` if it needs a
/// decision, which has an event of its own.
fn event_for(node: &Name, observation: &Observation) -> Option<(&'static str, String)> {
    path_event(observation).or_else(|| policy_event(node, observation))
}

/// Returns the event for an observation of an egress about a path.
fn path_event(observation: &Observation) -> Option<(&'static str, String)> {
    let (kind, text) = match observation {
        Observation::PathSilent { flow, path } => {
            let text = format!("path {path} of {flow} delivers no copies");
            ("path_silent", text)
        }
        Observation::PathRestored { flow, path } => {
            let text = format!("path {path} of {flow} delivers copies again");
            ("path_restored", text)
        }
        Observation::LatentError { flow, path } => {
            let text = format!("path {path} of {flow} stopped contributing");
            (
                "latent_error",
                format!("{text}; every packet still arrives"),
            )
        }
        Observation::Degraded { .. }
        | Observation::Judged { .. }
        | Observation::Applied { .. }
        | Observation::FirstReplica { .. }
        | Observation::SignalRefused { .. }
        | Observation::NotApplied { .. } => return None,
    };
    Some((kind, text))
}

/// Returns the event for an observation of a node about a policy that it applied or rejected.
fn policy_event(node: &Name, observation: &Observation) -> Option<(&'static str, String)> {
    let (kind, text) = match observation {
        Observation::Applied {
            flow,
            epoch,
            code,
            by_signal,
        } => {
            let code = format!("code {:#04x}", code.0);
            let by = match by_signal {
                true => "an in-band signal",
                false => "the stream",
            };
            let text = format!("{node} applied epoch {epoch} of {flow}, {code}, received by {by}");
            ("policy_applied", text)
        }
        Observation::FirstReplica {
            flow,
            epoch,
            after_us,
        } => {
            let after = format!("{after_us} us after epoch {epoch} took effect");
            let text = format!("the first replica of {flow} left {after}");
            ("first_replica", text)
        }
        Observation::SignalRefused { reason, count } => {
            let reason = short(reason);
            let text = format!("{node} rejected {count} in-band signals: {reason}");
            ("signal_refused", text)
        }
        Observation::NotApplied { flow, reason } => {
            let reason = short(reason);
            let text = format!("{node} cannot apply its part of {flow}: {reason}");
            ("not_applied", text)
        }
        Observation::Degraded { .. }
        | Observation::Judged { .. }
        | Observation::PathSilent { .. }
        | Observation::PathRestored { .. }
        | Observation::LatentError { .. } => return None,
    };
    Some((kind, text))
}

/// Limits a text from a node to a line of 300 bytes.
pub(crate) fn short(text: &str) -> String {
    Line::within(text, 300).into_string()
}

impl Controller {
    /// Handles an observation of a node.
    pub(crate) async fn on_observation(
        &self,
        caller: &Certified,
        observation: Observation,
    ) -> Result<(), Error> {
        let (node, tenant) = (&caller.node.node, &caller.tenant);
        let flow = about(&observation).map(|(flow, _)| flow.clone());
        let is_unknown = |flow: &Name| self.view().flow(flow).is_none();
        if flow.as_ref().is_some_and(is_unknown) {
            self.metrics.ignored("no_such_flow");
            return Ok(());
        }
        if let Some((kind, message)) = event_for(node, &observation) {
            if !self.admits_event(caller).await? {
                return Ok(());
            }
            let about = About {
                flow,
                ..About::tenant(tenant).node(node)
            };
            let committed = self.commit(&caller.checked, vec![], about, kind, message);
            return committed.await.map(drop);
        }
        if !self.admits_change(caller).await? {
            return Ok(());
        }
        self.decide_or_leave(&caller.checked, node, observation)
            .await
    }

    /// Decides on an observation if this controller is the leader, and leaves it for the leader
    /// otherwise.
    async fn decide_or_leave(
        &self,
        checked: &Checked,
        node: &Name,
        observation: Observation,
    ) -> Result<(), Error> {
        let leadership = self.role.borrow().leadership().cloned();
        if let Some(leadership) = leadership {
            match self
                .decide_on(checked, node, &observation, &leadership, vec![])
                .await
            {
                // Another controller has become the leader. It finds the observation in the store.
                Err(Error::Conflict { .. }) => {}
                outcome => return outcome,
            }
        }
        self.leave_for_leader(checked, node, observation).await
    }

    /// Stores an observation, on which the leader decides.
    async fn leave_for_leader(
        &self,
        checked: &Checked,
        node: &Name,
        observation: Observation,
    ) -> Result<(), Error> {
        if self.view().observations.len() >= MAX_WAITING {
            return Err(Error::Unavailable(
                "there is no leader, and too many observations wait for one".into(),
            ));
        }
        let key = format!(
            "{}{:013}-{}",
            key::OBSERVATION,
            unix_ms(),
            random_hex::<6>()
        );
        let record = ObservationRecord {
            node: node.clone(),
            observation,
        };
        self.store(checked)
            .commit(vec![Write::put(key, emit(&record)).when(Expect::Absent)])
            .await
            .map(drop)
    }

    /// Handles the part of a report that lists the flows whose copies the node deduplicates. Flows
    /// that waited for that become ready for the leader.
    pub(crate) async fn on_received_report(
        &self,
        checked: &Checked,
        report: &Report,
    ) -> Result<(), Error> {
        let writes: Vec<Write> = {
            let view = self.view();
            let awaited = report
                .receives
                .iter()
                .filter_map(|part| view.awaited(&part.flow, report.revision));
            awaited.map(received).collect()
        };
        let commits = writes.into_iter().map(async |write| {
            match self.store(checked).commit(vec![write]).await {
                // The flow was changed concurrently. The next report repeats this.
                Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        });
        try_join_all(commits).await.map(drop)
    }

    /// Decides on an observation that waits in the store, and removes it.
    pub(crate) async fn decide_on_waiting(
        &self,
        own: &Checked,
        key: &Arc<str>,
        leadership: &Leadership,
    ) -> Result<(), Error> {
        let Some(waiting) = self.view().observations.get(key).cloned() else {
            return Ok(());
        };
        let taken_out = Write::delete(&**key).when(Expect::Revision(waiting.revision));
        match parse::<ObservationRecord>(key, &waiting.value) {
            Some(record) => {
                self.decide_on(
                    own,
                    &record.node,
                    &record.observation,
                    leadership,
                    vec![taken_out],
                )
                .await
            }
            None => self.store(own).commit(vec![taken_out]).await.map(drop),
        }
    }

    /// Decides on an observation. `with` is written together with the decision.
    async fn decide_on(
        &self,
        checked: &Checked,
        node: &Name,
        observation: &Observation,
        leadership: &Leadership,
        mut with: Vec<Write>,
    ) -> Result<(), Error> {
        let Some((flow, _)) = about(observation) else {
            return Ok(());
        };
        with.push(leadership.fence());
        let describe = |policy: &Policy| event_of_decision(observation, policy);
        let choose =
            |situation: Situation<'_>, policy: &Policy| observed(situation, policy, observation);
        let outcome = self
            .decide(checked, flow, with.clone(), None, &choose, &describe)
            .await?;
        if let Outcome::Ignored(ignored) = outcome {
            self.metrics.ignored(reason(ignored));
            tracing::debug!(%flow, ?observation, "observation ignored: {ignored}");
        }
        match outcome {
            Outcome::Decided(_) => Ok(()),
            // No policy was written, and neither was `with`.
            _ => {
                self.record_undecided(checked, node, flow, observation, with)
                    .await
            }
        }
    }

    /// Commits `with` for an observation after which a policy stays. A degraded flow is still
    /// recorded as an event.
    async fn record_undecided(
        &self,
        checked: &Checked,
        node: &Name,
        flow: &Name,
        observation: &Observation,
        with: Vec<Write>,
    ) -> Result<(), Error> {
        let tenant = self
            .view()
            .flow(flow)
            .map(|record| record.value.flow.tenant.clone());
        if let (Observation::Degraded { .. }, Some(tenant)) = (observation, tenant)
            && self.admits_event_of(checked, node, &tenant).await?
        {
            let message = format!("requests or frames of {flow} are late; its policy stays");
            let about = About::tenant(&tenant).flow(flow);
            let committed = self.commit(checked, with, about, "flow_degraded", message);
            return committed.await.map(drop);
        }
        // The fence alone changes nothing.
        if with.len() > 1 {
            self.store(checked).commit(with).await?;
        }
        Ok(())
    }
}

/// Returns the write of a flow whose egress has reported that it deduplicates.
fn received(record: &Versioned<FlowRecord>) -> Write {
    let received = FlowRecord {
        received: true,
        changed_in: Some(record.value.changed_in(record.revision)),
        ..record.value.clone()
    };
    let key = key::of(key::FLOW, &received.flow.name);
    Write::put(key, emit(&received)).when(Expect::Revision(record.revision))
}

/// Returns the kind and the message of the event for a decision on an observation.
fn event_of_decision(observation: &Observation, policy: &Policy) -> (&'static str, String) {
    let (flow, policy) = (&policy.flow, described(policy));
    match observation {
        Observation::Judged { reason, .. } => {
            let reason = short(reason);
            ("paths_judged", format!("{flow}: {policy}: {reason}"))
        }
        _ => {
            let text = format!("requests or frames of {flow} are late: {policy}");
            ("flow_degraded", text)
        }
    }
}

fn reason(ignored: Ignored) -> &'static str {
    match ignored {
        Ignored::Outdated => "outdated",
        Ignored::NotJudged => "not_judged",
        Ignored::Paths => "paths",
        Ignored::ProbeEvery => "probe_every",
        Ignored::Fixed => "fixed",
    }
}
