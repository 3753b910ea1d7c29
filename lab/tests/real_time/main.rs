//! The tests that need the machine for themselves.

mod emulator;
mod mptcp;
mod self_test;
mod traffic;
