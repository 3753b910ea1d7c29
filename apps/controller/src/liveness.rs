//! Which nodes live: each holds a lease for as long as it reports.

use crate::controller::{About, Controller};
use crate::record::{AliveRecord, HealthRecord, emit, key, unix_ms};
use crate::store::{Error, Lease, Write};
use hawser_control::Name;
use hawser_control::resource::PathHealth;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A smoothed round-trip time that differs by less than this part is no news.
const RTT_NEWS: f64 = 0.1;

/// The leases of nodes that report here.
#[derive(Default)]
pub(crate) struct Liveness(Mutex<HashMap<Name, Held>>);

#[derive(Clone, Copy)]
struct Held {
    lease: Lease,
    kept: Instant,
}

impl Liveness {
    fn held(&self, node: &Name) -> Option<Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(node).copied()
    }

    fn hold(&self, node: &Name, held: Held) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(node.clone(), held);
    }

    /// The node is not to be kept alive any more.
    pub(crate) fn forget(&self, node: &Name) -> Option<i64> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
        held.map(|held| held.lease.id)
    }
}

impl Controller {
    /// A node was heard of.
    pub(crate) async fn heard_of(&self, node: &Name, tenant: &Name) -> Result<(), Error> {
        let now = Instant::now();
        if let Some(held) = self.liveness.held(node) {
            // Several times within the lease, not with every report.
            if now.duration_since(held.kept) < held.lease.ttl / 4 {
                return Ok(());
            }
            match self.store.keep_alive(held.lease.id).await {
                Ok(()) => {
                    self.liveness.hold(node, Held { kept: now, ..held });
                    return Ok(());
                }
                Err(Error::LeaseGone(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let lease = self.store.grant(self.config.lease()).await?;
        let alive = AliveRecord { controller: self.name.clone(), since_unix_ms: unix_ms() };
        let write = Write::put(key::of(key::ALIVE, node), emit(&alive)).under(lease.id);
        let message = format!("node {node} reports to {}", self.name);
        self.commit(vec![write], About::tenant(tenant).node(node), "node_alive", message).await?;
        self.liveness.hold(node, Held { lease, kept: now });
        Ok(())
    }

    /// A node said how its paths are. What is news goes to all controllers.
    pub(crate) async fn heard_health(&self, node: &Name, paths: Vec<PathHealth>) -> Result<(), Error> {
        let is_news = {
            let view = self.view();
            let known = view.nodes.get(node).and_then(|node| node.health.as_ref());
            known.is_none_or(|known| is_news(&known.value.paths, &paths))
        };
        let Some(held) = self.liveness.held(node).filter(|_| is_news) else { return Ok(()) };
        let write =
            Write::put(key::of(key::HEALTH, node), emit(&HealthRecord { paths })).under(held.lease.id);
        match self.store.commit(vec![write]).await {
            // The node's next report gets it a new lease.
            Err(Error::LeaseGone(_)) | Ok(_) => Ok(()),
            Err(error) => Err(error),
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
