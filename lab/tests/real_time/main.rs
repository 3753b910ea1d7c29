//! The tests that need the machine for themselves.

mod mptcp;
mod self_test;
