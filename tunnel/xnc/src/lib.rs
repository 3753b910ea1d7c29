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

mod decoding;
mod delays;
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

use experiment::Experiment;
use hawser_coding::kernel::Kernel;
use hawser_units::ByteSize;
use std::time::Duration;

/// The parameters of a session. Both ends have to use the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Whether each urgent packet is sent over two paths at once. Not part of the paper.
    pub duplicate_urgent: bool,
    /// The maximum time that a missing packet delays later ones, which are delivered in order. With
    /// [`Duration::MAX`], packets wait until the missing one arrives. With `None`, packets are
    /// delivered as they arrive.
    pub reorder: Option<Duration>,
    /// The maximum time that a packet waits for window; it is dropped afterwards.
    pub max_queue_delay: Duration,
    /// The age at which a packet expires, counted from
    /// [`handle_packet`](Endpoint::handle_packet). It is then not recovered any more
    /// (t_expire in Ni, section 4.4.3), except by fully reliable schemes.
    pub expiry: Duration,
    /// The number of coded packets in addition to the number of lost ones (Ni, section 4.5.1). A
    /// shot that is spread has more of them, by the share of one path, unless all that it recovers
    /// are stragglers.
    pub extra_packets: usize,
    /// The interval at which an idle path is probed while the session is active.
    pub probe_idle: Duration,
    /// The interval at which an idle path is probed, and the time without packets in either
    /// direction after which the session is idle. It keeps the cost of idle sessions low.
    pub probe_rest: Duration,
    /// The maximum size of the queue of packets that wait for window. Above it, packets are dropped
    /// from the flows with the longest queues.
    pub queue_limit: ByteSize,
    /// The maximum size of the packets kept for recovery, and at the receiver for decoding and
    /// reordering. When a fully reliable scheme has this much unacknowledged data, it stops
    /// sending, as with the flow control of a stream. The other schemes give up the oldest packets.
    /// Schemes that recover by coded packets do so before the receiver's decoder would forget them.
    pub packet_memory: ByteSize,
    /// The implementation of coding and decoding. The ends may use different ones, which all give
    /// the same results.
    pub kernel: Kernel,
    /// The parameters that only experiments vary.
    pub experiment: Experiment,
}

/// The time by which a receiver delays acknowledgements.
pub const ACK_DELAY: Duration = Duration::from_millis(5);

impl Default for Config {
    fn default() -> Self {
        Config {
            duplicate_urgent: false,
            reorder: None,
            max_queue_delay: Duration::from_millis(300),
            expiry: Duration::from_millis(700),
            extra_packets: 1,
            probe_idle: Duration::from_millis(100),
            probe_rest: Duration::from_secs(1),
            queue_limit: ByteSize(32 << 20),
            packet_memory: ByteSize(64 << 20),
            kernel: Kernel::best(),
            experiment: Experiment::default(),
        }
    }
}
