//! Rate control over a bottleneck in virtual time, one module for each behaviour. Each test prints
//! the figures that it judges: `cargo test -p hawser-congestion --test virtual_time -- --nocapture`.

#![allow(
    clippy::disallowed_macros,
    reason = "the tests print the figures that they judge"
)]

mod alone;
mod app_limited;
mod capacity;
mod classic;
mod loss;
mod round_trips;
mod silence;
#[allow(dead_code, reason = "the tests of the lab use more of it")]
mod support;
