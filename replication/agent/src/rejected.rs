//! Warns if all copies of a flow are rejected, because a counter alone does not tell the operator
//! what to fix.

use crate::node::Node;
use hawser_replication_bpf::{Receiver, RxStats, TableError};
use hawser_units::FlowId;
use std::collections::BTreeMap;
use tracing::warn;

/// The least number of rejected copies in a period that causes a warning. A few stray or forged
/// datagrams must not.
const MIN_REJECTED: u64 = 8;

/// Checks in a period, one second apart. Slow flows have enough copies in this time.
const CHECKS_PER_PERIOD: u32 = 10;

/// Checks the counters of received flows once a second.
#[derive(Debug, Default)]
pub(crate) struct RejectedCopies {
    flows: BTreeMap<FlowId, Period>,
}

/// The current period of a flow.
#[derive(Debug, Default)]
struct Period {
    /// The counters at the start of the period.
    start: Counts,
    /// Checks in the period so far.
    checks: u32,
    is_reported: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    accepted: u64,
    /// Includes tags that do not cover enough.
    tag_failures: u64,
    too_old: u64,
}

impl RejectedCopies {
    /// Warns once of each flow whose copies are all rejected, with the probable cause.
    pub(crate) fn check(&mut self, node: &Node) {
        let Some(receiver) = node.receiver() else {
            return;
        };
        let (name, received) = (&node.config().name, &node.flows().receive);
        self.flows.retain(|flow, _| received.contains_key(flow));
        for flow in received.keys() {
            // A table that cannot be read is reported in the status.
            let Ok(counts) = Counts::of(receiver, node, *flow) else {
                return;
            };
            let period = self.flows.entry(*flow);
            let period = period.or_insert_with(|| Period::since(counts));
            if let Some(cause) = period.check(counts) {
                cause.warn(*flow, name);
            }
        }
    }
}

enum Cause {
    Tags,
    Age,
}

impl Cause {
    /// Warns that all copies of the flow are rejected at the node of this name.
    fn warn(&self, flow: FlowId, name: &str) {
        match self {
            Cause::Tags => warn!(
                %flow,
                "all copies are rejected: their tags are not those of the peer. Both nodes must have the same key, this one \
                 must have the other's own name in [[peer]] `name` or `node`, and the other one must have {name:?} as \
                 the name of this one. With `required_cover = \"whole\"` here, the other one must have `cover = \"whole\"` (`dropped_partial_tag` \
                 in the status counts these)"
            ),
            Cause::Age => warn!(
                %flow,
                "all copies are rejected as older than earlier ones: the sender's clock has gone back, or only \
                 old copies arrive. If the sender has lost its state, give both nodes a new key"
            ),
        }
    }
}

impl Period {
    fn since(counts: Counts) -> Self {
        Period {
            start: counts,
            ..Period::default()
        }
    }

    fn check(&mut self, now: Counts) -> Option<Cause> {
        if now.accepted > self.start.accepted {
            *self = Period::since(now);
            return None;
        }
        let cause = if now.tag_failures >= self.start.tag_failures + MIN_REJECTED {
            Some(Cause::Tags)
        } else if now.too_old >= self.start.too_old + MIN_REJECTED {
            Some(Cause::Age)
        } else {
            None
        };
        self.checks += 1;
        if self.checks == CHECKS_PER_PERIOD {
            (self.start, self.checks) = (now, 0);
        }
        let cause = cause.filter(|_| !self.is_reported);
        self.is_reported |= cause.is_some();
        cause
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
        let mut period = Period::default();
        assert!(period.check(counts(0, 0, 0)).is_none());
        assert!(matches!(period.check(counts(0, 50, 0)), Some(Cause::Tags)));
        assert!(period.check(counts(0, 90, 0)).is_none(), "already reported");
        assert!(
            period.check(counts(3, 120, 0)).is_none(),
            "some are accepted: the rejected ones are foreign"
        );
        assert!(matches!(period.check(counts(3, 120, 70)), Some(Cause::Age)));
    }

    #[test]
    fn a_few_copies_that_are_refused_are_no_news() {
        let mut period = Period::default();
        for stray in 0..100 {
            assert!(period.check(counts(0, stray / 2, 0)).is_none(), "{stray}");
        }
        let mut period = Period::default();
        assert!(
            period
                .check(counts(0, MIN_REJECTED - 1, MIN_REJECTED - 1))
                .is_none()
        );
        assert!(matches!(
            period.check(counts(0, MIN_REJECTED, MIN_REJECTED - 1)),
            Some(Cause::Tags)
        ));
    }

    #[test]
    fn the_copies_of_a_slow_flow_add_up() {
        let mut period = Period::default();
        let reported_at = (1..=u64::from(CHECKS_PER_PERIOD))
            .find(|check| period.check(counts(0, *check, 0)).is_some());
        assert_eq!(reported_at, Some(MIN_REJECTED));
    }
}
