//! The control plane without its network: the messages that controller, nodes and operators
//! exchange, and the controller's decisions about flows.
//!
//! [`resource`] holds the resources that operators see under `/v1`, [`node`] the messages between a
//! node and its controller, [`access`] certificates and tokens, [`tunnel`] the requests of tunnel
//! clients and servers, [`track`] the secrets of broadcasts, [`status`] the conditions of a flow, [`topology`] the paths between nodes,
//! [`answer`] the shape of lists and problems, [`audit`] the log of changes.
//! [`discovery`] finds the paths between two nodes from their uplinks.
//! [`decide`] computes the next policy from a flow, the policy in force and an observation.
//!
//! [`API`] is the version of the interface, which both ends of a connection share. [`strict`] rejects unknown fields, for
//! input of operators. [`named`] rejects lists in place of objects.

pub mod access;
pub mod answer;
pub mod audit;
pub mod decide;
pub mod discovery;
mod name;
mod named;
pub mod node;
pub mod pair;
mod prefix;
pub mod resource;
pub mod status;
mod strict;
pub mod topology;
pub mod track;
pub mod tunnel;

/// The version of the interface between a controller, its nodes and its operators: the first part of
/// each path.
pub const API: &str = "v1";

pub use name::{InvalidName, Name};
pub use named::named;
pub use prefix::{InvalidPrefix, Prefix, at_most_one_of_each_family};
pub use strict::{strict, with_unknown};
