//! The messages between a node and its controller. A node is identified by its certificate; no
//! message names its sender.

use crate::discovery::{Discovery, Ends, Uplink};
use crate::name::Name;
use crate::pair::AssignedKeys;
use crate::resource::{Mode, PathEnd, PathHealth, Policy, Pruning, Selector, Trigger};
use hawser_units::{PathSet, PolicyCode};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A node's registration, its first request on every connection: `PUT
/// /v1/nodes/{node}/registration`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Registration {
    /// The version of the agent.
    pub version: String,
    /// The node's ends of paths, also of those that the controller has made.
    pub paths: Vec<PathEnd>,
    /// The interfaces of which the controller may make paths to other nodes, at most
    /// [`Uplink::MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<Uplink>,
    /// The address where the node receives in-band signals, `address:port`; `null` if it does not.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub signals: Option<SocketAddr>,
    /// The SHA-256 digests of the certificates (DER) of the authorities that the node trusts, hexadecimal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
}

impl Registration {
    /// The maximum number of authorities.
    pub const MAX_AUTHORITIES: usize = 8;
}

/// The data of an event of `GET /v1/nodes/{node}/stream`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum StreamData {
    /// The data of an event `assignment`.
    Assignment(Assignment),
    /// The data of an event `policy`.
    Policy(Policy),
}

/// The flows of a node: the event `assignment` of `GET /v1/nodes/{node}/stream`, sent first on
/// every connection and whenever a flow is added, changed or removed. It replaces the previous
/// assignment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Assignment {
    /// The revision, greater than those of all previous assignments to this node of the same
    /// incarnation.
    pub revision: u64,
    /// The incarnation of the controllers' store, which changes when a backup is restored. Revisions
    /// and epochs of different incarnations cannot be compared: the assignment replaces those of
    /// another incarnation. `null` before the first assignment.
    pub incarnation: Option<String>,
    /// The interval between the node's reports when nothing urgent happens, milliseconds.
    pub report_every_ms: u32,
    /// The time within which the node returns after it has lost its connection, milliseconds. It
    /// waits for a random part of it, so that the nodes of a controller that has died do not reach
    /// another one at the same time.
    pub reconnect_within_ms: u32,
    /// The key of in-band signals, 32 hexadecimal digits; `null` if signals are rejected.
    pub signal_key: Option<String>,
    /// The flows that the node replicates.
    pub sends: Vec<Send>,
    /// The flows whose copies the node deduplicates.
    pub receives: Vec<Receive>,
    /// The public keys of the nodes at the other ends of the flows.
    pub keys: AssignedKeys,
    /// The paths that the controller has made of the node's uplinks, and the candidates for others.
    pub discovery: Discovery,
}

/// A flow that the node replicates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Send {
    /// The flow.
    pub flow: Name,
    /// The flow's number at this node, 0 to 1023. It is the same at the egress.
    pub number: u16,
    /// The node that deduplicates.
    pub peer: Name,
    /// The packets of the flow.
    pub select: Selector,
    /// The policy in force. Later policies come as the event `policy`.
    pub policy: Policy,
    /// For a transparent flow, the paths that it may use, as a bit mask: copies are sent as they
    /// are. `null` for other flows.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u8>))]
    pub transparent: Option<PathSet>,
}

/// A flow whose copies the node deduplicates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Receive {
    /// The flow.
    pub flow: Name,
    /// The flow's number at this node, 0 to 1023.
    pub number: u16,
    /// The node that replicates.
    pub peer: Name,
    /// The mode, which determines how the egress judges the paths.
    pub mode: Mode,
    /// The parameters of that judgement.
    pub pruning: Pruning,
    /// The paths that the flow may use, as a bit mask: bit i is path i+1.
    #[cfg_attr(feature = "openapi", schema(value_type = u8))]
    pub paths: PathSet,
    /// The condition that the egress watches for; `null` for none.
    pub trigger: Option<Trigger>,
    /// The policy in force at the ingress. Later policies come as the event `policy`.
    pub policy: Policy,
    /// For a transparent flow, its packets: they are copies although they have no shim. `null` for
    /// other flows.
    #[serde(default)]
    pub transparent: Option<Selector>,
    /// The packets of the flow, as selected at the ingress, for applications that name it by one of
    /// them.
    #[serde(default)]
    pub select: Option<Selector>,
}

/// A node's report: `POST /v1/nodes/{node}/reports`, sent every `report_every_ms`, and immediately
/// when there is an observation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Report {
    /// The revision of the assignment in force, which the report refers to; 0 before the first. An
    /// assignment that could not be applied is not in force.
    pub revision: u64,
    /// The health of all paths; empty if nothing changed since the last report.
    #[serde(default)]
    pub paths: Vec<PathHealth>,
    /// The candidates on which the other node answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reached: Vec<Ends>,
    /// The flows that the node replicates, with counters since the agent started.
    #[serde(default)]
    pub sends: Vec<SendReport>,
    /// The flows whose copies the node deduplicates, with counters since the agent started. A flow
    /// may be replicated from the first report that contains it.
    #[serde(default)]
    pub receives: Vec<ReceiveReport>,
    /// The observations since the last report, in order.
    #[serde(default)]
    pub observations: Vec<Observation>,
}

impl Report {
    /// The maximum number of flows per direction.
    pub const MAX_FLOWS: usize = 1024;

    /// The maximum number of observations. Further ones go into the next report.
    pub const MAX_OBSERVATIONS: usize = 256;

    /// The maximum size of a report as JSON. It exceeds that of a report with all flows received on
    /// all eight paths, the longest names and the largest counters: 1,300 bytes per flow and 1,000
    /// per observation.
    pub const MAX_BYTES: usize = 2 << 20;
}

/// A node's latest report, as returned by `GET /v1/reports`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reported {
    /// The node.
    pub node: Name,
    /// When the report arrived, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The report.
    pub report: Report,
}

/// Counters of a flow that the node replicates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SendReport {
    /// The flow.
    pub flow: Name,
    /// The epoch of the policy in force at the node.
    pub epoch: u32,
    /// The paths that packets take, as a bit mask.
    #[cfg_attr(feature = "openapi", schema(value_type = u8))]
    pub code: PolicyCode,
    /// The number of packets replicated.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
    /// The bytes of all their copies.
    pub sent_bytes: u64,
}

/// Counters of a flow whose copies the node deduplicates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReceiveReport {
    /// The flow.
    pub flow: Name,
    /// The number of packets passed on after deduplication.
    pub packets: u64,
    /// The paths on which copies arrived.
    pub paths: Vec<ReceivedPath>,
}

/// Counters of one path of a flow, at the egress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReceivedPath {
    /// The path number.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 8))]
    pub number: u8,
    /// The number of copies that arrived.
    pub arrivals: u64,
    /// The number of copies that arrived before the others.
    pub first: u64,
    /// The number of copies that were the only one to arrive.
    pub only_copy: u64,
    /// The number of copies that did not arrive in time.
    pub missing: u64,
}

/// An event at a node that the controller may have to act on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Observation {
    /// The number of consecutive late requests, or of late frames that the application reports,
    /// reached the trigger's limit. Reported by the egress.
    Degraded {
        /// The flow.
        flow: Name,
        /// The time since the last late request was due, or since the report, microseconds.
        since_due_us: u64,
        /// The time since the last request, or that which the report is about, microseconds.
        silent_us: u64,
    },
    /// The policy that the egress proposes from its measurements. Reported by the egress.
    Judged {
        /// The flow.
        flow: Name,
        /// The epoch of the judged policy. The judgement is ignored if another policy is in force.
        epoch: u32,
        /// The paths to keep, as a bit mask.
        #[cfg_attr(feature = "openapi", schema(value_type = u8))]
        code: PolicyCode,
        /// The paths to probe, as a bit mask.
        #[cfg_attr(feature = "openapi", schema(value_type = u8))]
        probes: PathSet,
        /// The probing interval in packets, a power of two.
        probe_every: u16,
        /// The reason, for people.
        reason: String,
    },
    /// A path has not delivered any of its copies for so long that it counts as silent. Reported by
    /// the egress.
    PathSilent {
        /// The flow.
        flow: Name,
        /// The path.
        path: u8,
    },
    /// A silent path delivers copies again. Reported by the egress.
    PathRestored {
        /// The flow.
        flow: Name,
        /// The path.
        path: u8,
    },
    /// Redundancy is lower than the policy intends although every packet still arrives (latent
    /// error detection, IEEE 802.1CB-2017, section 7.4.4). Reported by the egress.
    LatentError {
        /// The flow.
        flow: Name,
        /// The path that stopped contributing.
        path: u8,
    },
    /// A policy took effect in the kernel. Reported by the ingress.
    Applied {
        /// The flow.
        flow: Name,
        /// The epoch of the policy.
        epoch: u32,
        /// The paths of the policy, as a bit mask.
        #[cfg_attr(feature = "openapi", schema(value_type = u8))]
        code: PolicyCode,
        /// Whether the policy arrived by an in-band signal, before the event `policy`.
        by_signal: bool,
    },
    /// The first replica under a policy that replicates left the node. Reported by the ingress.
    FirstReplica {
        /// The flow.
        flow: Name,
        /// The epoch of the policy.
        epoch: u32,
        /// The time since the policy took effect, microseconds.
        after_us: u64,
    },
    /// In-band signals were rejected. Reported by the ingress.
    SignalRefused {
        /// The reason: `tag`, `epoch`, `age`, `flow`, `malformed` or `code`.
        reason: String,
        /// The number of rejected signals since the last report.
        count: u64,
    },
    /// A part of the assignment does not fit the node's configuration; the rest is applied.
    /// Reported by ingress or egress.
    NotApplied {
        /// The flow.
        flow: Name,
        /// The reason and how to fix it, for people.
        reason: String,
    },
}
