//! The flows of a node: what its file says, or what its controller assigned.

use hawser_bpf::{MAX_RULES, Prefix, Rule, SendPolicy};
use hawser_control::Name;
use hawser_units::FlowId;
use hawser_wire::{Cover, KeySlot, SealKey, SealRing};
use std::collections::BTreeMap;

/// Which packets to a destination are of which flow.
pub type Selectors = BTreeMap<Prefix, Vec<Rule>>;

/// What a node does for which traffic. May change while packets fly.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flows {
    /// The flows that are replicated here.
    pub send: BTreeMap<FlowId, Sent>,
    /// Which packets are of which of them.
    pub send_selectors: Selectors,
    /// The flows whose copies are eliminated here, with the keys of their senders.
    pub receive: BTreeMap<FlowId, SealRing>,
    /// Which packets without a shim are copies.
    pub receive_selectors: Selectors,
}

/// One flow that is replicated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// What the controller calls it; a number that comes to mean another flow starts a new session.
    pub name: Option<Name>,
    /// The receiver's number for it.
    pub label: FlowId,
    /// The paths that copies take.
    pub policy: SendPolicy,
    /// The paper's form: nothing is added to packets.
    pub transparent: bool,
    /// What shims are tagged with, and what the tags cover.
    pub key: Option<(KeySlot, SealKey, Cover)>,
}

impl Sent {
    /// Whether a receiver may go on counting where the flow `before` has got to.
    pub(crate) fn continues(&self, before: &Sent) -> bool {
        let session = |flow: &Sent| (flow.name.clone(), flow.label, flow.transparent);
        session(self) == session(before)
    }
}

/// More flows share a destination than the kernel looks at for a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Crowded {
    pub(crate) prefix: Prefix,
    pub(crate) flows: Vec<FlowId>,
}

/// The kernel asks the longest prefix alone, so each prefix also gets the rules of those that contain it.
pub(crate) fn inherit(selectors: &Selectors) -> Result<Selectors, Crowded> {
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
            return Err(Crowded {
                prefix: *prefix,
                flows: rules.iter().map(|rule| rule.flow).collect(),
            });
        }
        inherited.insert(*prefix, rules);
    }
    Ok(inherited)
}
