//! The tests that need neither root nor other programs of the system.

mod encodings;
mod relayed;
mod sound;
mod support;
mod thinned;
mod whole;
