use hawser_units::{FlowId, Instant, MAX_PATHS, PathId, PathSet};
use std::time::Duration;

/// The fate of a packet, known when its deadline has passed.
///
/// A packet of which no copy arrived is known by its sequence number. Its `first` is `None`, and
/// its `sent` holds the paths of all packets of the same policy, as far as these arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JudgedPacket {
    /// Arrival time of the first copy. For a packet of which no copy arrived: of the packet that
    /// revealed the gap.
    pub at: Instant,
    /// The flow of the packet.
    pub flow: FlowId,
    /// The sequence number of the packet in its flow.
    pub sequence: u64,
    /// The epoch of the sender's policy.
    pub epoch: u8,
    /// The paths that the packet was sent over, probes included; empty if its copies do not carry
    /// them.
    pub sent: PathSet,
    /// The path whose copy arrived first; `None` if no copy arrived.
    pub first: Option<PathId>,
    /// The sender's clock when it sent the packet, in microseconds; wraps around. Unknown for a packet
    /// of which no copy arrived, and if `sent` is empty.
    pub sent_micros: u32,
    /// By path index: the delay of the path's copy after the first one, if it arrived before the
    /// deadline.
    pub skews: [Option<Duration>; MAX_PATHS],
}

impl JudgedPacket {
    /// Returns the delay of the path's copy after the first one, or `None` if it did not arrive in
    /// time.
    pub fn skew(&self, path: PathId) -> Option<Duration> {
        self.skews[path.index()]
    }

    /// Returns `true` if no copy arrived.
    pub fn is_gap(&self) -> bool {
        self.first.is_none()
    }

    /// Returns the paths whose copies arrived less than `tolerance` after the first one.
    pub fn within(&self, tolerance: Duration) -> PathSet {
        PathId::all()
            .filter(|path| self.skew(*path).is_some_and(|skew| skew < tolerance))
            .collect()
    }
}
