//! Emulated networks and the experiments that run on them.

pub mod bench;
mod certificates;
pub mod control;
pub mod counters;
pub mod edges;
pub mod emulator;
pub mod experiment;
pub mod experiments;
mod logs;
pub mod plot;
pub mod report;
pub mod stream;
pub mod summary;
pub mod topology;
pub mod traffic;
mod tunnel;
