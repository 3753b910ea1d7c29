//! The agent of an edge node.
