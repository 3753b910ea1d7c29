//! Quantities and identifiers that every part of Hawser shares.
//!
//! A value that has a unit has a type here, so that bits are never added to bytes and a path index is never
//! mistaken for a flow. Nothing in this crate reads a clock: an [`Instant`] is a number that its user supplies,
//! taken from a real clock by the processes and counted by the simulator in virtual time.
//!
//! ```
//! use hawser_units::{Bitrate, ByteSize, Instant};
//! use std::time::Duration;
//!
//! let rate = Bitrate::from_mbps(100.0);
//! assert_eq!(rate.time_to_send(ByteSize(1250)), Duration::from_micros(100));
//! assert_eq!(Instant::ZERO + Duration::from_millis(3), Instant::from_nanos(3_000_000));
//! ```

mod id;
mod quantity;
mod time;

pub use id::{FlowId, MAX_FLOWS, MAX_PATHS, OutOfRange, PathId, PathSet, PolicyCode};
pub use quantity::{Bitrate, ByteSize};
pub use time::Instant;
