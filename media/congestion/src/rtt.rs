use crate::recent::{LongMinimum, Recent};
use hawser_units::{Instant, smoothed_rtt};
use std::time::Duration;

/// The reference round-trip time (Prague draft, section 2.4.4): flows with a shorter one behave as if
/// they had this one.
pub const REFERENCE: Duration = Duration::from_millis(25);

/// The smoothed time that is assumed before the first sample.
const ASSUMED: Duration = Duration::from_millis(100);

/// The time in which a queue that stands delays every packet, where delays vary for other reasons.
const RECENT: Duration = Duration::from_millis(50);

/// Half of the time for which the lowest round-trip time is remembered.
const EPOCH: Duration = Duration::from_secs(5);

/// The round-trip time: smoothed, virtual and without queues.
#[derive(Debug, Clone)]
pub struct Rtt {
    smoothed: Option<Duration>,
    latest: Duration,
    minimum: LongMinimum<Duration>,
    /// The lowest samples of recent reports.
    recent: Recent<Duration>,
}

impl Default for Rtt {
    fn default() -> Self {
        Rtt {
            smoothed: None,
            latest: Duration::ZERO,
            minimum: LongMinimum::new(EPOCH),
            recent: Recent::new(RECENT),
        }
    }
}

impl Rtt {
    /// Adds a sample of the newest packet of a report. `lowest` is the lowest sample of the report.
    pub fn add(&mut self, now: Instant, sample: Duration, lowest: Duration) {
        self.minimum.add(now, lowest);
        self.latest = sample;
        self.recent.add(now, lowest);
        self.smoothed = Some(smoothed_rtt(self.smoothed, sample));
    }

    /// Returns the smoothed time.
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// Returns the smoothed time, or 100 ms before the first sample.
    pub fn smoothed_or_assumed(&self) -> Duration {
        self.smoothed.unwrap_or(ASSUMED)
    }

    /// Returns the smoothed time, at least the reference.
    pub(crate) fn virtual_rtt(&self) -> Duration {
        self.smoothed_or_assumed().max(REFERENCE)
    }

    /// Returns the lowest time of the last five to ten seconds.
    pub(crate) fn base(&self) -> Duration {
        self.minimum.get().unwrap_or(ASSUMED)
    }

    /// Takes the lowest time of recent packets for the base: the path has become longer.
    pub(crate) fn raise_base(&mut self, now: Instant) {
        self.minimum.replace(now, self.recent_lowest());
    }

    /// Returns the delay of the newest packet above the base, which is the queue's unless delays vary
    /// for other reasons.
    pub(crate) fn queue(&self) -> Duration {
        self.latest.saturating_sub(self.base())
    }

    /// Returns the delay above the base that no recent packet escaped.
    pub(crate) fn standing_queue(&self) -> Duration {
        self.recent_lowest().saturating_sub(self.base())
    }

    /// Returns by how much the smoothed time exceeds that of the quickest recent packet.
    pub(crate) fn jitter(&self) -> Duration {
        let smoothed = self.smoothed.unwrap_or_default();
        smoothed.saturating_sub(self.recent_lowest())
    }

    fn recent_lowest(&self) -> Duration {
        self.recent.lowest().unwrap_or(self.latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_queue_is_what_exceeds_the_lowest_time() {
        let mut rtt = Rtt::default();
        rtt.add(Instant::ZERO + MS, 20 * MS, 19 * MS);
        rtt.add(Instant::ZERO + 2 * MS, 28 * MS, 28 * MS);

        assert_eq!(rtt.queue(), 9 * MS);
        assert_eq!(rtt.smoothed(), Some(21 * MS));
        assert_eq!(rtt.virtual_rtt(), REFERENCE);
    }

    #[test]
    fn delays_that_vary_are_no_queue() {
        let mut rtt = Rtt::default();
        for (report, delay) in [0, 31, 2, 45, 9, 50, 1, 38].into_iter().enumerate() {
            let now = Instant::ZERO + MS * 5 * report as u32;
            rtt.add(now, (20 + delay) * MS, (20 + delay) * MS);
        }
        assert_eq!(
            (rtt.queue(), rtt.standing_queue()),
            (38 * MS, Duration::ZERO)
        );
        assert!(rtt.jitter() > 10 * MS, "{:?}", rtt.jitter());

        // From now on, every packet takes longer.
        let later = Instant::ZERO + Duration::from_secs(1);
        rtt.add(later, 50 * MS, 50 * MS);
        assert_eq!(rtt.standing_queue(), 30 * MS);
    }
}
