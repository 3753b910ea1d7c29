//! Packets over several paths at once, with the losses of one path recovered over the others:
//! CellFusion's XNC (Ni et al., SIGCOMM 2023), with our additions.
//!
//! An [`Endpoint`] is one end of a session. It has no clock and no socket: a path is a QUIC
//! connection of the driver, frames are the datagrams of that connection, and congestion control and
//! encryption are QUIC's. `docs/design/xnc.md` describes the decisions.
//!
//! ```
//! use hawser_units::{ByteSize, Instant, PathId};
//! use hawser_xnc::{Config, Endpoint, Hint, PathState, Rtt};
//!
//! let (mut car, mut server) = (Endpoint::new(Config::default()), Endpoint::new(Config::default()));
//! let now = Instant::ZERO;
//! for path in PathId::all().take(2) {
//!     car.add_path(now, path);
//!     server.add_path(now, path);
//!     car.update_path(path, PathState {
//!         congestion_window: ByteSize(14_000),
//!         in_flight: ByteSize(0),
//!         queued: ByteSize(0),
//!         rtt: Rtt::default(),
//!         datagram_size: 1_400,
//!     });
//! }
//!
//! car.handle_packet(now, b"an IP packet".to_vec(), Hint::default())?;
//! while let Some(transmit) = car.poll_transmit(now) {
//!     server.handle_datagram(now, transmit.path, transmit.datagram, None)?;
//! }
//! assert_eq!(server.poll_packet().unwrap().bytes, &b"an IP packet"[..]);
//! # Ok::<(), hawser_xnc::RejectReason>(())
//! ```

mod config;
mod decoding;
mod delays;
mod earliest_delivery;
mod endpoint;
pub mod experiment;
pub mod frame;
mod liveness;
mod mark_share;
mod memory;
mod numbers;
mod path;
mod receiver;
mod recovery;
mod reorder_buffer;
mod sender;
mod sent_packets;
mod sent_transmissions;
mod stats;
mod timer;
mod timing;

pub use config::{ACK_DELAY, Config};
pub use delays::Delays;
pub use endpoint::{Endpoint, is_control};
pub use liveness::{Event, Liveness};
pub use mark_share::MarkShare;
pub use path::{PathState, Rtt};
pub use recovery::CODED_OVERHEAD;
pub use reorder_buffer::Packet;
pub use sender::Transmit;
pub use sent_packets::Hint;
pub use stats::{PathStats, ReceiverStats, RejectReason, SenderStats, Stats};
pub use timer::Timer;
