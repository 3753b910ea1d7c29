//! What a node and its controller say to each other. A node is known by its certificate; no message names its sender.

use crate::name::Name;
use crate::resource::{Elimination, Mode, PathEnd, PathHealth, Policy, Selector, Trigger};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A node's first words on every connection: `PUT /v1/nodes/{node}/registration`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// Of the agent.
    pub version: String,
    /// The node's ends of paths.
    pub paths: Vec<PathEnd>,
    /// Where in-band signals reach the node, `address:port`; none: it takes none.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub signals: Option<SocketAddr>,
}

/// What a node has to do: the event `assignment` of `GET /v1/nodes/{node}/stream`, first on every connection and again
/// whenever flows come, change or go. It replaces the assignment before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Assignment {
    /// Rises with every assignment to this node.
    pub revision: u64,
    /// How often the node reports when nothing urgent happens, milliseconds.
    pub report_every_ms: u32,
    /// The key of in-band signals, 32 hexadecimal digits; none: signals are refused.
    pub signal_key: Option<String>,
    /// Flows that it replicates.
    pub sends: Vec<Send>,
    /// Flows whose copies it eliminates.
    pub receives: Vec<Receive>,
}

/// A flow that the node replicates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Send {
    /// The flow.
    pub flow: Name,
    /// Its number at this node, 0 to 1023; the same as at the egress.
    pub number: u16,
    /// The node that eliminates; this node's configuration has its keys under `[[peer]]`.
    pub peer: Name,
    /// Which packets.
    pub select: Selector,
    /// In force. Later ones come as the event `policy`.
    pub policy: Policy,
}

/// A flow whose copies the node eliminates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Receive {
    /// The flow.
    pub flow: Name,
    /// Its number at this node, 0 to 1023.
    pub number: u16,
    /// The node that replicates.
    pub peer: Name,
    /// How the paths are judged here.
    pub mode: Mode,
    /// With which parameters.
    pub elimination: Elimination,
    /// The paths that may be used, bit i is path i+1.
    pub paths: u8,
    /// What is watched; none: nothing.
    pub trigger: Option<Trigger>,
    /// In force at the ingress. Later ones come as the event `policy`.
    pub policy: Policy,
}

/// What a node tells: `POST /v1/nodes/{node}/reports`, every `report_every_ms` and at once when there is an observation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The assignment in force, to which the rest belongs; 0 before the first. One that could not be carried out is not in
    /// force.
    pub revision: u64,
    /// All paths, or none when nothing changed since the last report.
    #[serde(default)]
    pub paths: Vec<PathHealth>,
    /// Flows that the node replicates; counters since the agent started.
    #[serde(default)]
    pub sends: Vec<SendReport>,
    /// Flows whose copies it eliminates; counters since the agent started. From the first report that names it, a flow may
    /// be replicated.
    #[serde(default)]
    pub receives: Vec<ReceiveReport>,
    /// What happened since the last report, in order.
    #[serde(default)]
    pub observations: Vec<Observation>,
}

impl Report {
    /// Flows in each direction.
    pub const MAX_FLOWS: usize = 1024;

    /// Observations; what else happened goes into the next report.
    pub const MAX_OBSERVATIONS: usize = 256;

    /// More than a report takes as JSON with all flows received by all eight paths, the longest names and the largest
    /// counters: 1,300 bytes a flow, and 1,000 an observation.
    pub const MAX_BYTES: usize = 2 << 20;
}

/// A node's latest report, as `GET /v1/reports` has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reported {
    /// The node.
    pub node: Name,
    /// When it came, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// What it said.
    pub report: Report,
}

/// Counters of a flow that the node replicates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SendReport {
    /// The flow.
    pub flow: Name,
    /// Of the policy in force at the node.
    pub epoch: u32,
    /// The paths that packets take.
    pub code: u8,
    /// Packets that were replicated.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of all copies.
    pub copies_bytes: u64,
}

/// Counters of a flow whose copies the node eliminates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReceiveReport {
    /// The flow.
    pub flow: Name,
    /// Packets let through.
    pub packets: u64,
    /// Each path that a copy came by.
    pub paths: Vec<ReceivedPath>,
}

/// What a path did for a flow, at the egress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReceivedPath {
    /// The path.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 8))]
    pub number: u8,
    /// Copies that arrived.
    pub arrivals: u64,
    /// Copies that came before the others.
    pub first: u64,
    /// Copies that were the only one.
    pub only: u64,
    /// Copies that did not come in time.
    pub missing: u64,
}

/// Something that happened at a node and that the controller may have to act upon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Observation {
    /// The viewer's requests came late as often as the trigger allows. By the egress.
    Degraded {
        /// The flow.
        flow: Name,
        /// How long ago the last of the late requests was due, microseconds.
        since_due_us: u64,
        /// How long there has been no request, microseconds.
        silent_us: u64,
    },
    /// What the evidence says the policy should be. By the egress.
    Judged {
        /// The flow.
        flow: Name,
        /// Of the policy that was judged. A judgement on another one than is in force is void.
        epoch: u32,
        /// The paths to keep.
        code: u8,
        /// The paths to probe.
        probes: u8,
        /// One packet in so many; a power of two.
        probe_every: u16,
        /// Why, for people.
        reason: String,
    },
    /// A path carried nothing of what it should have for so long that it counts as silent. By the egress.
    PathSilent {
        /// The flow.
        flow: Name,
        /// The path.
        path: u8,
    },
    /// A path that was silent carries copies again. By the egress.
    PathRestored {
        /// The flow.
        flow: Name,
        /// The path.
        path: u8,
    },
    /// Redundancy is lower than the policy means it to be although every packet still arrives (latent error detection,
    /// IEEE 802.1CB-2017, section 7.4.4). By the egress.
    LatentError {
        /// The flow.
        flow: Name,
        /// The path that stopped to contribute.
        path: u8,
    },
    /// A policy took effect in the kernel. By the ingress.
    Applied {
        /// The flow.
        flow: Name,
        /// The policy.
        epoch: u32,
        /// Its paths.
        code: u8,
        /// Whether an in-band signal brought it, before the event `policy` did.
        by_signal: bool,
    },
    /// The first replica under a policy that replicates left the node. By the ingress.
    FirstReplica {
        /// The flow.
        flow: Name,
        /// The policy.
        epoch: u32,
        /// How long after the policy took effect, microseconds.
        after_us: u64,
    },
    /// An in-band signal was refused. By the ingress.
    SignalRefused {
        /// `tag`, `epoch`, `age`, `flow`, `malformed` or `code`.
        reason: String,
        /// How many times since the last report.
        count: u64,
    },
    /// A part of the assignment does not fit the node's own configuration; the rest is applied. By either.
    NotApplied {
        /// The flow.
        flow: Name,
        /// Why, and what would be right, for people.
        reason: String,
    },
}
