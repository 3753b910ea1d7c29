//! The tests that need neither root nor other programs of the system.

mod budgets;
mod layers;
#[path = "../support/operations.rs"]
mod operations;
mod random;
mod support;
mod upstreams;
