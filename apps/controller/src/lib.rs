//! The controller: knows nodes, paths and flows, decides what becomes of each flow, and tells the nodes.

pub mod store;
