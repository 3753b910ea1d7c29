//! Congestion control for a media sender that encodes frames at a target rate, paces their packets,
//! and learns from feedback which packets arrived, when, and with which ECN field.
//!
//! [`Prague`] is the scalable control for L4S (RFC 9330, RFC 9331), [`TrainControl`] the control of a
//! sender that does not pace. Both implement [`RateControl`]. They consist of [`SentPackets`], [`Rtt`],
//! [`Round`], [`LossDetector`] and [`CircuitBreaker`], with which other controllers can be built. A
//! [`Pacer`] spreads the packets of a frame. Nothing here has a clock or a socket.
//! `docs/design/l4s.md` is the design.
//!
//! ```
//! use hawser_congestion::{Acked, Feedback, Prague, PragueConfig, RateControl};
//! use hawser_units::{ByteSize, Ecn, Instant};
//! use std::time::Duration;
//!
//! let ms = Duration::from_millis;
//! let mut control = Prague::new(PragueConfig::default(), Instant::ZERO);
//! assert_eq!(control.target().mbps(), 12.5);
//!
//! let number = 1;
//! control.handle_sent(Instant::ZERO, number, ByteSize(1200));
//! let acked = [Acked { number, held: ms(2), ecn: Ecn::Ect1 }];
//! control.handle_feedback(&Feedback {
//!     now: Instant::ZERO + ms(22),
//!     reported: Instant::ZERO + ms(12),
//!     acked: &acked,
//!     lost: &[],
//!     abandoned: &[],
//!     is_answer: true,
//!     app_limited: false,
//! });
//! assert_eq!(control.in_flight(), ByteSize(0));
//! assert_eq!(control.smoothed_rtt(), Some(ms(20)));
//! ```

mod arrivals;
mod base_check;
mod breaker;
mod classic;
mod control;
mod departure_check;
mod feedback;
mod forward;
mod loss;
mod loss_cause;
mod marking;
mod pacer;
mod prague;
mod recent;
mod round;
mod rtt;
mod sent;
mod steady;
mod throughput;
mod trains;

pub use breaker::{CircuitBreaker, Permission, Silence};
pub use control::{Bounds, RateControl};
pub use departure_check::{DepartureCheck, DepartureFinding};
pub use feedback::{Acked, Feedback, Refusals};
pub use loss::LossDetector;
pub use pacer::{Pacer, Spread};
pub use prague::{Prague, PragueConfig, PragueStats};
pub use round::Round;
pub use rtt::{REFERENCE as REFERENCE_RTT, Rtt};
pub use sent::{Arrived, Confirmed, Lost, SentPackets};
pub use trains::TrainControl;
