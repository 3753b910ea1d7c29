use hawser_units::Instant;
use std::time::Duration;

/// A flow of whose paths nothing is known yet is protected for this long.
const AT_FIRST: Duration = Duration::from_secs(12);

/// The first protection after a failure, and the longest.
const FIRST: Duration = Duration::from_secs(32);
const LONGEST: Duration = Duration::from_secs(64);

/// Each time of this length without a failure and without protection halves the next one.
const CALM: Duration = Duration::from_secs(60);

/// A failure within this time after another one is the same.
const SAME: Duration = Duration::from_secs(2);

/// The time for which a flow keeps two paths that work, because one may fail: two rarely fail at once.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Protection {
    until: Option<Instant>,
    failed_at: Option<Instant>,
    /// The length of the last protection after a failure.
    length: Duration,
}

impl Protection {
    /// Begins with the first packet of the flow.
    pub(super) fn begin(&mut self, now: Instant) {
        self.until.get_or_insert(now + AT_FIRST);
    }

    /// Notes that a path in use has failed.
    pub(super) fn fail(&mut self, now: Instant) {
        let before = self.failed_at.replace(now);
        if before.is_some_and(|before| now.saturating_since(before) < SAME) {
            return;
        }
        let calm = self
            .until
            .map_or(Duration::ZERO, |until| now.saturating_since(until));
        let halved = (calm.as_nanos() / CALM.as_nanos()).min(16) as u32;
        self.length = (self.length * 2 / (1 << halved)).clamp(FIRST, LONGEST);
        self.until = Some(now + self.length);
    }

    /// Ends the protection, because copies harm.
    pub(super) fn end(&mut self, now: Instant) {
        self.until = self.until.map(|until| until.min(now));
    }

    pub(super) fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Returns the time that is left.
    pub(super) fn left(&self, now: Instant) -> Duration {
        self.until
            .map_or(Duration::ZERO, |until| until.saturating_since(now))
    }
}
