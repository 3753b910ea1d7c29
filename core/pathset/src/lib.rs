//! What a receiver learns about its paths from the arrivals of copies.
//!
//! The kernel records every copy that arrives; a [`Tracker`] finds the copies of a packet among the records, waits for
//! the ones that are still under way, counts what each path was good for, and hands the packet on to a judge:
//! [`Successive`] or [`Evidence`], which says what paths the flow should take. A [`Trigger`] watches the viewer's requests
//! and says when a flow needs help.
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
mod hash;
mod judged;
mod judgement;
mod numbers;
mod packet;
mod proposal;
mod successive;
mod totals;
mod trigger;

pub use arrivals::{Arrival, MAX_PENDING, Tracker};
pub use evidence::{Evidence, EvidenceConfig};
pub use judged::JudgedPacket;
pub use judgement::{JudgeEvent, Judgement};
pub use successive::{Successive, SuccessiveConfig};
pub use totals::{FlowTotals, PathTotals, SkewHistogram};
pub use trigger::{Degraded, Trigger, TriggerConfig};
