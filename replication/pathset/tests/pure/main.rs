//! The tests that need neither root nor other programs of the system.

mod accounting;
mod auto;
mod evidence;
mod late_requests;
#[path = "../network/mod.rs"]
mod network;
mod pruning;
mod reported_packets;
