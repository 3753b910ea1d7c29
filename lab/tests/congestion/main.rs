//! Rate control beside rivals over a bottleneck in virtual time, one module for each behaviour. Each
//! test prints the figures that it judges: `cargo test -p hawser-lab --test congestion -- --nocapture`.

#![allow(
    clippy::disallowed_macros,
    reason = "the tests print the figures that they judge"
)]

mod any_feedback;
mod bulk;
mod bulk_flows;
mod classic;
#[path = "../../../media/congestion/tests/any_feedback/operations.rs"]
mod operations;
mod paper;
mod round_trips;
mod sharing;
#[allow(dead_code, reason = "the tests of hawser-congestion use more of it")]
#[path = "../../../media/congestion/tests/virtual_time/support/mod.rs"]
mod support;
