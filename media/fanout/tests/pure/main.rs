//! The tests that need neither root nor other programs of the system.

mod budgets;
mod layers;
mod random;
mod support;
mod upstreams;
