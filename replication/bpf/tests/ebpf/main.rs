//! The tests that load eBPF programs: they need root and a kernel with BTF.

mod agreement;
mod arrivals;
mod fallback;
mod left_alone;
mod local;
#[path = "../../../dedup/tests/support/operations.rs"]
mod operations;
mod partial;
mod path_errors;
mod paths;
mod probes;
mod receiver;
mod replay;
mod signals;
#[path = "../support/mod.rs"]
mod support;
mod transit;
mod transparent;
mod watch;
