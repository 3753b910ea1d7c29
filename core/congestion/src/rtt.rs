use hawser_units::{Instant, smoothed_rtt};
use std::time::Duration;

/// The reference round-trip time (Prague draft, section 2.4.4): flows with a shorter one behave as if
/// they had this one.
pub(crate) const REFERENCE: Duration = Duration::from_millis(25);

/// The smoothed time that is assumed before the first sample.
const ASSUMED: Duration = Duration::from_millis(100);

/// Half of the time for which a minimum is remembered.
const EPOCH: Duration = Duration::from_secs(5);

/// The round-trip time: smoothed, virtual and without queues.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rtt {
    smoothed: Option<Duration>,
    latest: Duration,
    minimum: Option<Duration>,
    previous_minimum: Option<Duration>,
    epoch_began: Instant,
}

impl Rtt {
    /// Adds a sample of the newest packet of a report. `lowest` is the lowest sample of the report.
    pub(crate) fn add(&mut self, now: Instant, sample: Duration, lowest: Duration) {
        if now.saturating_since(self.epoch_began) > EPOCH {
            self.previous_minimum = self.minimum.take();
            self.epoch_began = now;
        }
        let minimum = self.minimum.unwrap_or(lowest).min(lowest);
        self.minimum = Some(minimum);
        self.latest = sample;
        self.smoothed = Some(smoothed_rtt(self.smoothed, sample));
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    pub(crate) fn smoothed_or_assumed(&self) -> Duration {
        self.smoothed.unwrap_or(ASSUMED)
    }

    /// Returns the smoothed time, at least the reference.
    pub(crate) fn virtual_rtt(&self) -> Duration {
        self.smoothed_or_assumed().max(REFERENCE)
    }

    /// Returns the lowest time of the last five to ten seconds.
    pub(crate) fn base(&self) -> Duration {
        let lowest = [self.minimum, self.previous_minimum];
        lowest.into_iter().flatten().min().unwrap_or(ASSUMED)
    }

    /// Returns the delay of the newest packet above the base, which is the queue's.
    pub(crate) fn queue(&self) -> Duration {
        self.latest.saturating_sub(self.base())
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
    fn a_base_that_does_not_return_is_forgotten() {
        let mut rtt = Rtt::default();
        for second in 0..13 {
            let now = Instant::ZERO + Duration::from_secs(second);
            let sample = if second == 0 { 10 * MS } else { 50 * MS };
            rtt.add(now, sample, sample);
        }
        assert_eq!(rtt.base(), 50 * MS);
    }
}
