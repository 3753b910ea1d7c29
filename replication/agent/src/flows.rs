//! The flows of a node, from its configuration file or assigned by its controller.

use crate::peer::Peer;
use hawser_model::Name;
use hawser_model::resource::Policy;
pub use hawser_node::Selectors;
use hawser_replication_bpf::SendPolicy;
use hawser_shim::{Cover, KeySlot, SealKey, SealRing};
use hawser_units::FlowId;
use std::collections::BTreeMap;

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

impl Flows {
    /// Adds the flows and selectors that are not there yet.
    pub(crate) fn add_missing(&mut self, other: Flows) {
        fn add<K: Ord, V>(to: &mut BTreeMap<K, V>, from: BTreeMap<K, V>) {
            for (key, value) in from {
                to.entry(key).or_insert(value);
            }
        }
        add(&mut self.send, other.send);
        add(&mut self.send_selectors, other.send_selectors);
        add(&mut self.receive, other.receive);
        add(&mut self.receive_selectors, other.receive_selectors);
    }
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

impl Flows {
    /// Returns the flows that a controller assigned, with the keys of their peers.
    pub(crate) fn assigned(flows: &hawser_node::Flows, peers: &BTreeMap<String, Peer>) -> Self {
        let sends = flows.sends.iter().filter_map(|(flow, send)| {
            let peer = peers.get(send.peer.as_str())?;
            if !peer.by_hand && peer.sealed.is_none() {
                return None;
            }
            let sent = Sent {
                name: Some(send.name.clone()),
                label: *flow,
                policy: send_policy(&send.policy),
                transparent: send.transparent,
                key: peer.sealed.clone(),
            };
            Some((*flow, sent))
        });
        let receives = flows.receives.iter();
        let receives = receives
            .filter_map(|(flow, peer)| Some((*flow, peers.get(peer.as_str())?.accepted.clone())));
        Flows {
            send: sends.collect(),
            send_selectors: flows.send_selectors.clone(),
            receive: receives.collect(),
            receive_selectors: flows.receive_selectors.clone(),
        }
    }
}

/// Converts a policy to the form that the eBPF programs take.
pub(crate) fn send_policy(policy: &Policy) -> SendPolicy {
    SendPolicy {
        code: policy.code,
        probes: policy.probes,
        probe_every: policy.probe_every,
        epoch: policy.epoch,
    }
}
