//! Quantities and identifiers shared by every part of Hawser.
//!
//! Every value with a unit has its own type, so that bits are never added to bytes and a path index
//! is never mistaken for a flow. This crate reads no clock: an [`Instant`] is a number supplied by
//! its user. Processes take it from a real clock, simulations count it in virtual time.
//!
//! ```
//! use hawser_units::{Bitrate, ByteSize, Instant};
//! use std::time::Duration;
//!
//! let rate = Bitrate::from_mbps(100.0);
//! assert_eq!(rate.time_to_send(ByteSize(1250)), Duration::from_micros(100));
//! assert_eq!(Instant::ZERO + Duration::from_millis(3), Instant::from_nanos(3_000_000));
//! ```

mod backoff;
mod bounded;
mod ecn;
mod id;
mod line;
mod quantity;
mod rtt;
mod selector;
mod time;

pub use backoff::Backoff;
pub use bounded::{ALLOCATION, BoundedMap, BoundedQueue, Held, NotHeld, NotHeldCounts};
pub use ecn::Ecn;
pub use id::{FlowId, MAX_FLOWS, MAX_PATHS, OutOfRange, PathId, PathSet, PolicyCode};
pub use line::{Line, is_shown, printable};
pub use quantity::{Bitrate, ByteSize};
pub use rtt::smoothed_rtt;
pub use selector::{NotAPrefix, Ports, Prefix, Rule};
pub use time::Instant;
