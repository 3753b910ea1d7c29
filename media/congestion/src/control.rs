use crate::breaker::Permission;
use crate::feedback::{Feedback, Refusals};
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use std::time::Duration;

/// The rate control of a media sender.
///
/// The sender announces each packet, passes on feedback, and calls [`handle_timeout`] when
/// [`poll_timeout`] is due. It encodes at [`target`], and sends while [`in_flight`] is less than
/// [`window`] and the [`permission`] allows it.
///
/// [`handle_timeout`]: RateControl::handle_timeout
/// [`poll_timeout`]: RateControl::poll_timeout
/// [`target`]: RateControl::target
/// [`in_flight`]: RateControl::in_flight
/// [`window`]: RateControl::window
/// [`permission`]: RateControl::permission
pub trait RateControl {
    /// Records a packet of `size` that leaves `now`. Numbers strictly increase; each transmission,
    /// also of the same data, has its own.
    fn handle_sent(&mut self, now: Instant, number: u64, size: ByteSize);

    /// Processes a report. What cannot be true is refused and counted in
    /// [`refusals`](RateControl::refusals).
    fn handle_feedback(&mut self, feedback: &Feedback<'_>);

    /// Returns when [`handle_timeout`](RateControl::handle_timeout) is due.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Reacts to the absence of feedback. Does nothing before the timeout.
    fn handle_timeout(&mut self, now: Instant);

    /// Returns the rate at which to encode, counted as packets are counted in
    /// [`handle_sent`](RateControl::handle_sent): if those sizes include headers, so does the target.
    /// It is always within the bounds.
    fn target(&self) -> Bitrate;

    /// Returns the rate above which packets must not leave. It is at least the target.
    fn pacing_rate(&self) -> Bitrate;

    /// Returns the number of bytes that may be in flight.
    fn window(&self) -> ByteSize;

    /// Returns the number of bytes in flight.
    fn in_flight(&self) -> ByteSize;

    /// Returns the ECN field of packets from now on.
    fn ecn(&self) -> Ecn;

    /// Returns whether the sender may send.
    fn permission(&self) -> Permission;

    /// Returns the smoothed round-trip time.
    fn smoothed_rtt(&self) -> Option<Duration>;

    /// Returns what was refused so far.
    fn refusals(&self) -> Refusals;
}

/// The rates between which a target stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    minimum: Bitrate,
    initial: Bitrate,
    maximum: Bitrate,
}

impl Bounds {
    /// Creates bounds. Rates that are out of order are raised: the maximum to at least the minimum,
    /// the initial rate to between the two; a rate of zero becomes 1 kb/s.
    pub fn new(minimum: Bitrate, initial: Bitrate, maximum: Bitrate) -> Self {
        let minimum = minimum.max(Bitrate::from_bps(1000));
        let maximum = maximum.max(minimum);
        let initial = initial.clamp(minimum, maximum);
        Bounds {
            minimum,
            initial,
            maximum,
        }
    }

    /// Returns the lowest target.
    pub fn minimum(&self) -> Bitrate {
        self.minimum
    }

    /// Returns the first target.
    pub fn initial(&self) -> Bitrate {
        self.initial
    }

    /// Returns the highest target.
    pub fn maximum(&self) -> Bitrate {
        self.maximum
    }

    /// Returns the rate of `bps` bits per second, or the bound that it exceeds.
    pub fn limit(&self, bps: f64) -> Bitrate {
        Bitrate::from_bps(bps as u64).clamp(self.minimum, self.maximum)
    }
}

impl Default for Bounds {
    /// The bounds of De Fré et al., section 4.2: 12.5 Mb/s at first and at least, 90 Mb/s at most.
    fn default() -> Self {
        let lowest = Bitrate::from_mbps(12.5);
        Bounds::new(lowest, lowest, Bitrate::from_mbps(90.0))
    }
}
