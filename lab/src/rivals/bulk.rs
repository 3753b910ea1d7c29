//! Bulk flows: senders that always have data, with a window and acknowledgements of each segment, as
//! the flows of `iperf` that a media flow competes with.
//!
//! A [`Sender`] numbers transmissions, as QUIC does, so that nothing is retransmitted under its old
//! number: a bulk flow has no data that matters. Its [`Window`] is [`PragueWindow`] or
//! [`CubicWindow`]. A [`Receiver`] acknowledges each segment.
//!
//! ```
//! use hawser_lab::rivals::bulk;
//! use hawser_units::{Ecn, Instant};
//! use std::time::Duration;
//!
//! let mut sender = bulk::Sender::prague();
//! let mut receiver = bulk::Receiver::default();
//! let segment = sender.poll_transmit(Instant::ZERO).unwrap();
//! assert_eq!(segment.ecn, Ecn::Ect1);
//!
//! let acknowledgement = receiver.handle_segment(&segment);
//! sender.handle_acknowledgement(Instant::ZERO + Duration::from_millis(20), acknowledgement);
//! assert_eq!(receiver.received(), segment.size);
//! ```

mod cubic;
mod prague;
mod receiver;
mod segment;
mod sender;
mod window;

pub use cubic::CubicWindow;
pub use prague::PragueWindow;
pub use receiver::Receiver;
pub use segment::{Acknowledgement, Segment};
pub use sender::Sender;
pub use window::{Acknowledged, Window};

/// A bulk flow that behaves as TCP Prague.
pub type Prague = Sender<PragueWindow>;

/// A bulk flow that behaves as TCP CUBIC.
pub type Cubic = Sender<CubicWindow>;
