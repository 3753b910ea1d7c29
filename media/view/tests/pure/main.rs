//! The tests that need neither root nor other programs of the system.

mod any_bytes;
#[path = "../support/clap.rs"]
mod clap;
mod hostile_publishers;
#[path = "../../../../base/wire/tests/support/mutation.rs"]
mod mutation;
mod pictures;
mod pushing;
mod sound;
mod watching;
