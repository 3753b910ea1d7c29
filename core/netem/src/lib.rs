//! Seeded emulated links in virtual time.
//!
//! A [`Link`] is one direction of an emulated link. Packets are pushed with their arrival time and
//! popped at their departure time; in between, the link returns the time of the next departure. The
//! crate reads no clock, so simulated time costs nothing, and the real-time emulator of the lab
//! runs the same code.
//!
//! ```
//! use hawser_netem::{Delay, Link, LinkConfig, Rate};
//! use hawser_units::{Bitrate, ByteSize, Instant};
//! use std::time::Duration;
//!
//! let config = LinkConfig {
//!     rate: Some(Rate::Constant(Bitrate::from_mbps(8.0))),
//!     delay: Delay::Constant(Duration::from_millis(20)),
//!     ..LinkConfig::default()
//! };
//! let mut link = Link::new(config, 1, Instant::ZERO);
//! link.push(Instant::ZERO, ByteSize(1000), "hello");
//!
//! let due = link.next_departure().unwrap();
//! assert_eq!(due, Instant::ZERO + Duration::from_millis(21));
//! assert_eq!(link.pop(due), Some((due, "hello")));
//! ```
//!
//! # The order of the impairments
//!
//! 1. **Cut and loss** are decided when a packet arrives, so that which packets are lost depends on
//!    the seed and not on the state of the queue.
//! 2. **Queue and rate**: a drop-tail queue in front of the bottleneck. A lost packet does not
//!    occupy it, as in the kernel's netem.
//! 3. **Base and extra delay** follow the bottleneck: they are propagation delay, and do not delay
//!    the next packet unless the link keeps order.
//! 4. **Reordering** delays a share of packets further, exempt from the order that the link keeps.
//! 5. **Duplication** is last: the copy leaves directly after the original and uses no rate.
//!
//! # Randomness
//!
//! Each impairment draws from its own stream of the seed, once for every packet offered, whatever
//! the fate of the packet. Therefore, enabling or disabling one impairment does not change the
//! draws of the others.

mod config;
mod delay;
mod drive;
mod figure;
mod link;
mod loss;
mod queue;
mod random;
mod rate;
mod stats;
mod steps;
mod trace;

pub use config::{Delay, ExtraDelay, LinkConfig, Loss, Order, QueueLimit, Rate, Reorder};
pub use drive::Drive;
pub use figure::{InvalidConfig, Probability, Span};
pub use link::{Admission, Link};
pub use stats::{DropReason, LinkStats};
pub use steps::{Steps, StepsError};
pub use trace::{Opportunities, TraceError};
