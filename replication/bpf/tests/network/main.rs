//! The tests in network namespaces, which need root.

mod broadcast;
mod clones;
mod passing;
#[path = "../support/paths.rs"]
mod paths;
mod pins;
mod signalling;
#[path = "../support/mod.rs"]
mod support;
mod viewer;
