//! Budgets of nodes: each event and each change takes space in the store and in the history of
//! etcd.

use crate::config::LimitsConfig;
use crate::limit::by_name;
use hawser_io::rate_limit::RateLimit;
use hawser_model::Name;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

pub(crate) struct Budget {
    pub(crate) events: RateLimit<Name>,
    pub(crate) changes: RateLimit<Name>,
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
        let burst = u32::try_from(limits.max_node_events).unwrap_or(u32::MAX);
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        Budget {
            events: by_name(limits.node_events_per_s, burst),
            changes: by_name(limits.node_changes_per_s, burst),
            quiet: Duration::from_secs_f64(
                (f64::from(burst.get()) / limits.node_events_per_s).min(3600.0),
            ),
            withheld: Mutex::default(),
        }
    }

    /// Counts an event that is not recorded. Returns whether to announce it.
    pub(crate) fn withhold(&self, node: &Name, now: Instant) -> bool {
        let mut all = self.withheld.lock();
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
        self.withheld.lock().remove(node);
        self.events.forget(node);
        self.changes.forget(node);
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
