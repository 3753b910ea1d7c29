use crate::control::Bounds;
use hawser_units::ByteSize;
use std::time::Duration;

/// Parameters of [`Prague`](crate::Prague).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PragueConfig {
    /// The bounds of the target.
    pub bounds: Bounds,
    /// The additive increase per virtual round trip: the segment of a TCP flow that competes.
    pub segment: ByteSize,
    /// The time between reports of the receiver.
    pub feedback_interval: Duration,
    /// Whether packets are sent as ECT(1). Otherwise they are not ECN-capable, and loss is the only
    /// signal (RFC 9331, section 4.3: a scalable control can be replaced by a classic one).
    pub l4s: bool,
}

impl Default for PragueConfig {
    fn default() -> Self {
        PragueConfig {
            bounds: Bounds::default(),
            segment: ByteSize(1500),
            feedback_interval: Duration::from_millis(10),
            l4s: true,
        }
    }
}

/// Counters of [`Prague`](crate::Prague).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PragueStats {
    /// The moving average of the marked share, from 0 to 1.
    pub alpha: f64,
    /// Reductions in proportion to the marked share.
    pub mark_responses: u64,
    /// Reductions by half because of loss, or of marks by a classic AQM.
    pub halvings: u64,
    /// Reductions to the rate of arrivals.
    pub overloads: u64,
    /// Halvings that were undone because the packets arrived after all.
    pub undone: u64,
    /// Lost packets that were not answered, because they are not congestion.
    pub tolerated_losses: u64,
    /// Halvings because of silence.
    pub silences: u64,
    /// Times at which the circuit breaker opened.
    pub stops: u64,
    /// Times at which the path turned out to have become longer.
    pub raised_bases: u64,
    /// Whether a classic AQM marks.
    pub classic_aqm: bool,
    /// Whether the path removes ECT(1).
    pub bleached: bool,
}
