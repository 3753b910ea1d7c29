use hawser_units::{ByteSize, Ecn, Instant};
use std::time::Duration;

/// The size of a full-size segment as a packet.
pub(crate) const PACKET: ByteSize = ByteSize(1500);

/// The initial window in segments (RFC 6928).
pub(crate) const INITIAL_SEGMENTS: f64 = 10.0;

/// A congestion window, counted in segments.
pub trait Window {
    /// Takes an acknowledgement.
    fn handle_acknowledged(&mut self, acknowledged: &Acknowledged);

    /// Reduces the window because of loss. Called once per round trip.
    fn handle_loss(&mut self, now: Instant);

    /// Reduces the window to one segment because of a timeout.
    fn handle_timeout(&mut self, now: Instant);

    /// Returns the window in segments, at least one.
    fn segments(&self) -> f64;

    /// Returns the pacing rate as a multiple of the window over the round-trip time.
    fn pacing_gain(&self) -> f64;

    /// Returns the ECN field of segments.
    fn ecn(&self) -> Ecn;
}

/// Segments that were acknowledged.
#[derive(Debug, Clone, Copy)]
pub struct Acknowledged {
    /// When the acknowledgement arrived.
    pub now: Instant,
    /// The number of segments.
    pub segments: f64,
    /// The number of them that carried CE.
    pub marked: f64,
    /// The highest number acknowledged.
    pub newest: u64,
    /// The number of the segment that was sent last.
    pub newest_sent: u64,
    /// The latest round-trip time.
    pub rtt: Duration,
    /// The smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// Whether the window was full.
    pub is_limiting: bool,
}
