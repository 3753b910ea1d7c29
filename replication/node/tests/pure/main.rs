//! The tests that need neither root nor other programs of the system.

mod any_order;
mod assignments;
mod key_changes;
mod support;
