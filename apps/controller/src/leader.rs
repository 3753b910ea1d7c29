//! What the leader alone does: it decides on what nodes report, notices the dead, and clears away.

use crate::controller::{About, Controller};
use crate::decide::described;
use crate::record::{NodeRecord, SeenRecord, emit, key, unix_ms};
use crate::retention::surplus;
use crate::store::{Error, Expect, Leadership, MAX_WRITES, Write};
use crate::view::{At, Touched};
use hawser_control::Name;
use hawser_control::decide::{Decision, Situation, Void, fitted, health_changed};
use hawser_control::resource::{Mode, Policy};
use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior};

/// Decisions that are written at once.
const AT_ONCE: usize = 256;

/// Nodes that are rewritten in one commit, which has a size too.
const NODES_AT_ONCE: usize = 20;

/// How often old events, audit entries and expired tokens are cleared away.
const CLEAR_EVERY: Duration = Duration::from_secs(30);

/// Acts upon what changes for as long as this controller leads, for ever.
pub(crate) async fn run(controller: Arc<Controller>, mut inbox: mpsc::UnboundedReceiver<Touched>) {
    let mut role = controller.role.clone();
    let mut clear = tokio::time::interval(CLEAR_EVERY);
    let at_once = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let leadership = role.borrow_and_update().leadership().cloned();
        let Some(leadership) = leadership else {
            tokio::select! {
                changed = role.changed() => if changed.is_err() { return },
                // What a leader does first is to look at everything.
                touched = inbox.recv() => if touched.is_none() { return },
            }
            continue;
        };
        controller.filled().await;
        let leader = Leader {
            controller: controller.clone(),
            leadership,
            at_once: at_once.clone(),
        };
        leader.look_at_everything().await;
        // Nodes have one to two lease times to find a controller after the previous one has ended.
        let lease = controller.config.lease();
        let mut look_for_lost = tokio::time::interval_at(Instant::now() + lease, lease);
        look_for_lost.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut missing = HashSet::new();
        while leader.leadership.holds() {
            tokio::select! {
                changed = role.changed() => if changed.is_err() { return } else { break },
                touched = inbox.recv() => match touched {
                    Some(touched) => leader.look_at(touched).await,
                    None => return,
                },
                _ = clear.tick() => leader.clear_away().await,
                _ = look_for_lost.tick() => missing = leader.look_for_lost(&missing).await,
            }
        }
    }
}

struct Leader {
    controller: Arc<Controller>,
    leadership: Leadership,
    at_once: Arc<Semaphore>,
}

impl Leader {
    async fn look_at_everything(&self) {
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
            "looks at everything"
        );
        for key in observations {
            self.act_upon_waiting(key).await;
        }
        for flow in flows {
            self.fit(flow, "policy_fitted").await;
        }
    }

    async fn look_at(&self, touched: Touched) {
        match touched {
            Touched::Nothing => self.look_at_everything().await,
            Touched::Observation(key) => self.act_upon_waiting(key).await,
            Touched::Registration(node) => {
                for flow in self.flows_of(&node) {
                    self.fit(flow, "policy_fitted").await;
                }
            }
            Touched::Health(node) => {
                for flow in self.redirected_flows_of(&node) {
                    self.follow_health(flow).await;
                }
            }
            Touched::Received(flow) => self.fit(flow, "flow_received").await,
            Touched::Lost(node) => self.lost(node).await,
            Touched::Node(_)
            | Touched::Deleted(_)
            | Touched::Flow { .. }
            | Touched::Policy { .. }
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

    async fn act_upon_waiting(&self, key: Arc<str>) {
        let (controller, leadership) = (self.controller.clone(), self.leadership.clone());
        self.spawn(async move { controller.act_upon_waiting(&key, &leadership).await })
            .await;
    }

    /// Decides anew if the flow's policy does not fit what its nodes have and do.
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

    async fn decide(
        &self,
        flow: Name,
        kind: &'static str,
        choose: fn(Situation<'_>, &Policy) -> Result<Option<Decision>, Void>,
    ) {
        let is_needed = {
            let view = self.controller.view();
            let (record, policy) = (view.flow(&flow), view.policy(&flow));
            let chosen = record
                .zip(policy)
                .map(|(record, policy)| choose(view.situation(&record.value.flow), &policy.value));
            matches!(chosen, Some(Ok(Some(_))))
        };
        if !is_needed {
            return;
        }
        let (controller, fence) = (self.controller.clone(), self.leadership.fence());
        self.spawn(async move {
            let describe =
                |policy: &Policy| (kind, format!("{}: {}", policy.flow, described(policy)));
            controller
                .decide(&flow, vec![fence], None, &choose, &describe)
                .await
                .map(drop)
        })
        .await;
    }

    /// A node's lease ran out. What is in force stays: its flows may live although it does not report.
    async fn lost(&self, node: Name) {
        let found = {
            let view = self.controller.view();
            let known = view.node(&node).filter(|(node, _)| node.is_missing());
            known.and_then(|(node, record)| Some((record.value.tenant.clone(), node.seen.clone()?)))
        };
        let Some((tenant, seen)) = found else { return };
        let at_unix_ms = self
            .controller
            .seen_unix_ms(&node)
            .unwrap_or(0)
            .max(seen.value.at_unix_ms);
        let lost = emit(&SeenRecord {
            at_unix_ms,
            is_alive: false,
        });
        let writes = vec![
            self.leadership.fence(),
            Write::check(key::of(key::ALIVE, &node), Expect::Absent),
            // Only one leader can report the loss.
            Write::put(key::of(key::SEEN, &node), lost).when(Expect::Revision(seen.revision)),
        ];
        let controller = self.controller.clone();
        self.spawn(async move {
            let message = format!("node {node} has not reported for too long");
            let about = About::tenant(&tenant).node(&node);
            controller
                .commit(writes, about, "node_lost", message)
                .await
                .map(drop)
        })
        .await;
    }

    /// Reports the loss of the nodes that are missing now and are in `before`; returns the missing ones. It finds leases that
    /// ran out while no controller led, or ended with the store.
    async fn look_for_lost(&self, before: &HashSet<Name>) -> HashSet<Name> {
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

    async fn clear_away(&self) {
        if let Err(error) = self.try_clear_away().await {
            tracing::warn!("old entries are cleared away later: {error}");
        }
    }

    async fn try_clear_away(&self) -> Result<(), Error> {
        let keys: Vec<String> = {
            let (view, config) = (self.controller.view(), &self.controller.config);
            surplus(&view, config, unix_ms())
                .iter()
                .map(|key| key.to_string())
                .collect()
        };
        for keys in keys.chunks(MAX_WRITES - 1) {
            let mut writes: Vec<Write> = keys.iter().map(Write::delete).collect();
            writes.push(self.leadership.fence());
            self.controller.store.commit(writes).await?;
        }
        self.forget_expired_tokens().await
    }

    /// Nobody is harmed by an expired token, but it takes space.
    async fn forget_expired_tokens(&self) -> Result<(), Error> {
        let writes: Vec<Write> = {
            let view = self.controller.view();
            let records = view
                .nodes
                .iter()
                .filter_map(|(name, node)| Some((name, node.record.as_ref()?)));
            let without = |(name, record): (&Name, &At<NodeRecord>)| {
                let mut node = record.value.clone();
                node.forget_expired_tokens();
                let is_less = node != record.value;
                // Nobody has asked for it, so the node's tag stays.
                node.changed_in = Some(node.changed_in(record.revision));
                let write = Write::put(key::of(key::NODE, name), emit(&node));
                is_less.then(|| write.when(Expect::Revision(record.revision)))
            };
            records.filter_map(without).collect()
        };
        for writes in writes.chunks(NODES_AT_ONCE) {
            let writes = writes
                .iter()
                .cloned()
                .chain([self.leadership.fence()])
                .collect();
            match self.controller.store.commit(writes).await {
                // Somebody changes one of them: the next time will do.
                Ok(_) | Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits only while too many others run.
    async fn spawn(&self, task: impl Future<Output = Result<(), Error>> + Send + 'static) {
        let permit = self
            .at_once
            .clone()
            .acquire_owned()
            .await
            .expect("it is never closed");
        tokio::spawn(async move {
            match task.await {
                // Another one leads and will see to it, or somebody was quicker.
                Ok(()) | Err(Error::Conflict { .. }) => {}
                Err(error) => tracing::error!("a decision could not be written: {error}"),
            }
            drop(permit);
        });
    }
}
