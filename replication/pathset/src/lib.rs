//! Judges the paths of a flow by the arrivals of its copies at the receiver.
//!
//! The kernel records every copy that arrives. A [`Tracker`] matches the copies of a packet, waits
//! for those still in flight, counts what each path contributed, and passes the packet on to a
//! judge, [`Successive`] or [`Evidence`], which proposes the paths that the flow should take. A
//! [`Trigger`] watches the viewer's requests and detects when the experience degrades.
//!
//! ```
//! use hawser_pathset::{Arrival, Tracker};
//! use hawser_units::{FlowId, Instant, PathId, PathSet};
//! use std::time::Duration;
//!
//! let flow = FlowId::try_from(0)?;
//! let [fast, slow] = [PathId::try_from(0)?, PathId::try_from(1)?];
//! let arrival = |millis, path, sequence, first| Arrival {
//!     at: Instant::ZERO + Duration::from_millis(millis),
//!     flow,
//!     path,
//!     paths: PathSet::from_bits(0b11),
//!     sequence,
//!     epoch: 0,
//!     first,
//!     sent_micros: 0,
//!     bytes: 1200,
//! };
//!
//! let mut tracker = Tracker::new(Duration::from_millis(200));
//! tracker.handle_arrival(&arrival(20, fast, 1, true));
//! tracker.handle_arrival(&arrival(21, fast, 2, true));
//! tracker.handle_arrival(&arrival(30, slow, 1, false));
//! tracker.handle_timeout(Instant::ZERO + Duration::from_millis(300));
//!
//! let totals = tracker.flow(flow).unwrap();
//! assert_eq!(totals.packets, 2);
//! assert_eq!((totals.path(fast).first, totals.path(fast).only), (2, 1));
//! assert_eq!((totals.path(slow).skew.total(), totals.path(slow).missing), (1, 1));
//! # Ok::<(), hawser_units::OutOfRange>(())
//! ```

mod arrivals;
mod evidence;
mod gaps;
mod hash;
mod judged;
mod judgement;
mod packet;
mod proposal;
mod successive;
mod totals;
mod trigger;

pub use arrivals::{MAX_PENDING, Tracker};
pub use evidence::{Evidence, EvidenceConfig};
pub use judged::JudgedPacket;
pub use judgement::{JudgeEvent, Judgement};
pub use packet::Arrival;
pub use successive::{Successive, SuccessiveConfig};
pub use totals::{FlowTotals, PathTotals, SkewHistogram};
pub use trigger::{Degraded, Trigger, TriggerConfig};
