//! The tests that need neither root nor other programs of the system.

mod any_world;
mod decisions;
mod world;
