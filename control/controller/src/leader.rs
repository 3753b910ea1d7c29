//! The tasks of the leader: deciding on the reports of nodes, detecting lost nodes, and removing
//! old entries.

use crate::controller::{About, Controller};
use crate::decide::described;
use crate::lease::{NODE_LOST, message_of_loss};
use crate::limit::Checked;
use crate::record::{SeenRecord, emit, key};
use crate::retention::surplus;
use crate::settings;
use crate::store::{Error, Expect, Leadership, MAX_WRITES, Role, Write};
use crate::view::{Touched, Versioned};
use hawser_model::Name;
use hawser_model::decide::{Decision, Ignored, Situation, fitted, health_changed};
use hawser_model::resource::{Mode, Policy};
use std::collections::HashSet;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// The maximum number of decisions that are written concurrently.
const AT_ONCE: usize = 256;

/// The maximum number of changes of the paths between two nodes at once: paths are withdrawn, removed,
/// and others take their uplinks.
const DISCOVERY_STEPS: usize = 4;

/// The interval at which old events and audit entries are removed.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(30);

/// The interval at which the time is stored for which leaders have run. A leader that ends loses as much
/// at most, and entries are kept for so much longer.
const AGE_INTERVAL: Duration = Duration::from_secs(300);

/// Reacts to changes while this controller is the leader, forever.
pub(crate) async fn run(
    controller: Arc<Controller>,
    own: Checked,
    mut inbox: mpsc::UnboundedReceiver<Touched>,
) {
    let mut role = controller.role.clone();
    let mut cleanup = tokio::time::interval(CLEANUP_INTERVAL);
    let at_once = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let leadership = role.borrow_and_update().leadership().cloned();
        let Some(leadership) = leadership else {
            tokio::select! {
                changed = role.changed() => if changed.is_err() { return },
                // Changes can be ignored: a new leader examines everything first.
                touched = inbox.recv() => if touched.is_none() { return },
            }
            continue;
        };
        controller.filled().await;
        let leader = Leader {
            controller: controller.clone(),
            own: own.clone(),
            leadership,
            at_once: at_once.clone(),
        };
        if leader
            .lead(&mut role, &mut inbox, &mut cleanup)
            .await
            .is_break()
        {
            return;
        }
    }
}

/// Decides about a flow. Returns `None` if its policy can stay.
type Choose = fn(Situation<'_>, &Policy) -> Result<Option<Decision>, Ignored>;

struct Leader {
    controller: Arc<Controller>,
    own: Checked,
    leadership: Leadership,
    at_once: Arc<Semaphore>,
}

impl Leader {
    /// Reacts to changes until the leadership ends. Breaks if the controller has stopped.
    async fn lead(
        &self,
        role: &mut watch::Receiver<Role>,
        inbox: &mut mpsc::UnboundedReceiver<Touched>,
        cleanup: &mut Interval,
    ) -> ControlFlow<()> {
        self.publish_settings().await;
        self.examine_all().await;
        // After the end of the previous leader, nodes have one to two lease times to find a
        // controller.
        let lease = self.controller.config.lease();
        let mut report_lost = tokio::time::interval_at(Instant::now() + lease, lease);
        report_lost.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut missing = HashSet::new();
        let mut led = Instant::now();
        let mut age = tokio::time::interval_at(led + AGE_INTERVAL, AGE_INTERVAL);
        while self.leadership.holds() {
            tokio::select! {
                changed = role.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return ControlFlow::Break(()),
                },
                touched = inbox.recv() => match touched {
                    Some(touched) => self.examine(touched).await,
                    None => return ControlFlow::Break(()),
                },
                _ = cleanup.tick() => self.remove_old().await,
                _ = age.tick() => self.add_run_time(&mut led).await,
                _ = report_lost.tick() => missing = self.report_lost(&missing).await,
            }
        }
        ControlFlow::Continue(())
    }

    /// Makes the settings known that all controllers should have in common.
    async fn publish_settings(&self) {
        let settings = settings::common(&self.controller.config);
        if self.controller.view().settings.as_ref() == Some(&settings) {
            return;
        }
        let write = Write::put(key::SETTINGS, emit(&settings));
        let writes = vec![self.leadership.fence(), write];
        if let Err(error) = self.controller.store(&self.own).commit(writes).await {
            tracing::warn!("cannot make the leader's settings known: {error}");
        }
    }

    async fn examine_all(&self) {
        let (observations, flows) = {
            let view = self.controller.view();
            (
                view.observations.keys().cloned().collect::<Vec<_>>(),
                view.flows.keys().cloned().collect::<Vec<_>>(),
            )
        };
        tracing::debug!(
            observations = observations.len(),
            flows = flows.len(),
            "examining all observations and flows"
        );
        for key in observations {
            self.decide_on_waiting(key).await;
        }
        let nodes: Vec<Name> = self.controller.view().nodes.keys().cloned().collect();
        for node in nodes {
            self.discover(&node).await;
        }
        for flow in flows {
            self.fit(flow, "policy_fitted").await;
        }
    }

    async fn examine(&self, touched: Touched) {
        match touched {
            Touched::Nothing => self.examine_all().await,
            Touched::Observation(key) => self.decide_on_waiting(key).await,
            Touched::Registration(node) => {
                self.discover(&node).await;
                for flow in self.flows_of(&node) {
                    self.fit(flow, "policy_fitted").await;
                }
            }
            Touched::Flow {
                nodes: [ingress, _],
                ..
            } => self.discover(&ingress).await,
            Touched::Health(node) => {
                self.discover(&node).await;
                for flow in self.redirected_flows_of(&node) {
                    self.follow_health(flow).await;
                }
            }
            Touched::Received(flow) => self.fit(flow, "flow_received").await,
            Touched::Lost(node) => self.lost(node).await,
            Touched::Node(_)
            | Touched::Deleted(_)
            | Touched::Keys(_)
            | Touched::Paths(_)
            | Touched::Policy { .. }
            | Touched::Incarnation
            | Touched::Settings
            | Touched::Event => {}
        }
    }

    fn flows_of(&self, node: &Name) -> Vec<Name> {
        let view = self.controller.view();
        view.nodes.get(node).map_or(vec![], |node| {
            node.sends.union(&node.receives).cloned().collect()
        })
    }

    fn redirected_flows_of(&self, node: &Name) -> Vec<Name> {
        let view = self.controller.view();
        let Some(node) = view.nodes.get(node) else {
            return vec![];
        };
        let is_redirected = |flow: &&Name| {
            view.flow(flow)
                .is_some_and(|flow| flow.value.flow.mode == Mode::Redirect)
        };
        node.sends.iter().filter(is_redirected).cloned().collect()
    }

    /// Makes paths of the uplinks of a node and of those nodes that share a flow with it, and
    /// withdraws those that cannot stay.
    async fn discover(&self, node: &Name) {
        let partners = self.controller.view().partners(node);
        for partner in partners {
            match self.discover_between(node, &partner).await {
                // Another leader does it, or the next change shows it again.
                Ok(()) | Err(Error::Conflict { .. }) => {}
                Err(error) => tracing::error!("cannot write the paths to {partner}: {error}"),
            }
        }
    }

    /// Changes the paths between two nodes until they can stay. A path is withdrawn in two steps: at
    /// first no flow may take it any more, and then the nodes lose it.
    async fn discover_between(&self, one: &Name, other: &Name) -> Result<(), Error> {
        for _ in 0..DISCOVERY_STEPS {
            let change = self.controller.view().paths_change(one, other);
            let Some(change) = change else { break };
            let writes = vec![self.leadership.fence(), change.write];
            let about = About {
                tenant: change.tenant,
                ..About::default().node(one)
            };
            let (kind, message) = change.event;
            self.controller
                .commit(&self.own, writes, about, kind, message)
                .await?;
            for flow in change.flows {
                self.decided(&flow, "policy_fitted", |situation, policy| {
                    Ok(fitted(situation, policy))
                })
                .await?;
            }
        }
        Ok(())
    }

    async fn decide_on_waiting(&self, key: Arc<str>) {
        let (controller, own) = (self.controller.clone(), self.own.clone());
        let leadership = self.leadership.clone();
        self.spawn(async move { controller.decide_on_waiting(&own, &key, &leadership).await })
            .await;
    }

    /// Decides again if the flow's policy does not fit its nodes' paths and the state of its
    /// egress.
    async fn fit(&self, flow: Name, kind: &'static str) {
        self.decide(flow, kind, |situation, policy| {
            Ok(fitted(situation, policy))
        })
        .await;
    }

    async fn follow_health(&self, flow: Name) {
        self.decide(flow, "flow_redirected", |situation, policy| {
            Ok(health_changed(situation, policy))
        })
        .await;
    }

    async fn decide(&self, flow: Name, kind: &'static str, choose: Choose) {
        if let Some(decision) = self.decision(flow, kind, choose) {
            self.spawn(decision).await;
        }
    }

    /// As [`Leader::decide`], and waits until the decision is written.
    async fn decided(&self, flow: &Name, kind: &'static str, choose: Choose) -> Result<(), Error> {
        match self.decision(flow.clone(), kind, choose) {
            Some(decision) => decision.await,
            None => Ok(()),
        }
    }

    /// Returns the task that decides about a flow; `None` if its policy can stay.
    fn decision(
        &self,
        flow: Name,
        kind: &'static str,
        choose: Choose,
    ) -> Option<impl Future<Output = Result<(), Error>> + Send + use<>> {
        if !self.has_decision(&flow, choose) {
            return None;
        }
        let (controller, own) = (self.controller.clone(), self.own.clone());
        let fence = self.leadership.fence();
        Some(async move {
            let describe =
                |policy: &Policy| (kind, format!("{}: {}", policy.flow, described(policy)));
            controller
                .decide(&own, &flow, vec![fence], None, &choose, &describe)
                .await
                .map(drop)
        })
    }

    /// Returns whether a decision about the flow is needed according to the view.
    fn has_decision(&self, flow: &Name, choose: Choose) -> bool {
        let view = self.controller.view();
        let (record, policy) = (view.flow(flow), view.policy(flow));
        let chosen = record
            .zip(policy)
            .map(|(record, policy)| choose(view.situation(&record.value.flow), &policy.value));
        matches!(chosen, Some(Ok(Some(_))))
    }

    /// Reports the loss of a node whose lease has expired. Its policies stay in force: its flows
    /// may still work although the node does not report.
    async fn lost(&self, node: Name) {
        let found = {
            let view = self.controller.view();
            let known = view.node(&node).filter(|(node, _)| node.is_missing());
            known.and_then(|(node, record)| Some((record.value.tenant.clone(), node.seen.clone()?)))
        };
        let Some((tenant, seen)) = found else { return };
        let writes = self.writes_of_loss(&node, &seen);
        let (controller, own) = (self.controller.clone(), self.own.clone());
        self.spawn(async move {
            let about = About::tenant(&tenant).node(&node);
            controller
                .commit(&own, writes, about, NODE_LOST, message_of_loss(&node))
                .await
                .map(drop)
        })
        .await;
    }

    fn writes_of_loss(&self, node: &Name, seen: &Versioned<SeenRecord>) -> Vec<Write> {
        vec![
            self.leadership.fence(),
            Write::check(key::of(key::ALIVE, node), Expect::Absent),
            self.controller.lost(node, seen),
        ]
    }

    /// Reports the loss of the nodes that are missing now and were in `before`, and returns the
    /// missing ones. This covers leases that expired while there was no leader, or ended with the
    /// store.
    async fn report_lost(&self, before: &HashSet<Name>) -> HashSet<Name> {
        let missing: HashSet<Name> = {
            let view = self.controller.view();
            let missing = view.nodes.iter().filter(|(_, node)| node.is_missing());
            missing.map(|(name, _)| name.clone()).collect()
        };
        for node in missing.intersection(before) {
            self.lost(node.clone()).await;
        }
        missing
    }

    async fn remove_old(&self) {
        if let Err(error) = self.try_remove_old().await {
            tracing::warn!("cannot remove old entries, retrying later: {error}");
        }
    }

    async fn try_remove_old(&self) -> Result<(), Error> {
        let (keys, mut trimmed) = {
            let (view, config) = (self.controller.view(), &self.controller.config);
            let keys = surplus(&view, config).into_iter();
            let keys = keys.map(|key| (view.events.number(&key), key.to_string()));
            (keys.collect::<Vec<_>>(), view.trimmed)
        };
        for keys in keys.chunks(MAX_WRITES - 2) {
            let mut writes: Vec<Write> = keys.iter().map(|(_, key)| Write::delete(key)).collect();
            writes.push(self.leadership.fence());
            let last = keys.iter().filter_map(|(number, _)| *number).max();
            if let Some(last) = last.filter(|last| *last > trimmed) {
                trimmed = last;
                writes.push(Write::put(key::TRIMMED, emit(&trimmed)));
            }
            self.controller.store(&self.own).commit(writes).await?;
        }
        Ok(())
    }

    /// Stores that this leader has run since `added`.
    async fn add_run_time(&self, added: &mut Instant) {
        let now = Instant::now();
        let run_time = {
            let (view, config) = (self.controller.view(), &self.controller.config);
            let mut run_time = view.run_time.clone();
            run_time.add(now - *added, view.complete, config.audit.age());
            run_time
        };
        let write = Write::put(key::RUN_TIME, emit(&run_time));
        let writes = vec![self.leadership.fence(), write];
        match self.controller.store(&self.own).commit(writes).await {
            Ok(_) => *added = now,
            Err(error) => tracing::warn!("cannot store how long leaders have run: {error}"),
        }
    }

    /// Runs a task in the background. Waits while too many tasks are running.
    async fn spawn(&self, task: impl Future<Output = Result<(), Error>> + Send + 'static) {
        let permit = self
            .at_once
            .clone()
            .acquire_owned()
            .await
            .expect("it is never closed");
        self.controller.tasks.spawn(async move {
            match task.await {
                // Another leader handles it, or the state was changed concurrently.
                Ok(()) | Err(Error::Conflict { .. }) => {}
                Err(error) => tracing::error!("cannot write a decision: {error}"),
            }
            drop(permit);
        });
    }
}
