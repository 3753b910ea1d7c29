//! The tests that need neither root nor other programs of the system.

mod guarantees;
#[path = "../support/operations.rs"]
mod operations;
mod tagged;
mod two_threads;
