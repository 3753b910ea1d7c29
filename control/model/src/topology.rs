//! The nodes and the paths between them: `GET /v1/topology`.

use crate::discovery::Uplink;
use crate::name::Name;
use crate::resource::{PathEnd, PathHealth};
use serde::{Deserialize, Serialize};

/// The nodes, and the paths that both of two nodes have registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Topology {
    /// The nodes, ordered by name.
    pub nodes: Vec<TopologyNode>,
    /// The paths, ordered by their nodes and numbers.
    pub paths: Vec<TopologyPath>,
    /// The pairs of uplinks of which the controller could make paths and has not, ordered by their
    /// nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<TopologyCandidate>,
}

impl Topology {
    /// The maximum number of nodes.
    pub const MAX_NODES: usize = 1000;
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TopologyNode {
    /// The name of the node.
    pub name: Name,
    /// The tenant that the node belongs to.
    pub tenant: Name,
    /// Whether the node is alive.
    pub alive: bool,
    /// The numbers of the paths that the node has registered and that lead to no other node here:
    /// no node has registered the other end.
    pub unmatched: Vec<u8>,
}

/// A path between two nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TopologyPath {
    /// The path number, the same at both ends.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 8))]
    pub number: u8,
    /// The two ends, ordered by node.
    #[cfg_attr(feature = "openapi", schema(min_items = 2, max_items = 2))]
    pub ends: Vec<TopologyEnd>,
    /// Whether each end has registered the address of the other one. Otherwise the ends belong
    /// together because a flow uses them: an address may be translated on the way.
    pub addresses_match: bool,
    /// The flows between the two nodes that take the path now, ordered by name.
    pub flows: Vec<Name>,
}

/// An end of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TopologyEnd {
    /// The node.
    pub node: Name,
    /// The end, as the node has registered it.
    pub end: PathEnd,
    /// The health as last reported by the node; `null` if it has not reported any.
    pub health: Option<PathHealth>,
}

/// A pair of uplinks of two nodes that is not a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TopologyCandidate {
    /// The two ends, ordered by node.
    #[cfg_attr(feature = "openapi", schema(min_items = 2, max_items = 2))]
    pub ends: Vec<TopologyUplink>,
    /// Why it is not a path, for people.
    pub reason: String,
}

/// An uplink of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TopologyUplink {
    /// The node.
    pub node: Name,
    /// The uplink.
    #[serde(flatten)]
    pub uplink: Uplink,
}
