//! Experiments on emulated networks, their figures and reports, and benchmarks.

mod audience;
pub mod bench;
mod collect;
pub mod command;
pub mod counters;
pub mod emulator;
pub mod experiment;
pub mod experiments;
pub mod plot;
pub mod programs;
pub mod record;
mod recordings;
mod relays;
pub mod report;
pub mod results;
pub mod rivals;
pub mod self_test;
pub mod summary;
pub mod vmaf;
