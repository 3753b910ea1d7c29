//! Copies that are refused under a sender's own tags: said in words, because a counter alone does not tell what to mend.

use crate::node::Node;
use hawser_bpf::{Receiver, RxStats, TableError};
use hawser_units::FlowId;
use std::collections::BTreeMap;
use tracing::warn;

/// Refused copies in a period that are no stray or forged ones: a stranger's datagram must not raise an alarm.
const ENOUGH: u64 = 8;

/// Looks in a period, each a second after the one before: so slow flows have enough copies in it.
const LOOKS: u32 = 10;

/// Looks at the counters of received flows, once a second.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    flows: BTreeMap<FlowId, Seen>,
}

/// The state of a flow's current period.
#[derive(Debug, Default)]
struct Seen {
    /// The counters when the period began.
    begin: Counts,
    /// Looks in the period so far.
    looks: u32,
    is_said: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    accepted: u64,
    /// Those among them whose tags do not cover enough, too.
    tag_failures: u64,
    too_old: u64,
}

impl Refused {
    /// Says once of each flow that all of its copies are refused, and why that may be.
    pub(crate) fn look(&mut self, node: &Node) {
        let Some(receiver) = node.receiver() else {
            return;
        };
        let (name, received) = (&node.config().name, &node.flows().receive);
        self.flows.retain(|flow, _| received.contains_key(flow));
        for flow in received.keys() {
            // A table that cannot be read shows in the status.
            let Ok(counts) = Counts::of(receiver, node, *flow) else {
                return;
            };
            match self
                .flows
                .entry(*flow)
                .or_insert_with(|| Seen::since(counts))
                .news(counts)
            {
                Some(Why::Tags) => warn!(
                    %flow,
                    "all copies are refused: their tags are not those of the peer. Both nodes must have the same key, this one \
                     must have the other's own name in [[peer]] `name` or `node`, and the other one must know this one as \
                     {name:?}. With `demand = \"whole\"` here, the other one must have `cover = \"whole\"` (`dropped_not_whole` \
                     in the status counts these)"
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
    fn since(counts: Counts) -> Self {
        Seen {
            begin: counts,
            ..Seen::default()
        }
    }

    fn news(&mut self, now: Counts) -> Option<Why> {
        if now.accepted > self.begin.accepted {
            *self = Seen::since(now);
            return None;
        }
        let why = if now.tag_failures >= self.begin.tag_failures + ENOUGH {
            Some(Why::Tags)
        } else if now.too_old >= self.begin.too_old + ENOUGH {
            Some(Why::Age)
        } else {
            None
        };
        self.looks += 1;
        if self.looks == LOOKS {
            (self.begin, self.looks) = (now, 0);
        }
        let why = why.filter(|_| !self.is_said);
        self.is_said |= why.is_some();
        why
    }
}

impl Counts {
    fn of(receiver: &Receiver, node: &Node, flow: FlowId) -> Result<Self, TableError> {
        let mut sum = Counts::default();
        for path in node.config().paths.keys() {
            let RxStats {
                packets,
                tag_failures,
                outdated,
                expired,
                ..
            } = receiver.stats(flow, *path)?;
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

    fn counts(accepted: u64, tag_failures: u64, too_old: u64) -> Counts {
        Counts {
            accepted,
            tag_failures,
            too_old,
        }
    }

    #[test]
    fn what_is_wrong_is_said_once_until_copies_are_accepted_again() {
        let mut seen = Seen::default();
        assert!(seen.news(counts(0, 0, 0)).is_none());
        assert!(matches!(seen.news(counts(0, 50, 0)), Some(Why::Tags)));
        assert!(seen.news(counts(0, 90, 0)).is_none(), "it was said");
        assert!(
            seen.news(counts(3, 120, 0)).is_none(),
            "some are accepted: a stranger sends the others"
        );
        assert!(matches!(seen.news(counts(3, 120, 70)), Some(Why::Age)));
    }

    #[test]
    fn a_few_copies_that_are_refused_are_no_news() {
        let mut seen = Seen::default();
        for stray in 0..100 {
            assert!(seen.news(counts(0, stray / 2, 0)).is_none(), "{stray}");
        }
        let mut seen = Seen::default();
        assert!(seen.news(counts(0, ENOUGH - 1, ENOUGH - 1)).is_none());
        assert!(matches!(
            seen.news(counts(0, ENOUGH, ENOUGH - 1)),
            Some(Why::Tags)
        ));
    }

    #[test]
    fn the_copies_of_a_slow_flow_add_up() {
        let mut seen = Seen::default();
        let said = (1..=u64::from(LOOKS)).find(|look| seen.news(counts(0, *look, 0)).is_some());
        assert_eq!(said, Some(ENOUGH));
    }
}
