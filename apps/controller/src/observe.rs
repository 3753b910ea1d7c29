//! What nodes observe, on its way to a decision.
//!
//! The leader decides at once. Another controller puts what has to be decided into the store, where the leader finds it.

use crate::controller::{About, Controller};
use crate::decide::{Outcome, described};
use crate::record::{FlowRecord, emit, key, parse, random_hex, unix_ms};
use crate::store::{Error, Expect, Leadership, Write};
use crate::view::At;
use futures_util::future::try_join_all;
use hawser_control::Name;
use hawser_control::decide::{Void, observed};
use hawser_control::node::{Observation, Report};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Observations that wait for a leader. Afterwards nodes are told to try again.
const WAITING: usize = 10_000;

/// An observation that waits for the leader.
#[derive(Debug, Serialize, Deserialize)]
struct ObservationRecord {
    node: Name,
    observation: Observation,
}

/// The flow that an observation is about, and whether its ingress (true), its egress (false) or both tell of it.
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

/// The event that tells of an observation which needs no decision.
fn told(node: &Name, observation: &Observation) -> (&'static str, String) {
    match observation {
        Observation::Degraded { .. } | Observation::Judged { .. } => {
            unreachable!("these are decided upon")
        }
        Observation::PathSilent { flow, path } => (
            "path_silent",
            format!("path {path} of {flow} carries nothing"),
        ),
        Observation::PathRestored { flow, path } => (
            "path_restored",
            format!("path {path} of {flow} carries copies again"),
        ),
        Observation::LatentError { flow, path } => (
            "latent_error",
            format!("path {path} of {flow} stopped to contribute; every packet still arrives"),
        ),
        Observation::Applied {
            flow,
            epoch,
            code,
            by_signal,
        } => {
            let by = if *by_signal {
                "an in-band signal"
            } else {
                "the stream"
            };
            (
                "policy_applied",
                format!("{flow} has epoch {epoch}, code {code:#04x} at {node}, brought by {by}"),
            )
        }
        Observation::FirstReplica {
            flow,
            epoch,
            after_us,
        } => (
            "first_replica",
            format!(
                "the first replica of {flow} left {after_us} us after epoch {epoch} took effect"
            ),
        ),
        Observation::SignalRefused { reason, count } => (
            "signal_refused",
            format!("{node} refused {count} in-band signals: {}", short(reason)),
        ),
        Observation::NotApplied { flow, reason } => (
            "not_applied",
            format!("{node} cannot do its part for {flow}: {}", short(reason)),
        ),
    }
}

/// A node's words, as far as they are worth keeping.
fn short(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .take(300)
        .collect()
}

impl Controller {
    /// A node has observed something.
    pub(crate) async fn heard(
        &self,
        node: &Name,
        tenant: &Name,
        observation: Observation,
    ) -> Result<(), Error> {
        let flow = about(&observation).map(|(flow, _)| flow.clone());
        if flow
            .as_ref()
            .is_some_and(|flow| self.view().flow(flow).is_none())
        {
            self.metrics.voided("no_such_flow");
            return Ok(());
        }
        if !matches!(
            observation,
            Observation::Degraded { .. } | Observation::Judged { .. }
        ) {
            if !self.keeps_event(node, tenant).await? {
                return Ok(());
            }
            let (kind, message) = told(node, &observation);
            let about = About {
                flow,
                ..About::tenant(tenant).node(node)
            };
            return self.commit(vec![], about, kind, message).await.map(drop);
        }
        if !self.makes_change(node, tenant).await? {
            return Ok(());
        }
        let leadership = self.role.borrow().leadership().cloned();
        if let Some(leadership) = leadership {
            match self.act_upon(node, &observation, &leadership, vec![]).await {
                // Another one leads since: it finds the observation in the store.
                Err(Error::Conflict { .. }) => {}
                outcome => return outcome,
            }
        }
        if self.view().observations.len() >= WAITING {
            return Err(Error::Unavailable(
                "no controller leads, and too many observations wait for one".into(),
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
        self.store
            .commit(vec![Write::put(key, emit(&record)).when(Expect::Absent)])
            .await
            .map(drop)
    }

    /// A node has said which copies it eliminates. Flows that waited for that are the leader's to begin.
    pub(crate) async fn heard_received(&self, report: &Report) -> Result<(), Error> {
        let writes: Vec<Write> = {
            let view = self.view();
            let awaited = report
                .receives
                .iter()
                .filter_map(|part| view.awaited(&part.flow, report.revision));
            let write = |record: &At<FlowRecord>| {
                let changed_in = Some(record.value.changed_in(record.revision));
                let received = FlowRecord {
                    received: true,
                    changed_in,
                    ..record.value.clone()
                };
                let key = key::of(key::FLOW, &received.flow.name);
                Write::put(key, emit(&received)).when(Expect::Revision(record.revision))
            };
            awaited.map(write).collect()
        };
        let commits =
            writes
                .into_iter()
                .map(async |write| match self.store.commit(vec![write]).await {
                    // Somebody changes it. The next report says it again.
                    Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
                    Err(error) => Err(error),
                });
        try_join_all(commits).await.map(drop)
    }

    /// Decides what waits in the store, and takes it out.
    pub(crate) async fn act_upon_waiting(
        &self,
        key: &Arc<str>,
        leadership: &Leadership,
    ) -> Result<(), Error> {
        let Some(waiting) = self.view().observations.get(key).cloned() else {
            return Ok(());
        };
        let taken_out = Write::delete(&**key).when(Expect::Revision(waiting.revision));
        match parse::<ObservationRecord>(key, &waiting.value) {
            Some(record) => {
                self.act_upon(
                    &record.node,
                    &record.observation,
                    leadership,
                    vec![taken_out],
                )
                .await
            }
            None => self.store.commit(vec![taken_out]).await.map(drop),
        }
    }

    /// Decides what follows from an observation; `with` is written together with the decision.
    async fn act_upon(
        &self,
        node: &Name,
        observation: &Observation,
        leadership: &Leadership,
        mut with: Vec<Write>,
    ) -> Result<(), Error> {
        let Some((flow, _)) = about(observation) else {
            return Ok(());
        };
        with.push(leadership.fence());
        let describe = |policy: &_| match observation {
            Observation::Judged { reason, .. } => (
                "paths_judged",
                format!("{flow}: {}: {}", described(policy), short(reason)),
            ),
            _ => (
                "flow_degraded",
                format!("requests of {flow} are late: {}", described(policy)),
            ),
        };
        let choose = |situation: hawser_control::decide::Situation<'_>, policy: &_| {
            observed(situation, policy, observation)
        };
        let outcome = self
            .decide(flow, with.clone(), None, &choose, &describe)
            .await?;
        if let Outcome::Void(void) = outcome {
            self.metrics.voided(reason(void));
            tracing::debug!(%flow, ?observation, "not acted upon: {void}");
        }
        if matches!(outcome, Outcome::Decided(_)) {
            return Ok(());
        }
        // Nothing was decided, so nothing was written yet. That a flow is degraded is worth an event all the same.
        let tenant = self
            .view()
            .flow(flow)
            .map(|record| record.value.flow.tenant.clone());
        match (observation, tenant) {
            (Observation::Degraded { .. }, Some(tenant))
                if self.keeps_event(node, &tenant).await? =>
            {
                let message = format!("requests of {flow} are late; its policy stays");
                self.commit(
                    with,
                    About::tenant(&tenant).flow(flow),
                    "flow_degraded",
                    message,
                )
                .await
                .map(drop)
            }
            // The fence alone would be no write.
            _ if with.len() > 1 => self.store.commit(with).await.map(drop),
            _ => Ok(()),
        }
    }
}

fn reason(void: Void) -> &'static str {
    match void {
        Void::Outdated => "outdated",
        Void::NotJudged => "not_judged",
        Void::Paths => "paths",
        Void::ProbeEvery => "probe_every",
        Void::Fixed => "fixed",
    }
}
