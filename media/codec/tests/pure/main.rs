//! The tests that need neither root nor other programs of the system.

mod any_bytes;
#[path = "../support/checks.rs"]
mod checks;
mod frames;
#[path = "../../../../base/wire/tests/support/mutation.rs"]
mod mutation;
mod packet_loss;
mod rate;
#[path = "../support/recordings.rs"]
mod recordings;
mod slices;
mod views;
