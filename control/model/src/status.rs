//! The status of a flow: whether it is protected, and the reasons.
//!
//! [`Facts`] holds the controller's knowledge of a flow. [`Facts::conditions`] computes the
//! conditions from it, in the order in which a flow becomes protected.

mod conditions;
mod facts;
mod reason;

pub use facts::{End, Facts, Reported};
pub use reason::{ConditionKind, Reason};

use crate::node::ReceivedPath;
use crate::resource::{Event, Flow, PathEnd, PathHealth, Policy};
use serde::{Deserialize, Serialize};

/// The status of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FlowStatus {
    /// The flow.
    pub flow: Flow,
    /// The conditions, in the order in which a flow becomes protected. The last one is `Protected`.
    pub conditions: Vec<Condition>,
    /// The policy in force.
    pub policy: Policy,
    /// The paths that at least one of the nodes has, ordered by number.
    pub paths: Vec<FlowPath>,
    /// The latest events about the flow, oldest first.
    pub events: Vec<Event>,
}

impl FlowStatus {
    /// The maximum number of events.
    pub const MAX_EVENTS: usize = 10;
}

/// A statement about a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Condition {
    /// The name of the condition, stable for programs, such as `Protected`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether the condition holds.
    pub status: Truth,
    /// The reason for the status, stable for programs, such as `NoCommonPath`.
    pub reason: String,
    /// The reason and how to change it, for people.
    pub message: String,
    /// The time since which the status has this reason, milliseconds since 1970; `null` if it is
    /// not known.
    pub since_unix_ms: Option<u64>,
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Truth {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// The controller does not know.
    Unknown,
}

/// A path of a flow, from both ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FlowPath {
    /// The path number.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 8))]
    pub number: u8,
    /// The use of the path under the policy in force.
    pub usage: Usage,
    /// The end at the ingress; `null` if it has none.
    pub ingress: Option<PathEnd>,
    /// The end at the egress; `null` if it has none.
    pub egress: Option<PathEnd>,
    /// The health as last reported by the ingress; `null` if it was not reported.
    pub health: Option<PathHealth>,
    /// The counters of the flow's copies as last reported by the egress; `null` if none has
    /// arrived or the egress does not report to this controller.
    pub received: Option<ReceivedPath>,
}

/// The use of a path under a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Usage {
    /// Every packet takes it.
    Taken,
    /// One packet in `probe_every` takes it.
    Probed,
    /// It could be taken.
    Unused,
    /// A node does not have it, or `paths` of the flow leaves it out.
    Excluded,
}
