//! The tests that need root, eBPF and network namespaces.

mod coded;
mod control_scale;
mod guide;
#[path = "../support/mod.rs"]
mod support;
mod tracks;
