//! QUIC for Hawser's tunnels, one connection for each uplink: used by the tunnel through `noq`, and
//! by the simulator through `noq-proto` in virtual time.
//!
//! ```
//! use hawser_quic::{Congestion, Live, Transport};
//! use std::sync::Arc;
//!
//! // Each connection has its own figures, and so needs its own configuration.
//! let live = Arc::new(Live::new(|| {}));
//! let transport = Transport::default().config(Congestion::bbr(Arc::clone(&live), 1))?;
//! # let _ = transport;
//! assert_eq!(live.figures(std::time::Instant::now()).in_flight.0, 0);
//! # Ok::<(), hawser_quic::InvalidTransport>(())
//! ```

mod bbr;
mod black_hole;
mod congestion;
mod live;
mod marks;
mod sent_packets;
pub mod tls;
mod transport;

pub use bbr::{Bbr, BbrConfig};
pub use congestion::Congestion;
pub use live::{Figures, Live, RoundTrip};
pub use marks::{MarkCounter, MarkedDatagrams, Received};
pub use transport::{InvalidTransport, Transport};
