//! Copies that are refused under a sender's own tags: said in words, because a counter alone does not tell what to mend.

use crate::node::Node;
use hawser_bpf::{Receiver, RxStats, TableError};
use hawser_units::FlowId;
use std::collections::BTreeMap;
use tracing::warn;

/// Looks at the counters of received flows from time to time.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    flows: BTreeMap<FlowId, Seen>,
}

/// A flow's counters when they were looked at last.
#[derive(Debug, Default)]
struct Seen {
    counts: Counts,
    is_said: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    accepted: u64,
    tag_failures: u64,
    too_old: u64,
}

impl Refused {
    /// Says once of each flow that all of its copies are refused, and why that may be.
    pub(crate) fn look(&mut self, node: &Node) {
        let Some(receiver) = node.receiver() else { return };
        let (name, received) = (&node.config().name, &node.flows().receive);
        self.flows.retain(|flow, _| received.contains_key(flow));
        for flow in received.keys() {
            // A table that cannot be read shows in the status.
            let Ok(counts) = Counts::of(receiver, node, *flow) else { return };
            match self.flows.entry(*flow).or_insert_with(|| Seen { counts, is_said: false }).news(counts) {
                Some(Why::Tags) => warn!(
                    %flow,
                    "all copies are refused: their tags are not those of the peer. Both nodes must have the same key, this one \
                     must have the other's own name in [[peer]] `name` or `node`, and the other one must know this one as {name:?}"
                ),
                Some(Why::Age) => warn!(
                    %flow,
                    "all copies are refused as older than what came before: the sender's clock has gone back, or nothing but \
                     old copies arrives. If the sender has lost its state, give both nodes a new key"
                ),
                None => {}
            }
        }
    }
}

enum Why {
    Tags,
    Age,
}

impl Seen {
    fn news(&mut self, now: Counts) -> Option<Why> {
        let before = std::mem::replace(&mut self.counts, now);
        if now.accepted > before.accepted {
            self.is_said = false;
            return None;
        }
        let why = if now.tag_failures > before.tag_failures {
            Why::Tags
        } else if now.too_old > before.too_old {
            Why::Age
        } else {
            return None;
        };
        (!std::mem::replace(&mut self.is_said, true)).then_some(why)
    }
}

impl Counts {
    fn of(receiver: &Receiver, node: &Node, flow: FlowId) -> Result<Self, TableError> {
        let mut sum = Counts::default();
        for path in node.config().paths.keys() {
            let RxStats { packets, tag_failures, outdated, expired, .. } = receiver.stats(flow, *path)?;
            sum.accepted += packets;
            sum.tag_failures += tag_failures;
            sum.too_old += outdated + expired;
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_once_until_copies_are_accepted_again() {
        let counts = |accepted, tag_failures, too_old| Counts { accepted, tag_failures, too_old };
        let mut seen = Seen::default();
        assert!(seen.news(counts(0, 0, 0)).is_none());
        assert!(matches!(seen.news(counts(0, 5, 0)), Some(Why::Tags)));
        assert!(seen.news(counts(0, 9, 0)).is_none(), "it was said");
        assert!(seen.news(counts(3, 12, 0)).is_none(), "some are accepted: a stranger sends the others");
        assert!(matches!(seen.news(counts(3, 12, 7)), Some(Why::Age)));
    }
}
