//! The tests in network namespaces, which need root.

#[path = "../support/machines.rs"]
mod machines;
mod narrow_path;
mod roaming;
