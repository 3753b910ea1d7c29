use super::{FlowPath, Usage};
use crate::name::Name;
use crate::node::{ReceiveReport, SendReport};
use crate::resource::{Event, Flow, PathEnd, PathHealth, Policy};
use hawser_units::PathSet;

/// The controller's knowledge of a flow.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The flow.
    pub flow: &'a Flow,
    /// The revision of the last change of the flow by an operator.
    pub changed_in: u64,
    /// The policy in force.
    pub policy: &'a Policy,
    /// The paths that both nodes have and that the flow may use.
    pub usable: PathSet,
    /// Whether the controller has recorded that the egress deduplicates the flow's copies.
    pub received: bool,
    /// The health of the paths as last reported by the ingress.
    pub health: &'a [PathHealth],
    /// The node that replicates.
    pub ingress: End<'a>,
    /// The node that deduplicates.
    pub egress: End<'a>,
    /// The events about the flow, and about its nodes but no flow, oldest first.
    pub events: Vec<&'a Event>,
}

/// The controller's knowledge of one end of a flow.
#[derive(Debug, Clone)]
pub struct End<'a> {
    /// The node.
    pub node: &'a Name,
    /// Whether the node has a certificate.
    pub is_enrolled: bool,
    /// The ends of paths that the node has registered; `None` before its first registration.
    pub paths: Option<&'a [PathEnd]>,
    /// Whether the node has registered uplinks, of which the controller may make paths.
    pub has_uplinks: bool,
    /// Why the node shares no key with the other one, for people; `None` if nothing is known to be
    /// missing.
    pub missing_key: Option<String>,
    /// The time since which the node has been alive, milliseconds since 1970; `None` if it is not.
    pub alive_since_unix_ms: Option<u64>,
    /// The time of the node's last report, milliseconds since 1970.
    pub seen_unix_ms: Option<u64>,
    /// The node's last report, if it came to this controller.
    pub report: Option<Reported>,
}

/// The part of a node's last report that concerns the flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// The revision of the assignment in force.
    pub revision: u64,
    /// The flow's counters, if the node replicates it.
    pub send: Option<SendReport>,
    /// The flow's counters, if the node deduplicates it.
    pub receive: Option<ReceiveReport>,
}

impl Facts<'_> {
    /// Returns the paths that at least one of the nodes has, ordered by number.
    pub fn paths(&self) -> Vec<FlowPath> {
        let path = |number| {
            let (ingress, egress) = (self.ingress.path(number), self.egress.path(number));
            (ingress.is_some() || egress.is_some()).then(|| FlowPath {
                number,
                usage: self.usage(number),
                ingress: ingress.cloned(),
                egress: egress.cloned(),
                health: self.health_of(number).cloned(),
                received: self.arrivals(number).cloned(),
            })
        };
        (1..=8).filter_map(path).collect()
    }

    /// Returns the latest events about the flow, oldest first.
    pub fn latest_events(&self, count: usize) -> Vec<Event> {
        let is_about = |event: &&&Event| event.flow.as_ref() == Some(&self.flow.name);
        let mut latest: Vec<Event> = self
            .events
            .iter()
            .rev()
            .filter(is_about)
            .take(count)
            .map(|event| (*event).clone())
            .collect();
        latest.reverse();
        latest
    }

    fn usage(&self, number: u8) -> Usage {
        let has = |paths: PathSet| paths.bits() & 1 << (number - 1) != 0;
        if has(self.policy.code.paths()) {
            Usage::Taken
        } else if has(self.policy.probes) {
            Usage::Probed
        } else if has(self.usable) {
            Usage::Unused
        } else {
            Usage::Excluded
        }
    }

    pub(super) fn health_of(&self, number: u8) -> Option<&PathHealth> {
        self.health.iter().find(|health| health.number == number)
    }

    pub(super) fn arrivals(&self, number: u8) -> Option<&crate::node::ReceivedPath> {
        let receive = self.egress.report.as_ref()?.receive.as_ref()?;
        receive.paths.iter().find(|path| path.number == number)
    }

    /// Returns the last event of one of the kinds that a node caused.
    pub(super) fn last_of(&self, node: &Name, kinds: &[&str]) -> Option<&Event> {
        let mut latest = self.events.iter().rev();
        latest
            .find(|event| event.node.as_ref() == Some(node) && kinds.contains(&event.kind.as_str()))
            .copied()
    }
}

impl<'a> End<'a> {
    fn path(&self, number: u8) -> Option<&'a PathEnd> {
        self.paths?.iter().find(|end| end.number == number)
    }
}
