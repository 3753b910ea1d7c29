//! The leases of nodes: each node holds one for as long as it reports.

use crate::store::Lease;
use hawser_control::Name;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::time::Instant;

/// The leases of the nodes that report to this controller.
#[derive(Default)]
pub(crate) struct Liveness(Mutex<HashMap<Name, LeaseState>>);

#[derive(Clone, Copy)]
enum LeaseState {
    /// A request of the node is obtaining a lease. Other requests of the node do not.
    Requested,
    Lease {
        lease: Lease,
        renewed_at: Instant,
    },
}

/// Clears [`LeaseState::Requested`] when dropped, unless the lease was granted.
pub(crate) struct LeaseRequest<'a> {
    liveness: &'a Liveness,
    node: &'a Name,
}

impl Drop for LeaseRequest<'_> {
    fn drop(&mut self) {
        let mut leases = self.liveness.leases();
        if matches!(leases.get(self.node), Some(LeaseState::Requested)) {
            leases.remove(self.node);
        }
    }
}

impl Liveness {
    fn leases(&self) -> MutexGuard<'_, HashMap<Name, LeaseState>> {
        self.0.lock()
    }

    /// Returns the lease of a node, and when it was last renewed.
    pub(crate) fn held(&self, node: &Name) -> Option<(Lease, Instant)> {
        match self.leases().get(node)? {
            LeaseState::Lease { lease, renewed_at } => Some((*lease, *renewed_at)),
            LeaseState::Requested => None,
        }
    }

    /// Returns the lease of a node that reports to this controller.
    pub(crate) fn lease(&self, node: &Name) -> Option<Lease> {
        self.held(node).map(|(lease, _)| lease)
    }

    /// Stores the lease of a node, granted or renewed at `renewed_at`.
    pub(crate) fn insert(&self, node: &Name, lease: Lease, renewed_at: Instant) {
        self.leases()
            .insert(node.clone(), LeaseState::Lease { lease, renewed_at });
    }

    /// Marks the lease as requested. Returns `None` if another request is already obtaining it.
    pub(crate) fn begin_request<'a>(&'a self, node: &'a Name) -> Option<LeaseRequest<'a>> {
        let mut leases = self.leases();
        if matches!(leases.get(node), Some(LeaseState::Requested)) {
            return None;
        }
        leases.insert(node.clone(), LeaseState::Requested);
        Some(LeaseRequest {
            liveness: self,
            node,
        })
    }

    /// Stops renewing the node's lease.
    pub(crate) fn forget(&self, node: &Name) {
        self.leases().remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_of_a_node_at_a_time_obtains_a_lease() {
        let (liveness, node) = (Liveness::default(), "edge".parse().unwrap());
        let request = liveness.begin_request(&node);
        assert!(request.is_some());
        for _ in 0..3 {
            assert!(liveness.begin_request(&node).is_none());
        }
        drop(request);
        assert!(
            liveness.begin_request(&node).is_some(),
            "the first request obtained none"
        );
    }
}
