//! How long transmissions over a path take to be acknowledged.

use hawser_units::Instant;
use std::time::Duration;

/// RFC 9002, section 6.1.2.
pub(crate) const GRANULARITY: Duration = Duration::from_millis(1);

/// Until something was acknowledged (RFC 9002, section 6.2.2, for an RTT of 333 ms).
const INITIAL_TIMEOUT: Duration = Duration::from_millis(999);

/// The time from a transmission to its acknowledgement, estimated as RFC 9002 does in section 5.3. It differs from QUIC's
/// round-trip time: acknowledgements come back over the best paths, and it holds the receiver's delay.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Timing {
    estimate: Option<(Duration, Duration)>,
    latest: Duration,
    /// When the current period began, the least time in it, and in the period before.
    least: Option<(Instant, Duration, Duration)>,
}

/// What a busy machine may take to get round to an acknowledgement, however short the path.
const LEAST_PATIENCE: Duration = Duration::from_millis(25);

/// An acknowledgement that is later than at best by this says that the path paused.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// How long the least time is remembered at least. A moving car's path becomes longer by a hundred ms within seconds, which
/// is not to be taken for a queue for long.
pub(crate) const PERIOD: Duration = Duration::from_secs(2);

impl Timing {
    /// Takes the time of a transmission; of one that was `alone` it is the path's own.
    pub(crate) fn sample(&mut self, now: Instant, time: Duration, alone: bool) {
        self.latest = time;
        self.least = Some(match self.least {
            _ if alone => (now, time, time),
            None => (now, time, time),
            Some((began, least, _)) if began + PERIOD <= now => (now, time, least),
            Some((began, least, before)) => (began, least.min(time), before),
        });
        self.estimate = Some(match self.estimate {
            None => (time, time / 2),
            Some((smoothed, variation)) => (
                (smoothed * 7 + time) / 8,
                (variation * 3 + smoothed.abs_diff(time)) / 4,
            ),
        });
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.estimate.map(|(smoothed, _)| smoothed)
    }

    /// The probe timeout; `slack` is what the receiver may delay.
    pub(crate) fn timeout(&self, slack: Duration) -> Duration {
        self.estimate
            .map_or(INITIAL_TIMEOUT, |(smoothed, variation)| {
                smoothed + (variation * 4).max(GRANULARITY) + slack
            })
    }

    /// How long to wait for an acknowledgement at most: `threshold` or the probe timeout, whichever is shorter, but never
    /// so short that the acknowledgement cannot be there. Pauses, which raise the average, are not what is usual.
    pub(crate) fn patience(&self, threshold: Duration, slack: Duration) -> Duration {
        let usual = self
            .estimate
            .map_or(Duration::ZERO, |(smoothed, variation)| {
                smoothed + variation + slack
            });
        let usual = usual.min(self.min().map_or(Duration::MAX, |least| least + PAUSE));
        threshold
            .max(usual)
            .min(self.timeout(slack).max(LEAST_PATIENCE))
    }

    /// The least of the last seconds.
    pub(crate) fn min(&self) -> Option<Duration> {
        self.least.map(|(_, now, before)| now.min(before))
    }

    /// After how long a transmission counts as lost when a later one was acknowledged (RFC 9002, section 6.1.2).
    pub(crate) fn loss_delay(&self) -> Duration {
        let smoothed = self.smoothed().unwrap_or(INITIAL_TIMEOUT);
        (smoothed.max(self.latest) * 9 / 8).max(GRANULARITY)
    }
}
