//! The tests that need neither root nor other programs of the system.

mod any_bytes;
mod image_sequences;
mod kinds_of_files;
mod live;
#[path = "../../../../base/wire/tests/support/mutation.rs"]
mod mutation;
mod player;
mod recordings;
mod sound;
mod support;
