//! The parts that all eBPF programs and their loaders share: loading, attachments, typed tables, test runs. No policy.
//!
//! In `src/c` are the headers that the programs share: the parser, sums, SipHash. `build/programs.rs` compiles the
//! programs of a crate, and [`skeletons!`] declares the modules that were generated from them.
#![allow(
    unsafe_code,
    reason = "maps are memory shared with the kernel and links are raw kernel objects"
)]

pub mod address;
pub mod keys;
pub mod link;
pub mod load;
pub mod program;
pub mod records;
pub mod shared;
mod skeletons;
pub mod table;
#[cfg(feature = "testing")]
pub mod testing;
