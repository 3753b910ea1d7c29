//! The inputs and outputs of a [`ControlledNode`](crate::ControlledNode).

use crate::judge::Window;
use crate::pair_key::SecretKey;
use crate::pairs::PairRing;
use crate::selection::Selectors;
use hawser_model::Name;
use hawser_model::discovery::Ends;
use hawser_model::node::{Assignment, Observation};
use hawser_model::pair::NodeKeys;
use hawser_model::resource::{Policy, Trigger};
use hawser_units::{FlowId, Instant, PathId, PathSet, PolicyCode};
use std::collections::BTreeMap;

/// A message about the controller or from it.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// The state of the connection has changed.
    Connection(Connection),
    /// A new assignment, which replaces the previous one.
    Assignment(Assignment),
    /// A policy, which replaces that of its flow if it is newer.
    Policy(Policy),
    /// The previous report, if any, was delivered, and the next one can be sent.
    Ready,
    /// The connection was lost before the last report was acknowledged.
    ReportLost,
    /// The controller rejected the last report, and would reject it again.
    ReportRejected,
}

/// The state of the connection to the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connection {
    /// The first attempt is under way.
    Connecting,
    /// The node is registered, and receives assignments and policies as they are made.
    Connected,
    /// No controller can be reached, with the reason.
    Unreachable(String),
    /// The controller refuses the node, with the reason.
    Refused(String),
}

/// A policy as the kernel holds it: without the name of the flow and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyWord {
    /// The epoch.
    pub epoch: u32,
    /// The paths that every packet takes.
    pub code: PolicyCode,
    /// The paths that one packet in `probe_every` takes in addition.
    pub probes: PathSet,
    /// The probing interval in packets, a power of two; 0 if no path is probed.
    pub probe_every: u16,
}

/// The outcome of an in-band signal whose tag is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalOutcome {
    /// The kernel put the signal's policy into force.
    Accepted,
    /// The policy in force had the same or a greater epoch.
    Outdated,
}

/// An in-band signal that the kernel has handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// The arrival time.
    pub at: Instant,
    /// The flow.
    pub flow: FlowId,
    /// The epoch of the signal's policy.
    pub epoch: u32,
    /// The paths of the signal's policy.
    pub code: PolicyCode,
    /// The outcome.
    pub outcome: SignalOutcome,
    /// The policy that the kernel holds now. It may be newer than the signal's.
    pub in_force: PolicyWord,
}

/// The state of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathState {
    /// The path.
    pub path: PathId,
    /// Whether its interface is up and its next hop known.
    pub up: bool,
    /// The smoothed round-trip time, microseconds; `None` while the other node does not respond.
    pub rtt_us: Option<u32>,
}

/// The outcome of a [`Command`].
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// [`Command::SetFlows`] was carried out. The policies of these flows took effect; the kernel
    /// held newer ones for the others.
    FlowsSet(Vec<FlowId>),
    /// [`Command::Configure`] was carried out.
    Configured,
    /// [`Command::SetFlows`] or [`Command::Configure`] cannot be carried out. The node tries again.
    NotApplied,
    /// [`Command::SetPolicy`] was carried out.
    PolicySet {
        /// The policy of the command.
        policy: Policy,
        /// Whether the policy took effect. The kernel already held it or a newer one otherwise.
        took_effect: bool,
    },
    /// [`Command::SetPolicy`] cannot be carried out.
    PolicyFailed {
        /// The flow.
        flow: Name,
        /// The reason, for people.
        reason: String,
    },
    /// [`Command::MakeKey`] was carried out: this is the new key.
    KeyMade(SecretKey),
    /// [`Command::MakeKey`] cannot be carried out. The node tries again.
    KeyNotMade,
}

/// An instruction to the process that drives the node.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Replace the flows in the kernel. A flow with the same number and name as before continues its
    /// session. Within a session, a policy with a greater epoch stays unless `replace_policies` is
    /// set. Answered by [`Outcome::FlowsSet`] or [`Outcome::NotApplied`].
    SetFlows {
        /// The flows.
        flows: Flows,
        /// Whether policies replace those in force regardless of their epochs.
        replace_policies: bool,
    },
    /// Configure in-band signals and the watch on viewers' requests. Answered by
    /// [`Outcome::Configured`] or [`Outcome::NotApplied`].
    Configure {
        /// The key of signals, 32 hexadecimal digits; `None` if signals are rejected.
        signal_key: Option<String>,
        /// The watched requests.
        watched: WatchedRequests,
    },
    /// Put a policy into force in the kernel, unless that holds one with the same or a greater
    /// epoch. Answered by [`Outcome::PolicySet`] or [`Outcome::PolicyFailed`].
    SetPolicy {
        /// The flow, set before by [`Command::SetFlows`].
        flow: FlowId,
        /// The policy.
        policy: Policy,
    },
    /// Send a report. Answered by [`Message::Ready`], [`Message::ReportLost`] or
    /// [`Message::ReportRejected`].
    Report(ReportContent),
    /// Save the assignment with the policies in force. A node that is restored from it continues
    /// without its controller.
    Persist(Assignment),
    /// Make a private key from random bytes, with [`SecretKey::next_generation`], and save it after
    /// those of `kept`. Answered by [`Outcome::KeyMade`], once it is on the disk, or
    /// [`Outcome::KeyNotMade`].
    MakeKey {
        /// The greatest generation in use.
        after: Option<u64>,
        /// The keys that are saved with it.
        kept: Vec<SecretKey>,
    },
    /// Save these private keys, without the one that was replaced.
    SaveKeys(Vec<SecretKey>),
    /// Send the public keys, and which derived ones are in use, to the controller: now and on every
    /// connection.
    StateKeys(NodeKeys),
}

/// The flows that the kernel handles.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flows {
    /// The flows to replicate.
    pub sends: BTreeMap<FlowId, SendFlow>,
    /// Selectors of the packets of these flows.
    pub send_selectors: Selectors,
    /// The flows to deduplicate, with the names of the nodes that replicate them.
    pub receives: BTreeMap<FlowId, Name>,
    /// Selectors of packets that are copies although they have no shim.
    pub receive_selectors: Selectors,
    /// The keys that are shared with peers, except those of the node's configuration.
    pub rings: BTreeMap<Name, PairRing>,
}

/// A flow to replicate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendFlow {
    /// The name of the flow. A number that is assigned to a flow of another name starts a new
    /// session.
    pub name: Name,
    /// The node that deduplicates.
    pub peer: Name,
    /// The policy.
    pub policy: Policy,
    /// Whether copies are sent as they are.
    pub transparent: bool,
}

/// The viewers' requests to watch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WatchedRequests {
    /// The flows that answer the requests. A flow with another name or trigger than before is
    /// watched from the beginning.
    pub flows: BTreeMap<FlowId, (Name, Trigger)>,
    /// Selectors of the requests.
    pub selectors: Selectors,
}

/// The part of a report that the node decides. The flows' counters are added when it is sent.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportContent {
    /// The revision of the assignment in force.
    pub revision: u64,
    /// The states of all paths.
    pub paths: Vec<PathState>,
    /// The candidates for paths on which the other node answers.
    pub reached: Vec<Ends>,
    /// The observations, in order.
    pub observations: Vec<Observation>,
}

/// An event for the log or the trace.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The state of the connection has changed.
    Connection(Connection),
    /// An assignment was received.
    Assigned {
        /// Its revision.
        revision: u64,
    },
    /// The controller has restarted counting assignments, or its store was restored from a backup.
    /// Its policies replace those in force.
    CountingRestarted,
    /// A policy of a sent flow took effect.
    PolicyApplied {
        /// The time.
        at: Instant,
        /// The flow.
        flow: Name,
        /// The policy.
        policy: PolicyWord,
        /// Whether it arrived by an in-band signal.
        by_signal: bool,
    },
    /// A policy of a received flow is in force at its ingress.
    PolicyReceived {
        /// The time.
        at: Instant,
        /// The policy.
        policy: Policy,
    },
    /// The node has another key, or none of its previous keys.
    KeysChanged {
        /// The generations of its keys, the oldest first.
        generations: Vec<u64>,
    },
    /// A part of the assignment does not fit the node's configuration.
    NotApplied {
        /// The flow.
        flow: Name,
        /// The reason, for people.
        reason: String,
    },
    /// A window of packets of a received flow is complete.
    Window {
        /// The time.
        at: Instant,
        /// The flow.
        flow: Name,
        /// The epoch of the policy in force.
        epoch: u32,
        /// The deliveries of the paths.
        window: Window,
    },
    /// An observation about a flow will be reported.
    Observed {
        /// The time.
        at: Instant,
        /// The observation.
        observation: Observation,
    },
}

impl From<&Policy> for PolicyWord {
    fn from(policy: &Policy) -> Self {
        PolicyWord {
            epoch: policy.epoch,
            code: policy.code,
            probes: policy.probes,
            probe_every: policy.probe_every,
        }
    }
}

impl Signal {
    /// Returns the signal's policy. Its probes are unknown if the kernel holds a newer policy: the
    /// event of that one reports them.
    pub(crate) fn policy(&self) -> PolicyWord {
        let probed = Some(self.in_force).filter(|in_force| in_force.epoch == self.epoch);
        PolicyWord {
            epoch: self.epoch,
            code: self.code,
            ..probed.unwrap_or_default()
        }
    }
}
