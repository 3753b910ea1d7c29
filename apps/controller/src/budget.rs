//! Budgets of nodes: each event and each change takes space in the store and in the history of
//! etcd.

use crate::api::refusal::Refusal;
use crate::config::LimitsConfig;
use crate::controller::{About, Controller};
use crate::limit::Limit;
use crate::store::Error;
use hawser_control::Name;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) struct Budget {
    events: Limit<Name>,
    changes: Limit<Name>,
    /// The time within its budget after which a node is announced again when it exceeds it.
    quiet: Duration,
    withheld: Mutex<HashMap<Name, Withheld>>,
}

/// Events and observations of a node beyond its budget.
struct Withheld {
    count: u64,
    last: Instant,
}

impl Budget {
    pub(crate) fn new(limits: &LimitsConfig) -> Budget {
        // An f64 represents integers of this size exactly.
        let burst = limits.max_node_events.min(1 << 30) as f64;
        Budget {
            events: Limit::with_burst(limits.node_events_per_s, burst),
            changes: Limit::with_burst(limits.node_changes_per_s, burst),
            quiet: Duration::from_secs_f64((burst / limits.node_events_per_s).min(3600.0)),
            withheld: Mutex::default(),
        }
    }

    fn withheld(&self) -> MutexGuard<'_, HashMap<Name, Withheld>> {
        self.withheld.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an event that is not recorded. Returns whether to announce it.
    fn withhold(&self, node: &Name, now: Instant) -> bool {
        let mut all = self.withheld();
        if let Some(withheld) = all.get_mut(node)
            && now.duration_since(withheld.last) < self.quiet
        {
            withheld.count += 1;
            withheld.last = now;
            return false;
        }
        if let Some(before) = all.insert(
            node.clone(),
            Withheld {
                count: 1,
                last: now,
            },
        ) {
            tracing::info!(%node, count = before.count, "events and observations of the node were discarded");
        }
        true
    }

    /// Discards the budget of a removed node. A later node of the name has the whole budget.
    pub(crate) fn forget(&self, node: &Name) {
        self.withheld().remove(node);
        self.events.forget(node);
        self.changes.forget(node);
    }
}

impl Controller {
    /// Returns whether an event of a node may be recorded. Rejected ones are counted; the first one
    /// is announced.
    pub(crate) async fn admits_event(&self, node: &Name, tenant: &Name) -> Result<bool, Error> {
        self.is_within(&self.budget.events, "node_events", node, tenant)
            .await
    }

    /// Returns whether a change by a node may be made. Rejected ones are counted; the first one is
    /// announced.
    pub(crate) async fn admits_change(&self, node: &Name, tenant: &Name) -> Result<bool, Error> {
        self.is_within(&self.budget.changes, "node_changes", node, tenant)
            .await
    }

    async fn is_within(
        &self,
        limit: &Limit<Name>,
        reason: &'static str,
        node: &Name,
        tenant: &Name,
    ) -> Result<bool, Error> {
        let now = Instant::now();
        if limit.take(node.clone(), now).is_ok() {
            return Ok(true);
        }
        self.metrics.refused(reason);
        if self.budget.withhold(node, now) {
            let message = format!(
                "{node} exceeds limits.{reason}_per_s; its events and observations beyond the limit are discarded"
            );
            tracing::warn!(%node, reason, "node exceeds its budget of events or changes");
            self.commit(
                vec![],
                About::tenant(tenant).node(node),
                "node_over_budget",
                message,
            )
            .await?;
        }
        Ok(false)
    }

    /// Rejects a change by a node beyond its budget.
    pub(crate) fn may_change(&self, node: &Name) -> Result<(), Refusal> {
        self.budget
            .changes
            .take(node.clone(), Instant::now())
            .map_err(|after| {
                self.metrics.refused("node_changes");
                Refusal::too_many("changes by this node", after)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exceeded_budget_is_announced_once() {
        let limits = LimitsConfig {
            max_node_events: 20,
            node_events_per_s: 2.0,
            ..LimitsConfig::default()
        };
        let budget = Budget::new(&limits);
        let (node, start) = ("a".parse().unwrap(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert!(budget.withhold(&node, at(0)));
        assert!(!budget.withhold(&node, at(1)));
        assert!(
            !budget.withhold(&node, at(10)),
            "it was never quiet for long enough"
        );
        assert!(budget.withhold(&node, at(21)));
        budget.forget(&node);
        assert!(budget.withhold(&node, at(22)));
    }
}
