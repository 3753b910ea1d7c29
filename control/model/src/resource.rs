//! The resources under `/v1`, which operators create and read.

use crate::discovery::Uplink;
use crate::name::Name;
use crate::pair::PublicKey;
use hawser_units::{PathSet, PolicyCode};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A group of flows and nodes that is hidden from other tenants' operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tenant {
    /// The name of the tenant, unique.
    pub name: Name,
    /// A description, for people.
    #[serde(default)]
    pub description: String,
}

/// An edge node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Node {
    /// The name of the node, unique. It is the common name of its certificate.
    pub name: Name,
    /// The tenant that the node belongs to.
    pub tenant: Name,
    /// A description, for people.
    #[serde(default)]
    pub description: String,
    /// The version of the node's agent; `null` before it has registered.
    pub version: Option<String>,
    /// Whether the node is alive: it reports to a controller.
    pub alive: bool,
    /// When the node last reported, milliseconds since 1970; `null` before it has registered.
    pub seen_unix_ms: Option<u64>,
    /// The node's ends of paths, ordered by path number.
    pub paths: Vec<PathEnd>,
    /// The interfaces of which the controller may make paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<Uplink>,
    /// The node's public keys, the oldest first: one, or two while the node replaces it; none if it
    /// makes no keys.
    #[serde(default)]
    pub keys: Vec<PublicKey>,
    /// The SHA-256 digests of the authorities' certificates that the node trusts, hexadecimal; empty if
    /// it has not said so.
    #[serde(default)]
    pub authorities: Vec<String>,
}

/// A node's end of a path: as in the node's configuration, or as the controller has made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PathEnd {
    /// The path number, 1 to 8, the same at both ends.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 8))]
    pub number: u8,
    /// The interface that the path uses.
    pub interface: String,
    /// The node's address on the path.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub local: IpAddr,
    /// The address of the other end of the path.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub remote: IpAddr,
    /// Whether the controller has made the path of uplinks of both nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discovered: bool,
    /// Whether the interface leads into a tunnel (TUN, WireGuard), such as the coded one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tunnel: bool,
}

impl PathEnd {
    /// Returns the interface with the node's address.
    pub fn uplink(&self) -> Uplink {
        Uplink {
            interface: self.interface.clone(),
            address: self.local,
            tunnel: self.tunnel,
        }
    }
}

/// A path as last reported by its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Path {
    /// The node.
    pub node: Name,
    /// The node's end of the path.
    #[serde(flatten)]
    pub end: PathEnd,
    /// The health of the path; `null` before the first report.
    pub health: Option<PathHealth>,
}

/// The health of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PathHealth {
    /// The path number.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 8))]
    pub number: u8,
    /// Whether the interface exists and the next hop is known.
    pub up: bool,
    /// The smoothed round-trip time between the two nodes, microseconds; `null` while the other
    /// node does not respond.
    pub rtt_us: Option<u32>,
    /// The number of copies that the device dropped since the agent started.
    pub dropped_by_device: u64,
}

/// Traffic from one node to another, and how it is protected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Flow {
    /// The name of the flow, unique.
    pub name: Name,
    /// The tenant that the flow belongs to.
    pub tenant: Name,
    /// The node that replicates.
    pub ingress: Name,
    /// The node that deduplicates.
    pub egress: Name,
    /// The packets of the flow, as selected at the ingress.
    pub select: Selector,
    /// The numbers of the paths that the flow may use, 1 to 8. If empty, all paths that both nodes
    /// have.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 7))]
    pub paths: Vec<u8>,
    /// The protection of the flow when it needs help.
    #[serde(default)]
    pub mode: Mode,
    /// The condition under which the flow needs help; `null` for always.
    #[serde(default)]
    pub trigger: Option<Trigger>,
    /// The parameters for judging paths in the modes `auto`, `successive` and `evidence`.
    #[serde(default)]
    pub pruning: Pruning,
    /// Whether copies are sent as they are, without outer headers and tags. Needs IPv4 packets, and
    /// paths of IPv4 at whose other end is the other node itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transparent: bool,
}

impl Flow {
    /// Returns whether the flow is to be protected without an observation that it needs help.
    pub fn needs_help_always(&self) -> bool {
        match self.mode {
            Mode::Single => false,
            Mode::Auto => true,
            Mode::Redirect | Mode::Replicate | Mode::Successive | Mode::Evidence => {
                self.trigger.is_none()
            }
        }
    }
}

/// A selection of packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Selector {
    /// The destination prefix, such as 203.0.113.0/24.
    #[cfg_attr(
        feature = "openapi",
        schema(
            pattern = "^(((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])/(3[0-2]|[12]?[0-9])|[0-9A-Fa-f:.]{2,45}/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$",
            example = "203.0.113.0/24"
        )
    )]
    pub destination: String,
    /// The IP protocol number; any if not given.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub protocol: Option<u8>,
    /// The first and the last source port; any if not given.
    #[serde(default)]
    pub source_ports: Option<(u16, u16)>,
    /// The first and the last destination port; any if not given.
    #[serde(default)]
    pub destination_ports: Option<(u16, u16)>,
}

/// The protection of a flow when it needs help. Before that, it takes the default route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The flow takes the cheapest paths that meet its aim: one path, another one, or copies on as few
    /// as help. It begins on one path and needs no trigger; a trigger starts help earlier.
    #[default]
    Auto,
    /// The flow stays on the default route.
    Single,
    /// The flow moves to the path with the smallest round-trip time.
    Redirect,
    /// The flow is replicated on all paths permanently.
    Replicate,
    /// The flow is replicated on all paths. Algorithm 1 of Qian et al. removes paths.
    Successive,
    /// The flow is replicated on all paths. Paths that do not contribute enough are removed, probed
    /// and restored.
    Evidence,
}

/// The condition under which a flow needs help: several consecutive requests for frames from the
/// viewer are late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Trigger {
    /// The packets that carry the viewer's requests to the source, as selected at the egress.
    pub select: Selector,
    /// The smallest and the largest TCP or UDP payload of a request, bytes.
    #[serde(default = "Trigger::request_bytes")]
    pub request_bytes: (u16, u16),
    /// The interval since the previous request from which a request counts as late, milliseconds.
    #[serde(default = "Trigger::late_after_ms")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub late_after_ms: u32,
    /// The number of consecutive late requests that trigger help.
    #[serde(default = "Trigger::consecutive")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub consecutive: u32,
}

impl Trigger {
    /// The default: any payload of up to 200 bytes.
    pub const fn request_bytes() -> (u16, u16) {
        (1, 200)
    }

    /// The default: the paper's threshold (Qian, step 2).
    pub const fn late_after_ms() -> u32 {
        150
    }

    /// The default: the paper's count (Qian, step 2).
    pub const fn consecutive() -> u32 {
        3
    }
}

/// The parameters for judging paths. Fields that are not given take the default of the mode.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pruning {
    /// The maximum delay of a copy after the first one at which it is still useful, milliseconds.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub tolerance_ms: Option<f64>,
    /// `successive`: the size of the sliding window, packets. If it is not given: the packets of a
    /// frame, whose number a node learns from the requests of a trigger, and 100 without these.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub window_packets: Option<u32>,
    /// `auto` and `evidence`: the maximum average number of copies per packet, including probes.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub budget_ratio: Option<f64>,
    /// `auto` and `evidence`: the tolerated fraction of frames damaged by loss or delay. Applies to packets
    /// where frame boundaries are not known.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1))]
    pub tolerated_damage_ratio: Option<f64>,
}

/// The policy in force for a flow: its paths and epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Policy {
    /// The flow.
    pub flow: Name,
    /// The epoch, incremented with every policy of the flow. A node applies the policy with the
    /// greatest epoch, regardless of how it arrived.
    pub epoch: u32,
    /// The paths that every packet takes, as a bit mask: bit i is path i+1. 0 is the default route.
    #[cfg_attr(feature = "openapi", schema(value_type = u8))]
    pub code: PolicyCode,
    /// The paths that additionally carry one packet in `probe_every`, as a bit mask.
    #[cfg_attr(feature = "openapi", schema(value_type = u8))]
    pub probes: PathSet,
    /// The probing interval in packets, a power of two; 0 if no path is probed.
    pub probe_every: u16,
    /// The reason for the policy.
    pub reason: Cause,
    /// When the policy was decided, milliseconds since 1970.
    pub decided_unix_ms: u64,
}

/// An operator's choice of paths, in force until it is released: `PUT /v1/policies/{flow}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Override {
    /// The paths that every packet takes, as a bit mask: bit i is path i+1. 0 is the default route.
    #[cfg_attr(feature = "openapi", schema(value_type = u8))]
    pub code: PolicyCode,
}

/// The reason for a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The flow was created or changed.
    Configured,
    /// The viewer's requests were late, or the application reported late frames.
    Degraded,
    /// The egress judged the paths.
    Judged,
    /// Another path has the smallest round-trip time, or the path in use went down.
    Redirected,
    /// An operator chose the paths.
    Operator,
}

impl Cause {
    /// Returns the name in messages, metrics and lists.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Configured => "configured",
            Cause::Degraded => "degraded",
            Cause::Judged => "judged",
            Cause::Redirected => "redirected",
            Cause::Operator => "operator",
        }
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// The number of the event. Later events have greater numbers; a list continues after one.
    pub number: u64,
    /// The time of the event by the controller's clock, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The tenant that the event belongs to; `null` if only operators of all tenants can see it.
    pub tenant: Option<Name>,
    /// The node that the event is about.
    pub node: Option<Name>,
    /// The flow that the event is about.
    pub flow: Option<Name>,
    /// The kind of the event, stable for programs, such as `flow_degraded`.
    pub kind: String,
    /// A message, for people.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_cause_is_that_of_messages() {
        for cause in [
            Cause::Configured,
            Cause::Degraded,
            Cause::Judged,
            Cause::Redirected,
            Cause::Operator,
        ] {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
        }
    }
}
