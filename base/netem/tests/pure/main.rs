//! The tests that need neither root nor other programs of the system.

mod any_bytes;
#[path = "../support/checks.rs"]
mod checks;
mod discipline;
mod link;
#[path = "../../../wire/tests/support/mutation.rs"]
mod mutation;
