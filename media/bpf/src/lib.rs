//! The eBPF programs of the relay and their loader: load, attach, typed map handles. No policy.
//!
//! [`Relay`](relay::Relay) sends media to many subscribers. The programs are in `src/c`; the formats are specified in
//! `docs/design/media.md`.
#![allow(
    unsafe_code,
    reason = "maps are memory shared with the kernel and links are raw kernel objects"
)]

pub mod relay;
pub mod timed;

pub use hawser_kernel::link::{AttachError, Link};
pub use hawser_kernel::load::LoadError;
pub use hawser_kernel::program::{RunError, TestRun};
pub use hawser_kernel::table::TableError;

hawser_kernel::skeletons!(relay, relay_at);
