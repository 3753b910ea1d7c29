//! The control plane without its network: what controller, nodes and operators say to each other, and how the controller
//! decides what becomes of a flow.
//!
//! [`resource`] is what operators see under `/v1`, [`node`] what a node and its controller exchange, [`access`] how both
//! come by the right to, [`tunnel`] what ends of coded tunnels ask, [`answer`] the shape of lists and problems,
//! [`audit`] who changed what. [`decide`] is the decision itself: a flow, the policy in force and an observation in, the next
//! policy out.

pub mod access;
pub mod answer;
pub mod audit;
pub mod decide;
mod name;
pub mod node;
mod prefix;
pub mod resource;
pub mod tunnel;

pub use name::{InvalidName, Name};
pub use prefix::{InvalidPrefix, Prefix, at_most_one_of_each_family};
