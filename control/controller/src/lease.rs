//! Liveness of nodes: a node is alive while it reports to a controller that has its lease.
//!
//! The controller writes once that a node is alive, under the lease of its [session](crate::session),
//! and once that it is lost, when the node was silent for too long. Reports in between change only
//! memory. If a controller dies, its lease ends, and with it what it wrote about its nodes.
//!
//! The keys of an expired lease are deleted, and leases of the embedded store end with the
//! controller. A record without a lease therefore stores whether a node is alive. It is written
//! when the node is announced, when its loss is reported, and rarely in between to store the time
//! of the last report.

use crate::access::Certified;
use crate::controller::{About, Controller};
use crate::limit::Checked;
use crate::record::{AliveRecord, HealthRecord, SeenRecord, emit, key};
use crate::refusal::HandlerError;
use crate::store::{Error, Expect, LeaseId, MAX_WRITES, Write};
use crate::view::{NodeView, Versioned};
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::node::Reported;
use hawser_model::resource::PathHealth;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

/// The relative change of a smoothed round-trip time below which it is not written again.
const MIN_RTT_CHANGE: f64 = 0.1;

/// The interval at which the times of the last reports are written.
const SEEN_EVERY: Duration = Duration::from_secs(300);

/// The number of examinations for silent nodes within a lease time.
const EXAMINATIONS: u32 = 10;

/// The kind of the event of a lost node.
pub(crate) const NODE_LOST: &str = "node_lost";

/// The maximum number of writes that report the loss of a node.
const WRITES_OF_LOSS: usize = 5;

impl Controller {
    /// Records that a node has sent a request, and announces it as alive unless it is already.
    pub(crate) async fn note_alive(&self, caller: &Certified) -> Result<(), HandlerError> {
        let (node, now) = (&caller.node.node, Instant::now());
        let lease = self.session.lease().await?;
        let is_alive = (self.view().nodes.get(node)).is_some_and(|node| self.is_alive_here(node));
        if is_alive && self.liveness.reported(node, lease, now) {
            return Ok(());
        }
        let Some(announcement) = self.liveness.announce(node) else {
            return Ok(());
        };
        let lease = self.announce(caller, lease).await?;
        announcement.complete(lease, now);
        Ok(())
    }

    /// Returns whether the node is alive by a lease of this controller. Otherwise that lease has
    /// expired, or the node has in the meantime reported to another controller.
    fn is_alive_here(&self, node: &NodeView) -> bool {
        let alive = node.alive.as_ref();
        alive.is_some_and(|alive| alive.value.controller == self.name)
    }

    /// Writes that a node is alive. Returns the lease under which it is.
    async fn announce(&self, caller: &Certified, lease: LeaseId) -> Result<LeaseId, HandlerError> {
        self.may_change(&caller.node.node)?;
        match self.try_announce_under(caller, lease).await {
            Err(HandlerError::Store(Error::LeaseGone(_))) => {
                self.session.discard(lease);
                let lease = self.session.lease().await?;
                self.try_announce_under(caller, lease).await?;
                Ok(lease)
            }
            outcome => outcome.map(|()| lease),
        }
    }

    async fn try_announce_under(
        &self,
        caller: &Certified,
        lease: LeaseId,
    ) -> Result<(), HandlerError> {
        let node = &caller.node.node;
        let since_unix_ms = unix_ms();
        let alive = AliveRecord {
            controller: self.name.clone(),
            since_unix_ms,
        };
        let seen = SeenRecord {
            at_unix_ms: since_unix_ms,
            is_alive: true,
        };
        let writes = [
            Write::put(key::of(key::ALIVE, node), emit(&alive)).under(lease),
            Write::put(key::of(key::SEEN, node), emit(&seen)),
        ];
        self.retrying(|| self.try_announce(caller, &writes)).await
    }

    /// Writes that a node is alive.
    async fn try_announce(
        &self,
        caller: &Certified,
        writes: &[Write; 2],
    ) -> Result<(), HandlerError> {
        let node = &caller.node.node;
        let [alive, seen] = writes.clone();
        let writes = vec![self.certificate_check(&caller.node)?, alive, seen];
        let message = format!("node {node} reports to {}", self.name);
        let about = About::tenant(&caller.tenant).node(node);
        self.commit(&caller.checked, writes, about, "node_alive", message)
            .await?;
        Ok(())
    }

    /// Periodically reports the loss of the nodes that no longer report to this controller.
    pub(crate) async fn report_silent_periodically(self: Arc<Self>, own: Checked) {
        let mut often = tokio::time::interval(self.config.lease() / EXAMINATIONS);
        often.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            often.tick().await;
            if let Err(error) = self.report_silent(&own).await {
                tracing::warn!("cannot report lost nodes, retrying: {error}");
            }
            if let Err(error) = self.remove_silent_sources(&own).await {
                tracing::warn!("cannot remove sources of tracks, retrying: {error}");
            }
        }
    }

    /// Reports the loss of the nodes that were silent for the time of the lease, several in one
    /// commit.
    async fn report_silent(&self, own: &Checked) -> Result<(), Error> {
        let silent = {
            let view = self.view();
            let here = view
                .nodes
                .iter()
                .filter(|(_, node)| self.is_alive_here(node));
            let names = here.map(|(name, _)| name);
            self.liveness
                .silent(names, Instant::now(), self.config.lease())
        };
        for part in silent.chunks(MAX_WRITES / WRITES_OF_LOSS) {
            match self.report_loss(own, part).await {
                // One of them was deleted, or has reported to another controller.
                Err(Error::Conflict { .. }) => self.report_each_loss(own, part).await?,
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Commits the loss of nodes one by one. The next examination repeats those that conflict.
    async fn report_each_loss(&self, own: &Checked, nodes: &[Name]) -> Result<(), Error> {
        for node in nodes {
            match self.report_loss(own, std::slice::from_ref(node)).await {
                Ok(()) | Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Commits that nodes are lost, except those that are no longer alive by this controller.
    async fn report_loss(&self, own: &Checked, nodes: &[Name]) -> Result<(), Error> {
        let (mut writes, mut events) = (Vec::new(), Vec::new());
        {
            let view = self.view();
            let known = nodes
                .iter()
                .filter_map(|name| Some((name, view.node(name)?)));
            for (name, (node, record)) in known.filter(|(_, (node, _))| self.is_alive_here(node)) {
                writes.extend(self.writes_of_loss(name, node));
                let about = About::tenant(&record.value.tenant).node(name);
                about.document(&mut events, NODE_LOST, message_of_loss(name));
            }
        }
        // An event is the last write, see `View::apply`.
        writes.append(&mut events);
        if writes.is_empty() {
            return Ok(());
        }
        self.store(own).commit(writes).await.map(drop)
    }

    /// Returns the writes by which a node is no longer alive by this controller.
    fn writes_of_loss(&self, name: &Name, node: &NodeView) -> Vec<Write> {
        let delete = |kind| Write::delete(key::of(kind, name));
        let seen = node.seen.iter().map(|seen| self.lost(name, seen));
        let alive = node.alive.iter();
        let alive = alive.map(|alive| delete(key::ALIVE).when(Expect::Revision(alive.revision)));
        let health = node.health.iter().map(|_| delete(key::HEALTH));
        let tunnel = node.tunnel.iter().map(|_| delete(key::TUNNEL));
        seen.chain(alive).chain(health).chain(tunnel).collect()
    }

    /// Returns the write that stores that a node is lost. Its condition lets only one controller
    /// report the loss.
    pub(crate) fn lost(&self, node: &Name, seen: &Versioned<SeenRecord>) -> Write {
        let reported_at = self.seen_unix_ms(node).unwrap_or(0);
        let lost = emit(&SeenRecord {
            at_unix_ms: reported_at.max(seen.value.at_unix_ms),
            is_alive: false,
        });
        Write::put(key::of(key::SEEN, node), lost).when(Expect::Revision(seen.revision))
    }

    /// Periodically writes the times of the last reports.
    pub(crate) async fn write_seen_periodically(self: Arc<Self>, own: Checked) {
        let mut often = tokio::time::interval(SEEN_EVERY);
        often.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            often.tick().await;
            if let Err(error) = self.write_seen(&own).await {
                tracing::warn!(
                    "cannot store the times of the last reports, retrying later: {error}"
                );
            }
        }
    }

    /// Writes the times of the last reports of the nodes that report to this controller, many in
    /// one commit.
    pub(crate) async fn write_seen(&self, own: &Checked) -> Result<(), Error> {
        for part in self.times_of_last_reports().chunks(MAX_WRITES) {
            match self.store(own).commit(part.to_vec()).await {
                // One of the nodes was lost, deleted or has reported to another controller.
                Err(Error::Conflict { .. }) => self.write_each(own, part).await?,
                outcome => drop(outcome?),
            }
        }
        Ok(())
    }

    /// Returns the writes of the times of the last reports that are not stored yet.
    fn times_of_last_reports(&self) -> Vec<Write> {
        let (view, reports) = (self.view(), self.reports());
        let write = |(name, reported): (&Name, &Reported)| {
            let seen = view.nodes.get(name)?.seen.as_ref()?;
            let must_write = seen.value.is_alive && seen.value.at_unix_ms < reported.at_unix_ms;
            let now = SeenRecord {
                at_unix_ms: reported.at_unix_ms,
                is_alive: true,
            };
            let write = Write::put(key::of(key::SEEN, name), emit(&now));
            must_write.then(|| write.when(Expect::Revision(seen.revision)))
        };
        reports.iter().filter_map(write).collect()
    }

    /// Commits writes one by one, except those that conflict.
    async fn write_each(&self, own: &Checked, writes: &[Write]) -> Result<(), Error> {
        for write in writes {
            match self.store(own).commit(vec![write.clone()]).await {
                Ok(_) | Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Handles the health of paths in a node's report. Significant changes are written to the store
    /// for all controllers.
    pub(crate) async fn on_path_health(
        &self,
        caller: &Certified,
        health: HealthRecord,
    ) -> Result<(), HandlerError> {
        let node = &caller.node.node;
        let must_write = {
            let view = self.view();
            let known = view.nodes.get(node).and_then(|node| node.health.as_ref());
            match known {
                None => !(health.paths.is_empty() && health.reached.is_empty()),
                Some(known) => {
                    known.value.reached != health.reached
                        || !health.paths.is_empty()
                            && has_changed_significantly(&known.value.paths, &health.paths)
                }
            }
        };
        let Some(lease) = self.liveness.lease(node).filter(|_| must_write) else {
            return Ok(());
        };
        if !self.admits_change(caller).await? {
            // The next report repeats it.
            return Ok(());
        }
        let write = Write::put(key::of(key::HEALTH, node), emit(&health)).under(lease);
        self.write_under_lease(caller, write).await
    }

    /// Writes a statement of a node about itself, and waits until the view contains it.
    pub(crate) async fn write_under_lease(
        &self,
        caller: &Certified,
        write: Write,
    ) -> Result<(), HandlerError> {
        // The key of this write marks the revision as complete in the view, see `View::apply`.
        match self
            .store(&caller.checked)
            .commit(vec![self.certificate_check(&caller.node)?, write])
            .await
        {
            Ok(revision) => {
                self.wait_until_applied(revision).await;
                Ok(())
            }
            // The node's next report announces it again, or repeats the statement.
            Err(Error::LeaseGone(_) | Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

pub(crate) fn message_of_loss(node: &Name) -> String {
    format!("node {node} has not reported for too long")
}

fn has_changed_significantly(known: &[PathHealth], now: &[PathHealth]) -> bool {
    known.len() != now.len()
        || known.iter().zip(now).any(|(known, now)| {
            let rtts = (known.rtt_us.map(f64::from), now.rtt_us.map(f64::from));
            let moved = match rtts {
                (Some(known), Some(now)) => (now - known).abs() > known * MIN_RTT_CHANGE,
                (known, now) => known.is_some() != now.is_some(),
            };
            moved || (known.number, known.up) != (now.number, now.up)
        })
}
