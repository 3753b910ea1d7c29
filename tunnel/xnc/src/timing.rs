//! Estimates of the time from a transmission to its acknowledgement.

use hawser_units::Instant;
use std::time::Duration;

/// The timer granularity of RFC 9002, section 6.1.2.
pub(crate) const GRANULARITY: Duration = Duration::from_millis(1);

/// The probe timeout before the first acknowledgement (RFC 9002, section 6.2.2, for an RTT of 333
/// ms).
const INITIAL_TIMEOUT: Duration = Duration::from_millis(999);

/// The time from a transmission to its acknowledgement, estimated as in RFC 9002, section 5.3. It
/// differs from QUIC's round-trip time: acknowledgements return over the best paths, and it
/// includes the receiver's delay.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Timing {
    estimate: Option<(Duration, Duration)>,
    latest: Duration,
    /// When the current period began, the minimum time in it, and that of the previous period.
    minimum: Option<(Instant, Duration, Duration)>,
}

/// The minimum of the loss timeout, for a busy machine on a short path.
const MIN_LOSS_TIMEOUT: Duration = Duration::from_millis(25);

/// The delay of an acknowledgement, in excess of the minimum, that indicates a pause of the path.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// The minimum time for which a minimum is remembered. The delay of a moving car's path can
/// increase by a hundred milliseconds within seconds, which must not be taken for a queue for long.
pub(crate) const PERIOD: Duration = Duration::from_secs(2);

impl Timing {
    /// Adds a sample. If the transmission was the only one in flight (`is_alone`), its time
    /// replaces the minimum.
    pub(crate) fn sample(&mut self, now: Instant, time: Duration, is_alone: bool) {
        self.latest = time;
        self.minimum = Some(match self.minimum {
            _ if is_alone => (now, time, time),
            None => (now, time, time),
            Some((began, minimum, _)) if began + PERIOD <= now => (now, time, minimum),
            Some((began, minimum, before)) => (began, minimum.min(time), before),
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

    /// Returns the probe timeout. `max_ack_delay` is the maximum delay of the receiver.
    pub(crate) fn probe_timeout(&self, max_ack_delay: Duration) -> Duration {
        self.estimate
            .map_or(INITIAL_TIMEOUT, |(smoothed, variation)| {
                smoothed + (variation * 4).max(GRANULARITY) + max_ack_delay
            })
    }

    /// Returns the maximum time to wait for an acknowledgement: `threshold` or the probe timeout,
    /// whichever is shorter, but not less than the time that acknowledgements usually take. Pauses,
    /// which increase the average, are not part of the usual time.
    pub(crate) fn loss_timeout(&self, threshold: Duration, max_ack_delay: Duration) -> Duration {
        let usual = self
            .estimate
            .map_or(Duration::ZERO, |(smoothed, variation)| {
                smoothed + variation + max_ack_delay
            });
        let usual = usual.min(self.min().map_or(Duration::MAX, |minimum| minimum + PAUSE));
        threshold
            .max(usual)
            .min(self.probe_timeout(max_ack_delay).max(MIN_LOSS_TIMEOUT))
    }

    /// Returns the minimum of the last seconds.
    pub(crate) fn min(&self) -> Option<Duration> {
        self.minimum.map(|(_, now, before)| now.min(before))
    }

    /// Returns the time after which a transmission counts as lost when a later one was acknowledged
    /// (RFC 9002, section 6.1.2).
    pub(crate) fn loss_delay(&self) -> Duration {
        let smoothed = self.smoothed().unwrap_or(INITIAL_TIMEOUT);
        (smoothed.max(self.latest) * 9 / 8).max(GRANULARITY)
    }
}
