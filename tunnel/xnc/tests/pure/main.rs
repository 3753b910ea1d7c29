//! The tests that need neither root nor other programs of the system.

mod any_bytes;
#[path = "../support/checks.rs"]
mod checks;
#[path = "../support/configs.rs"]
mod configs;
#[path = "../../../../base/wire/tests/support/mutation.rs"]
mod mutation;
#[path = "../network/mod.rs"]
mod network;
mod xnc_bottleneck;
mod xnc_ecn;
mod xnc_flows;
mod xnc_hostile;
mod xnc_interaction;
mod xnc_paths;
mod xnc_recovery;
mod xnc_urgent;
