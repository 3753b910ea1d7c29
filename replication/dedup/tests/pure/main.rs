//! The tests that need neither root nor other programs of the system.

mod guarantees;
mod tagged;
mod two_threads;
