use hawser_units::Instant;

/// The reason for which [`handle_timeout`](crate::Endpoint::handle_timeout) and
/// [`poll_transmit`](crate::Endpoint::poll_transmit) have to be called at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// A transmission counts as lost, or the probe timeout of a path expires.
    Loss,
    /// A path has to be probed.
    Probe,
    /// A path becomes silent.
    Silence,
    /// A packet becomes a straggler.
    Straggler,
    /// A path stops to count as delivering, so that its stragglers may be recovered.
    Pause,
    /// A packet has waited too long for window.
    QueueDelay,
    /// A shot is due.
    Recovery,
    /// An acknowledgement is due.
    Acknowledgement,
    /// A packet has waited too long for earlier ones.
    Reordering,
    /// Received packets expire that were kept for decoding.
    Decoding,
}

impl Timer {
    /// Returns the timer with its time, if it is set.
    pub(crate) fn at(self, time: Option<Instant>) -> Option<(Instant, Timer)> {
        time.map(|time| (time, self))
    }
}
