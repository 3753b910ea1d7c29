//! Emulated networks and the experiments that run on them.

pub mod emulator;
pub mod plot;
pub mod report;
pub mod summary;
pub mod topology;
pub mod traffic;
