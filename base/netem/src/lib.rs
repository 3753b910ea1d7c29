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
//! 2. **Queue and rate**: a queue in front of the bottleneck, see below. A lost packet does not
//!    occupy it, as in the kernel's netem, unless packets are lost behind it ([`LossAt::Exit`]).
//! 3. **Base and extra delay** follow the bottleneck: they are propagation delay, and do not delay
//!    the next packet unless the link keeps order.
//! 4. **Reordering** delays a share of packets further, exempt from the order that the link keeps.
//! 5. **Duplication** is last: the copy leaves directly after the original and uses no rate.
//!
//! # Queues
//!
//! Without a [`Discipline`], the queue is drop-tail and decides when a packet arrives:
//! [`Link::push`] returns the departure. With one, the queue decides whenever the bottleneck is free
//! which packet leaves next, and may drop packets or mark them with CE until then: [`Link::push`]
//! returns [`Admission::Queued`]. [`Discipline::Fifo`] has the departures of the link without a
//! discipline.
//!
//! A discipline reads the ECN field and the flow of a packet, which [`Link::push_packet`] takes, and
//! marks the payload with the function given to [`Link::marking_by`]:
//!
//! ```
//! use hawser_netem::{Class, Discipline, DualPi2, Link, LinkConfig, Packet, Rate};
//! use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
//! use std::time::Duration;
//!
//! let config = LinkConfig {
//!     rate: Some(Rate::Constant(Bitrate::from_mbps(12.0))),
//!     discipline: Some(Discipline::DualPi2(DualPi2::default())),
//!     ..LinkConfig::default()
//! };
//! let mut link = Link::new(config, 1, Instant::ZERO).marking_by(|ecn| *ecn = Ecn::Ce);
//! for _ in 0..6 {
//!     let packet = Packet { ecn: Ecn::Ect1, ..Packet::new(ByteSize(1500), Ecn::Ect1) };
//!     link.push_packet(Instant::ZERO, packet);
//! }
//! let left = std::iter::from_fn(|| link.pop(Instant::ZERO + Duration::from_millis(6)));
//! assert_eq!(left.filter(|(_, ecn)| *ecn == Ecn::Ce).count(), 2);
//! assert_eq!(link.stats().marked_ect1, 2);
//! assert_eq!(link.sojourn(Class::L4s).max(), Duration::from_millis(5));
//! ```
//!
//! # Randomness
//!
//! Each impairment draws from its own stream of the seed, once for every packet offered, whatever
//! the fate of the packet. Therefore, enabling or disabling one impairment does not change the
//! draws of the others. A discipline has streams of its own.

mod bottleneck;
mod config;
mod delay;
mod departure;
mod discipline;
mod drive;
mod figure;
mod histogram;
mod link;
mod loss;
mod packet;
mod queue;
mod random;
mod rate;
mod stats;
mod steps;
mod trace;

pub use config::{
    Decisions, Delay, Discipline, DualPi2, ExtraDelay, FqCodel, L4sAqm, LinkConfig, Loss, LossAt,
    MeterMode, Order, Paper, QueueLimit, Rate, Reorder, Scheduler,
};
pub use drive::Drive;
pub use figure::{InvalidConfig, Probability, Span};
pub use histogram::{Histogram, Quantiles};
pub use link::{Admission, Link};
pub use packet::Packet;
pub use stats::{Class, DropReason, LinkStats};
pub use steps::{Steps, StepsError};
pub use trace::{DRIVE_HEADER, Opportunities, TraceError};
