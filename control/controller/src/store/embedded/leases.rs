//! Leases of the embedded store: in memory, by the monotonic clock.

use crate::store::{Lease, LeaseId};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(super) struct Leases {
    by_id: HashMap<LeaseId, State>,
    by_end: BTreeSet<(Instant, LeaseId)>,
    granted: LeaseId,
}

struct State {
    ttl: Duration,
    end: Instant,
    /// Keys written under the lease. Some may since have been written without it, or deleted.
    keys: HashSet<Arc<str>>,
}

impl Leases {
    pub(super) fn grant(&mut self, ttl: Duration, now: Instant) -> Lease {
        self.granted += 1;
        let (id, end) = (self.granted, now + ttl);
        self.by_id.insert(
            id,
            State {
                ttl,
                end,
                keys: HashSet::new(),
            },
        );
        self.by_end.insert((end, id));
        Lease { id, ttl }
    }

    /// Renews a lease. Returns whether it still exists.
    pub(super) fn keep_alive(&mut self, id: LeaseId, now: Instant) -> bool {
        let Some(state) = self.by_id.get_mut(&id) else {
            return false;
        };
        self.by_end.remove(&(state.end, id));
        state.end = now + state.ttl;
        self.by_end.insert((state.end, id));
        true
    }

    pub(super) fn exists(&self, id: LeaseId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(super) fn bind(&mut self, id: LeaseId, key: Arc<str>) {
        if let Some(state) = self.by_id.get_mut(&id) {
            state.keys.insert(key);
        }
    }

    /// Returns the keys that may have been written under the lease last.
    pub(super) fn keys(&self, id: LeaseId) -> Vec<Arc<str>> {
        self.by_id
            .get(&id)
            .map(|state| state.keys.iter().cloned().collect())
            .unwrap_or_default()
    }

    pub(super) fn remove(&mut self, id: LeaseId) {
        if let Some(state) = self.by_id.remove(&id) {
            self.by_end.remove(&(state.end, id));
        }
    }

    pub(super) fn next_end(&self) -> Option<Instant> {
        self.by_end.first().map(|(end, _)| *end)
    }

    /// Returns the expired leases.
    pub(super) fn ended(&self, now: Instant) -> Vec<LeaseId> {
        self.by_end
            .iter()
            .take_while(|(end, _)| *end <= now)
            .map(|(_, id)| *id)
            .collect()
    }
}
