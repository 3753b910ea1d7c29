//! The tests that need the machine for themselves.

mod cellfusion_live;
mod control_scale;
mod faults;
mod relay;
mod support;
mod tunnel_faults;
mod tunnel_flows;
