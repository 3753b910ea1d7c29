//! The nodes that report to this controller, and when each of them last did.

use crate::store::LeaseId;
use hawser_model::Name;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The nodes that report to this controller.
#[derive(Default)]
pub(crate) struct Liveness(Mutex<HashMap<Name, State>>);

#[derive(Clone, Copy)]
enum State {
    /// A request of the node announces it as alive. Other requests of the node do not.
    Announcing,
    /// The node was announced as alive under this lease of the controller.
    Alive {
        lease: LeaseId,
        reported_at: Instant,
    },
    /// According to the store, the node is alive by this controller, but it has not reported since
    /// then.
    Unheard { since: Instant },
}

/// Clears [`State::Announcing`] when dropped, unless the node was announced.
pub(crate) struct Announcement<'a> {
    liveness: &'a Liveness,
    node: &'a Name,
}

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        let mut nodes = self.liveness.nodes();
        if matches!(nodes.get(self.node), Some(State::Announcing)) {
            nodes.remove(self.node);
        }
    }
}

impl Announcement<'_> {
    /// Records that the node was announced under that lease, and reported at that time.
    pub(crate) fn complete(self, lease: LeaseId, reported_at: Instant) {
        let state = State::Alive { lease, reported_at };
        self.liveness.nodes().insert(self.node.clone(), state);
    }
}

impl Liveness {
    fn nodes(&self) -> MutexGuard<'_, HashMap<Name, State>> {
        self.0.lock()
    }

    /// Records a report of a node. Returns `false` if the node has not been announced under that
    /// lease.
    pub(crate) fn reported(&self, node: &Name, lease: LeaseId, now: Instant) -> bool {
        match self.nodes().get_mut(node) {
            Some(State::Alive {
                lease: announced,
                reported_at,
            }) if *announced == lease => {
                *reported_at = now;
                true
            }
            _ => false,
        }
    }

    /// Returns the lease under which a node was announced.
    pub(crate) fn lease(&self, node: &Name) -> Option<LeaseId> {
        match self.nodes().get(node)? {
            State::Alive { lease, .. } => Some(*lease),
            State::Announcing | State::Unheard { .. } => None,
        }
    }

    /// Begins to announce a node. Returns `None` if another request is already doing it.
    pub(crate) fn announce<'a>(&'a self, node: &'a Name) -> Option<Announcement<'a>> {
        let mut nodes = self.nodes();
        if matches!(nodes.get(node), Some(State::Announcing)) {
            return None;
        }
        nodes.insert(node.clone(), State::Announcing);
        Some(Announcement {
            liveness: self,
            node,
        })
    }

    /// Returns those of the nodes whose last report is at least `limit` old. For a node of which
    /// there is no report, the time begins now.
    pub(crate) fn silent<'a>(
        &self,
        nodes: impl Iterator<Item = &'a Name>,
        now: Instant,
        limit: Duration,
    ) -> Vec<Name> {
        let mut known = self.nodes();
        let is_silent = |name: &&Name| match known.get(*name) {
            Some(
                State::Alive {
                    reported_at: at, ..
                }
                | State::Unheard { since: at },
            ) => now.duration_since(*at) >= limit,
            Some(State::Announcing) => false,
            None => {
                known.insert((*name).clone(), State::Unheard { since: now });
                false
            }
        };
        nodes.filter(is_silent).cloned().collect()
    }

    /// Forgets a node.
    pub(crate) fn forget(&self, node: &Name) {
        self.nodes().remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn one_request_of_a_node_at_a_time_announces_it() {
        let (liveness, node) = (Liveness::default(), "edge".parse().unwrap());
        let announcement = liveness.announce(&node);
        assert!(announcement.is_some());
        for _ in 0..3 {
            assert!(liveness.announce(&node).is_none());
        }
        drop(announcement);
        assert!(
            liveness.announce(&node).is_some(),
            "the first request did not succeed"
        );
    }

    #[test]
    fn a_node_is_silent_when_its_last_report_is_old() {
        let (liveness, now) = (Liveness::default(), Instant::now());
        let nodes: [Name; 3] = ["a", "b", "c"].map(|name| name.parse().unwrap());
        let [first, second, unheard] = &nodes;
        for node in [first, second] {
            liveness.announce(node).unwrap().complete(1, now);
        }
        assert!(liveness.reported(first, 1, now + LIMIT / 2));
        assert!(
            !liveness.reported(second, 2, now + LIMIT / 2),
            "it has to be announced under the other lease"
        );
        let silent = |at| liveness.silent(nodes.iter(), at, LIMIT);
        assert_eq!(silent(now + LIMIT), nodes[1..2]);
        assert_eq!(
            silent(now + 2 * LIMIT),
            nodes,
            "the time of the last one began when it was first asked for"
        );
        assert!(!liveness.reported(unheard, 1, now), "it was not announced");
    }
}
