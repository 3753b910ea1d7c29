//! The flows of a node, from its configuration file or assigned by its controller.

use hawser_bpf::{MAX_RULES, Prefix, Rule, SendPolicy};
use hawser_control::Name;
use hawser_units::FlowId;
use hawser_wire::{Cover, KeySlot, SealKey, SealRing};
use std::collections::BTreeMap;

/// The rules that map packets to flows, by destination.
pub type Selectors = BTreeMap<Prefix, Vec<Rule>>;

/// The flows that a node sends and receives. They can change while packets are in flight.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flows {
    /// The flows that this node replicates.
    pub send: BTreeMap<FlowId, Sent>,
    /// Selectors of the packets of these flows.
    pub send_selectors: Selectors,
    /// The flows that this node deduplicates, with the keys of their senders.
    pub receive: BTreeMap<FlowId, SealRing>,
    /// Selectors of packets that are copies although they have no shim.
    pub receive_selectors: Selectors,
}

/// A flow that is replicated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The controller's name of the flow. A number that is assigned to a flow of another name
    /// starts a new session.
    pub name: Option<Name>,
    /// The receiver's number for the flow.
    pub label: FlowId,
    /// The paths on which copies are sent.
    pub policy: SendPolicy,
    /// Whether packets are copied unchanged, as in the paper.
    pub transparent: bool,
    /// The key of the shims' tags, and the part of a packet that the tags cover.
    pub key: Option<(KeySlot, SealKey, Cover)>,
}

impl Sent {
    /// Returns whether this flow continues the session of `before`, so that a receiver can keep its
    /// replay window.
    pub(crate) fn continues(&self, before: &Sent) -> bool {
        let session = |flow: &Sent| (flow.name.clone(), flow.label, flow.transparent);
        session(self) == session(before)
    }
}

/// The error of a destination with more flows than the kernel checks for a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TooManyFlows {
    pub(crate) prefix: Prefix,
    pub(crate) flows: Vec<FlowId>,
}

/// Adds to each prefix the rules of the prefixes that contain it, because the kernel looks up the
/// longest prefix only.
pub(crate) fn inherit(selectors: &Selectors) -> Result<Selectors, TooManyFlows> {
    let mut inherited = Selectors::new();
    for (prefix, own) in selectors {
        let mut wider: Vec<_> = selectors
            .iter()
            .filter(|(other, _)| *other != prefix && other.contains(*prefix))
            .collect();
        wider.sort_by_key(|(other, _)| std::cmp::Reverse(other.bits()));
        let wider = wider.into_iter().flat_map(|(_, rules)| rules);
        let rules: Vec<Rule> = own.iter().chain(wider).cloned().collect();
        if rules.len() > MAX_RULES {
            return Err(TooManyFlows {
                prefix: *prefix,
                flows: rules.iter().map(|rule| rule.flow).collect(),
            });
        }
        inherited.insert(*prefix, rules);
    }
    Ok(inherited)
}
