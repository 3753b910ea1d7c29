//! Liveness of nodes: each node holds a lease for as long as it reports.
//!
//! The keys of an expired lease are deleted, and leases of the embedded store end with the
//! controller. A record without a lease therefore stores whether a node is alive. It is written
//! when the node gets a lease, when its loss is reported, and rarely in between to store the time
//! of the last report, so that reports cause no writes.

use crate::access::Certified;
use crate::api::refusal::HandlerError;
use crate::controller::{About, Controller};
use crate::record::{AliveRecord, HealthRecord, SeenRecord, emit, key};
use crate::store::{Error, Expect, Lease, MAX_WRITES, Write};
use hawser_control::Name;
use hawser_control::node::Reported;
use hawser_control::resource::PathHealth;
use hawser_io::clock::unix_ms;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The relative change of a smoothed round-trip time below which it is not written again.
const MIN_RTT_CHANGE: f64 = 0.1;

/// The interval at which the times of the last reports are written.
const SEEN_EVERY: Duration = Duration::from_secs(300);

impl Controller {
    /// Renews the lease of a node that has sent a request, or obtains one.
    pub(crate) async fn renew_lease(&self, caller: &Certified) -> Result<(), HandlerError> {
        let (node, now) = (&caller.node.node, Instant::now());
        if self.keep_lease(node, now).await? {
            return Ok(());
        }
        let Some(request) = self.liveness.begin_request(node) else {
            return Ok(());
        };
        let lease = self.obtain_lease(caller).await?;
        self.liveness.insert(node, lease, now);
        drop(request);
        Ok(())
    }

    /// Renews the lease of a node that this controller holds. Returns `false` if there is none.
    async fn keep_lease(&self, node: &Name, now: Instant) -> Result<bool, Error> {
        let held = self.liveness.held(node).filter(|_| self.is_held_here(node));
        let Some((lease, renewed_at)) = held else {
            return Ok(false);
        };
        // The lease is renewed a few times per period, not with every report.
        if now.duration_since(renewed_at) < lease.ttl / 4 {
            return Ok(true);
        }
        match self.store.keep_alive(lease.id).await {
            Ok(()) => {
                self.liveness.insert(node, lease, now);
                Ok(true)
            }
            Err(Error::LeaseGone(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the node is alive by a lease of this controller. Otherwise its lease has
    /// expired, or the node has in the meantime reported to another controller and holds a lease of
    /// that.
    fn is_held_here(&self, node: &Name) -> bool {
        let view = self.view();
        let alive = view.nodes.get(node).and_then(|node| node.alive.as_ref());
        alive.is_some_and(|alive| alive.controller == self.name)
    }

    async fn obtain_lease(&self, caller: &Certified) -> Result<Lease, HandlerError> {
        let node = &caller.node.node;
        self.may_change(node)?;
        let lease = self.store.grant(self.config.lease()).await?;
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
            Write::put(key::of(key::ALIVE, node), emit(&alive)).under(lease.id),
            Write::put(key::of(key::SEEN, node), emit(&seen)),
        ];
        self.retrying(|| self.try_announce(caller, &writes)).await?;
        Ok(lease)
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
        self.commit(writes, about, "node_alive", message).await?;
        Ok(())
    }

    /// Periodically writes the times of the last reports.
    pub(crate) async fn write_seen_periodically(self: Arc<Self>) {
        let mut often = tokio::time::interval(SEEN_EVERY);
        often.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            often.tick().await;
            if let Err(error) = self.write_seen().await {
                tracing::warn!(
                    "cannot store the times of the last reports, retrying later: {error}"
                );
            }
        }
    }

    /// Writes the times of the last reports of the nodes that report to this controller, many in
    /// one commit.
    pub(crate) async fn write_seen(&self) -> Result<(), Error> {
        for part in self.times_of_last_reports().chunks(MAX_WRITES) {
            match self.store.commit(part.to_vec()).await {
                // One of the nodes was lost, deleted or has reported to another controller.
                Err(Error::Conflict { .. }) => self.write_each(part).await?,
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
    async fn write_each(&self, writes: &[Write]) -> Result<(), Error> {
        for write in writes {
            match self.store.commit(vec![write.clone()]).await {
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
        paths: Vec<PathHealth>,
    ) -> Result<(), HandlerError> {
        let node = &caller.node.node;
        let must_write = {
            let view = self.view();
            let known = view.nodes.get(node).and_then(|node| node.health.as_ref());
            !paths.is_empty()
                && known.is_none_or(|known| has_changed_significantly(&known.value.paths, &paths))
        };
        let Some(lease) = self.liveness.lease(node).filter(|_| must_write) else {
            return Ok(());
        };
        if !self.admits_change(node, &caller.tenant).await? {
            // The next report repeats it.
            return Ok(());
        }
        let write =
            Write::put(key::of(key::HEALTH, node), emit(&HealthRecord { paths })).under(lease.id);
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
            .store
            .commit(vec![self.certificate_check(&caller.node)?, write])
            .await
        {
            Ok(revision) => {
                self.wait_until_applied(revision).await;
                Ok(())
            }
            // The node's next report obtains a new lease, or repeats the statement.
            Err(Error::LeaseGone(_) | Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
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
