//! Which nodes live: each holds a lease for as long as it reports.
//!
//! Nothing remains of a lease that ends, and leases of the embedded store end with the controller. A record without lease
//! therefore says whether a node is alive: it is written when the node gets a lease and when its loss is reported, and
//! rarely in between to note the time of the last report, so that a report costs no write.

use crate::access::Certified;
use crate::api::refusal::Failed;
use crate::controller::{About, Controller};
use crate::record::{AliveRecord, HealthRecord, SeenRecord, emit, key, unix_ms};
use crate::store::{Error, Expect, Lease, MAX_WRITES, Write};
use hawser_control::Name;
use hawser_control::node::Reported;
use hawser_control::resource::PathHealth;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A smoothed round-trip time that differs by less than this part is no news.
const RTT_NEWS: f64 = 0.1;

/// How often the times of the last reports are written.
const SEEN_EVERY: Duration = Duration::from_secs(300);

/// The leases of nodes that report here.
#[derive(Default)]
pub(crate) struct Liveness(Mutex<HashMap<Name, Held>>);

#[derive(Clone, Copy)]
enum Held {
    /// A request is about to get one. Another request of the node leaves that to it.
    Asked,
    Lease {
        lease: Lease,
        kept: Instant,
    },
}

/// Takes back that a lease was asked for, unless it was got.
struct Asking<'a> {
    liveness: &'a Liveness,
    node: &'a Name,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut leases = self.liveness.leases();
        if matches!(leases.get(self.node), Some(Held::Asked)) {
            leases.remove(self.node);
        }
    }
}

impl Liveness {
    fn leases(&self) -> MutexGuard<'_, HashMap<Name, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, node: &Name) -> Option<(Lease, Instant)> {
        match self.leases().get(node)? {
            Held::Lease { lease, kept } => Some((*lease, *kept)),
            Held::Asked => None,
        }
    }

    /// The lease of a node that reports here.
    pub(crate) fn lease(&self, node: &Name) -> Option<Lease> {
        self.held(node).map(|(lease, _)| lease)
    }

    fn hold(&self, node: &Name, lease: Lease, kept: Instant) {
        self.leases().insert(node.clone(), Held::Lease { lease, kept });
    }

    /// None when another request is asking.
    fn ask<'a>(&'a self, node: &'a Name) -> Option<Asking<'a>> {
        let mut leases = self.leases();
        if matches!(leases.get(node), Some(Held::Asked)) {
            return None;
        }
        leases.insert(node.clone(), Held::Asked);
        Some(Asking { liveness: self, node })
    }

    /// The node is not to be kept alive any more.
    pub(crate) fn forget(&self, node: &Name) {
        self.leases().remove(node);
    }
}

impl Controller {
    /// A node was heard of.
    pub(crate) async fn heard_of(&self, caller: &Certified) -> Result<(), Failed> {
        let (node, now) = (&caller.node.node, Instant::now());
        let is_kept_here = {
            let view = self.view();
            let alive = view.nodes.get(node).and_then(|node| node.alive.as_ref());
            // Otherwise its lease ran out, or it has reported to another controller meanwhile, under a lease of that.
            alive.is_some_and(|alive| alive.controller == self.name)
        };
        if let Some((lease, kept)) = self.liveness.held(node).filter(|_| is_kept_here) {
            // Several times within the lease, not with every report.
            if now.duration_since(kept) < lease.ttl / 4 {
                return Ok(());
            }
            match self.store.keep_alive(lease.id).await {
                Ok(()) => {
                    self.liveness.hold(node, lease, now);
                    return Ok(());
                }
                Err(Error::LeaseGone(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let Some(asking) = self.liveness.ask(node) else { return Ok(()) };
        self.may_change(node)?;
        let lease = self.store.grant(self.config.lease()).await?;
        let alive = AliveRecord { controller: self.name.clone(), since_unix_ms: unix_ms() };
        let seen = SeenRecord { at_unix_ms: alive.since_unix_ms, is_alive: true };
        let alive = &Write::put(key::of(key::ALIVE, node), emit(&alive)).under(lease.id);
        let seen = &Write::put(key::of(key::SEEN, node), emit(&seen));
        self.retrying(|| async move {
            let writes = vec![self.still(&caller.node)?, alive.clone(), seen.clone()];
            let message = format!("node {node} reports to {}", self.name);
            let about = About::tenant(&caller.tenant).node(node);
            self.commit(writes, about, "node_alive", message).await?;
            Ok(())
        })
        .await?;
        self.liveness.hold(node, lease, now);
        drop(asking);
        Ok(())
    }

    /// Writes the times of the last reports again and again.
    pub(crate) async fn remember_seen_often(self: Arc<Self>) {
        let mut often = tokio::time::interval(SEEN_EVERY);
        often.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            often.tick().await;
            if let Err(error) = self.remember_seen().await {
                tracing::warn!("the times of the last reports are written later: {error}");
            }
        }
    }

    /// Writes the times of the last reports of the nodes that report here, many in one commit.
    pub(crate) async fn remember_seen(&self) -> Result<(), Error> {
        let writes: Vec<Write> = {
            let (view, reports) = (self.view(), self.reports());
            let write = |(name, reported): (&Name, &Reported)| {
                let seen = view.nodes.get(name)?.seen.as_ref()?;
                let is_news = seen.value.is_alive && seen.value.at_unix_ms < reported.at_unix_ms;
                let now = SeenRecord { at_unix_ms: reported.at_unix_ms, is_alive: true };
                let write = Write::put(key::of(key::SEEN, name), emit(&now));
                is_news.then(|| write.when(Expect::Revision(seen.revision)))
            };
            reports.iter().filter_map(write).collect()
        };
        for part in writes.chunks(MAX_WRITES) {
            match self.store.commit(part.to_vec()).await {
                // One of the nodes was lost, deleted or heard of elsewhere; the others are written one by one.
                Err(Error::Conflict { .. }) => {
                    for write in part {
                        match self.store.commit(vec![write.clone()]).await {
                            Ok(_) | Err(Error::Conflict { .. }) => {}
                            Err(error) => return Err(error),
                        }
                    }
                }
                outcome => drop(outcome?),
            }
        }
        Ok(())
    }

    /// A node said how its paths are. What is news goes to all controllers.
    pub(crate) async fn heard_health(
        &self,
        caller: &Certified,
        paths: Vec<PathHealth>,
    ) -> Result<(), Failed> {
        let node = &caller.node.node;
        let is_news = {
            let view = self.view();
            let known = view.nodes.get(node).and_then(|node| node.health.as_ref());
            !paths.is_empty() && known.is_none_or(|known| is_news(&known.value.paths, &paths))
        };
        let Some(lease) = self.liveness.lease(node).filter(|_| is_news) else { return Ok(()) };
        if !self.makes_change(node, &caller.tenant).await? {
            // The next report says it again.
            return Ok(());
        }
        let write = Write::put(key::of(key::HEALTH, node), emit(&HealthRecord { paths })).under(lease.id);
        self.write_under_lease(caller, write).await
    }

    /// Writes what a node said of itself, and waits until it can be read back here.
    pub(crate) async fn write_under_lease(&self, caller: &Certified, write: Write) -> Result<(), Failed> {
        // The last one tells the view that all of it was seen.
        match self.store.commit(vec![self.still(&caller.node)?, write]).await {
            Ok(revision) => {
                self.shown(revision).await;
                Ok(())
            }
            // The node's next report gets it a new lease, or says it again.
            Err(Error::LeaseGone(_) | Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn is_news(known: &[PathHealth], now: &[PathHealth]) -> bool {
    known.len() != now.len()
        || known.iter().zip(now).any(|(known, now)| {
            let rtts = (known.rtt_us.map(f64::from), now.rtt_us.map(f64::from));
            let moved = match rtts {
                (Some(known), Some(now)) => (now - known).abs() > known * RTT_NEWS,
                (known, now) => known.is_some() != now.is_some(),
            };
            moved || (known.number, known.up) != (now.number, now.up)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_of_a_node_at_a_time_asks_for_a_lease() {
        let (liveness, node) = (Liveness::default(), "edge".parse().unwrap());
        let asking = liveness.ask(&node);
        assert!(asking.is_some());
        for _ in 0..3 {
            assert!(liveness.ask(&node).is_none());
        }
        drop(asking);
        assert!(liveness.ask(&node).is_some(), "the first one got none");
    }
}
