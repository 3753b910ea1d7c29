//! The tests that need the machine for themselves.

mod cellfusion_live;
mod demo;
mod faults;
mod relay;
#[path = "../support/mod.rs"]
mod support;
mod tunnel_faults;
mod tunnel_flows;
mod whole;
