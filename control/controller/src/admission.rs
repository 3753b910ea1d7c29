//! Admission of the events and changes of nodes within their budgets.

use crate::access::Certified;
use crate::controller::{About, Controller};
use crate::limit::Checked;
use crate::refusal::Refusal;
use crate::store::Error;
use hawser_io::rate_limit::RateLimit;
use hawser_model::Name;
use std::time::Instant;

impl Controller {
    /// Returns whether an event of a node may be recorded. Rejected ones are counted; the first one
    /// is announced.
    pub(crate) async fn admits_event(&self, caller: &Certified) -> Result<bool, Error> {
        self.admits_event_of(&caller.checked, &caller.node.node, &caller.tenant)
            .await
    }

    /// As [`Controller::admits_event`], for an event of a node that is not the caller.
    pub(crate) async fn admits_event_of(
        &self,
        checked: &Checked,
        node: &Name,
        tenant: &Name,
    ) -> Result<bool, Error> {
        self.is_within(checked, &self.budget.events, "node_events", node, tenant)
            .await
    }

    /// Returns whether a change by a node may be made. Rejected ones are counted; the first one is
    /// announced.
    pub(crate) async fn admits_change(&self, caller: &Certified) -> Result<bool, Error> {
        let (node, tenant) = (&caller.node.node, &caller.tenant);
        let limit = &self.budget.changes;
        self.is_within(&caller.checked, limit, "node_changes", node, tenant)
            .await
    }

    async fn is_within(
        &self,
        checked: &Checked,
        limit: &RateLimit<Name>,
        reason: &'static str,
        node: &Name,
        tenant: &Name,
    ) -> Result<bool, Error> {
        if limit.take(node.clone()).is_ok() {
            return Ok(true);
        }
        self.metrics.refused(reason);
        if self.budget.withhold(node, Instant::now()) {
            tracing::warn!(%node, reason, "node exceeds its budget of events or changes");
            let about = About::tenant(tenant).node(node);
            let message = format!(
                "{node} exceeds limits.{reason}_per_s; its events and observations beyond the limit are discarded"
            );
            self.commit(checked, vec![], about, "node_over_budget", message)
                .await?;
        }
        Ok(false)
    }

    /// Rejects a change by a node beyond its budget.
    pub(crate) fn may_change(&self, node: &Name) -> Result<(), Refusal> {
        self.budget.changes.take(node.clone()).map_err(|after| {
            self.metrics.refused("node_changes");
            Refusal::too_many("changes by this node", after)
        })
    }
}
