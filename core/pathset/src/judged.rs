use hawser_units::{FlowId, Instant, MAX_PATHS, PathId, PathSet};
use std::time::Duration;

/// What is known of a packet when its deadline has passed.
///
/// Packets of which no copy came are known by their numbers; `first` is none for them, and `sent` is what all packets of
/// the same policy were sent over, as far as they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JudgedPacket {
    /// When the first copy came; for a packet that never came, when the one came that shows it missing.
    pub at: Instant,
    /// Of which flow.
    pub flow: FlowId,
    /// The packet's number in its flow.
    pub sequence: u64,
    /// Of the sender's policy.
    pub epoch: u8,
    /// The paths that the packet was sent over, probes included; empty when copies do not say.
    pub sent: PathSet,
    /// The path whose copy came first; none when no copy came.
    pub first: Option<PathId>,
    /// By path index: how long after the first copy that path's came, if it came before the deadline.
    pub skews: [Option<Duration>; MAX_PATHS],
}

impl JudgedPacket {
    /// How long after the first copy the path's came; none when it did not come in time.
    pub fn skew(&self, path: PathId) -> Option<Duration> {
        self.skews[path.index()]
    }

    /// Whether no copy came at all.
    pub fn is_gap(&self) -> bool {
        self.first.is_none()
    }

    /// The paths whose copies came less than `tolerance` after the first one.
    pub fn within(&self, tolerance: Duration) -> PathSet {
        PathId::all()
            .filter(|path| self.skew(*path).is_some_and(|skew| skew < tolerance))
            .collect()
    }
}
