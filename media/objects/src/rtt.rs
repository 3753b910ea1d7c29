use hawser_units::smoothed_rtt;
use std::time::Duration;

/// The granularity of timers (RFC 9002, section 6.1.2).
const GRANULARITY: Duration = Duration::from_millis(1);

/// The round-trip time before the first sample (RFC 9002, section 6.2.2).
const INITIAL: Duration = Duration::from_millis(333);

/// The estimate of the round-trip time (RFC 9002, section 5), without the time for which the viewer
/// held its report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RttEstimate {
    latest: Option<Duration>,
    /// The latest time until an acknowledgement, with the time for which the viewer held it.
    acknowledged_after: Option<Duration>,
    smoothed: Option<Duration>,
    variation: Duration,
    min: Option<Duration>,
}

impl RttEstimate {
    /// Returns the latest sample.
    pub const fn latest(&self) -> Option<Duration> {
        self.latest
    }

    /// Returns the smoothed time.
    pub const fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// Returns the shortest sample.
    pub const fn min(&self) -> Option<Duration> {
        self.min
    }

    /// Adds a sample. `acknowledged_after` has the time for which the viewer held its report, too.
    pub(crate) fn update(&mut self, sample: Duration, acknowledged_after: Duration) {
        self.variation = match self.smoothed {
            None => sample / 2,
            Some(smoothed) => (self.variation * 3 + smoothed.abs_diff(sample)) / 4,
        };
        self.smoothed = Some(smoothed_rtt(self.smoothed, sample));
        self.latest = Some(sample);
        self.acknowledged_after = Some(acknowledged_after);
        self.min = Some(self.min.map_or(sample, |min| min.min(sample)));
    }

    /// Returns the latest time until an acknowledgement, with the time for which the viewer held it.
    pub(crate) fn acknowledged_after(&self) -> Duration {
        self.acknowledged_after.unwrap_or(INITIAL)
    }

    /// Returns the time after which a packet is lost if one that was sent after it was acknowledged
    /// (RFC 9002, section 6.1.2).
    pub(crate) fn loss_delay(&self) -> Duration {
        let longest = self
            .smoothed
            .max(self.acknowledged_after)
            .unwrap_or(INITIAL);
        (longest * 9 / 8).max(GRANULARITY)
    }

    /// Returns the time after which a packet is lost if nothing was acknowledged (RFC 9002, section
    /// 6.2.1).
    pub(crate) fn probe_timeout(&self, report_interval: Duration) -> Duration {
        let smoothed = self.smoothed.unwrap_or(INITIAL);
        let variation = self.smoothed.map_or(INITIAL / 2, |_| self.variation);
        smoothed + (variation * 4).max(GRANULARITY) + report_interval
    }

    /// Returns the time that a packet is expected to take to the viewer.
    pub(crate) fn one_way(&self) -> Duration {
        self.smoothed.unwrap_or_default() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_that_of_the_rfc() {
        let ms = Duration::from_millis;
        let mut rtt = RttEstimate::default();
        assert_eq!(
            rtt.probe_timeout(ms(5)),
            INITIAL * 3 + ms(5),
            "RFC 9002, section 6.2.2"
        );
        rtt.update(ms(40), ms(43));
        assert_eq!(rtt.probe_timeout(ms(5)), ms(40 + 80 + 5));
        rtt.update(ms(56), ms(64));
        assert_eq!(rtt.smoothed(), Some(ms(42)));
        assert_eq!(rtt.variation, ms(19), "(3 * 20 + 16) / 4");
        assert_eq!(rtt.loss_delay(), ms(72), "9/8 of 64");
        assert_eq!((rtt.min(), rtt.one_way()), (Some(ms(40)), ms(21)));
    }
}
