//! What operators create and see: the resources under `/v1`.

use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Flows and nodes that belong together and are hidden from others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Unique.
    pub name: Name,
    /// For people.
    #[serde(default)]
    pub description: String,
}

/// An edge node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Node {
    /// Unique; the common name of its certificate.
    pub name: Name,
    /// Whose it is.
    pub tenant: Name,
    /// Of its agent; none before it has registered.
    pub version: Option<String>,
    /// Whether it is known to live: its lease has not run out.
    pub alive: bool,
    /// When it was last heard of, milliseconds since 1970; none before it has registered.
    pub seen_unix_ms: Option<u64>,
    /// Its ends of paths, in order of their numbers.
    pub paths: Vec<PathEnd>,
}

/// A node's end of a path, as the node's own configuration has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PathEnd {
    /// 1 to 8, the same at both ends.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 8))]
    pub number: u8,
    /// What it leaves by.
    pub interface: String,
    /// The node's address.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub local: IpAddr,
    /// The address of the other end.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub remote: IpAddr,
}

/// A path as its node last saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Path {
    /// Whose end it is.
    pub node: Name,
    /// That end.
    #[serde(flatten)]
    pub end: PathEnd,
    /// How it is; none before the first report.
    pub health: Option<PathHealth>,
}

/// How a path is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PathHealth {
    /// The path.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 8))]
    pub number: u8,
    /// Whether its interface is there and its next hop known.
    pub up: bool,
    /// The smoothed round-trip time between the two nodes, microseconds; none while the other node does not answer.
    pub rtt_us: Option<u32>,
    /// Copies that its device refused since the agent started.
    pub refused_by_device: u64,
}

/// Traffic from one node to another, and what is to be done for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Unique.
    pub name: Name,
    /// Whose it is.
    pub tenant: Name,
    /// The node that replicates.
    pub ingress: Name,
    /// The node that eliminates.
    pub egress: Name,
    /// Which packets are replicated at the ingress.
    pub select: Selector,
    /// Numbers of the paths that may be used, 1 to 8; empty: all that both nodes have.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 7))]
    pub paths: Vec<u8>,
    /// What is done when the flow needs help.
    pub mode: Mode,
    /// When it needs help; none: always.
    #[serde(default)]
    pub trigger: Option<Trigger>,
    /// How paths are judged in the modes `successive` and `evidence`.
    #[serde(default)]
    pub elimination: Elimination,
}

impl Flow {
    /// Whether something is to be done for it without anybody observing that it needs help.
    pub fn needs_help_always(&self) -> bool {
        self.trigger.is_none() && self.mode != Mode::Single
    }
}

/// Which packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Selector {
    /// A prefix, such as 203.0.113.0/24.
    #[cfg_attr(
        feature = "openapi",
        schema(
            pattern = "^(((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])/(3[0-2]|[12]?[0-9])|[0-9A-Fa-f:.]{2,45}/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$",
            example = "203.0.113.0/24"
        )
    )]
    pub destination: String,
    /// The IP protocol number; any when not given.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub protocol: Option<u8>,
    /// First and last source port; any when not given.
    #[serde(default)]
    pub source_ports: Option<(u16, u16)>,
    /// First and last destination port; any when not given.
    #[serde(default)]
    pub destination_ports: Option<(u16, u16)>,
}

/// What is done for a flow that needs help. Before that, it takes the default route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing.
    Single,
    /// It moves to the path with the smallest round-trip time.
    Redirect,
    /// It is replicated on all paths and stays so.
    Replicate,
    /// It is replicated on all paths; Algorithm 1 of Qian et al. removes some.
    Successive,
    /// It is replicated on all paths; those that the evidence speaks against are removed, probed and restored.
    Evidence,
}

/// When a flow needs help: the viewer's requests for frames come late, several times in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// Which packets at the egress are the viewer's way to the source.
    pub select: Selector,
    /// Least and largest TCP or UDP payload of a request, bytes.
    #[serde(default = "Trigger::request_bytes")]
    pub request_bytes: (u16, u16),
    /// A request is late so long after the one before, milliseconds.
    #[serde(default = "Trigger::late_after_ms")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub late_after_ms: u32,
    /// So many late ones in a row.
    #[serde(default = "Trigger::in_a_row")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub in_a_row: u32,
}

impl Trigger {
    /// Anything with a payload of up to 200 bytes.
    pub const fn request_bytes() -> (u16, u16) {
        (1, 200)
    }

    /// The paper's threshold (Qian, step 2).
    pub const fn late_after_ms() -> u32 {
        150
    }

    /// The paper's count (Qian, step 2).
    pub const fn in_a_row() -> u32 {
        3
    }
}

/// How paths are judged. What is not given takes the default of the mode.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Elimination {
    /// How much later than the first a copy may come and still be of use, milliseconds.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub tolerance_ms: Option<f64>,
    /// `successive`: packets in the sliding window.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub window_packets: Option<u32>,
    /// `evidence`: how many copies a packet may have on average, probes included.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub budget_ratio: Option<f64>,
    /// `evidence`: the part of frames, or of packets where frames are not known, that may be damaged by loss or delay.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1))]
    pub tolerated_damage_ratio: Option<f64>,
}

/// What is in force for a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The flow.
    pub flow: Name,
    /// Rises with every policy of the flow; the newer one wins, however it reached the node.
    pub epoch: u32,
    /// The paths that every packet takes: bit i is path i+1; 0 is the default route.
    pub code: u8,
    /// The paths that one packet in `probe_every` takes as well.
    pub probes: u8,
    /// A power of two; 0 when nothing is probed.
    pub probe_every: u16,
    /// Why.
    pub because: Cause,
    /// When it was decided, milliseconds since 1970.
    pub decided_unix_ms: u64,
}

/// An operator's choice, in force until it is taken back: `PUT /v1/policies/{flow}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// The paths that every packet takes: bit i is path i+1; 0 is the default route.
    pub code: u8,
}

/// Why a policy came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The flow was created or changed.
    Configured,
    /// The viewer's requests came late.
    Degraded,
    /// The egress judged the paths.
    Judged,
    /// Another path has the smallest round-trip time, or the one in use went down.
    Redirected,
    /// An operator said so.
    Operator,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Rises; where a list of events goes on.
    pub number: u64,
    /// Milliseconds since 1970, by the controller's clock.
    pub at_unix_ms: u64,
    /// Whose it is; none: the operators' alone.
    pub tenant: Option<Name>,
    /// Which node it is about.
    pub node: Option<Name>,
    /// Which flow it is about.
    pub flow: Option<Name>,
    /// A word that programs can rely on, such as `flow_degraded`.
    pub kind: String,
    /// For people.
    pub message: String,
}
