use crate::rtt::Rtt;
use hawser_units::Instant;
use std::time::Duration;

/// The delay above the base that is worth a check.
const SUSPICIOUS: Duration = Duration::from_millis(10);

/// The time for which the delay has to stand before a check.
const STANDING: Duration = Duration::from_millis(500);

/// The time between two checks.
const INTERVAL: Duration = Duration::from_secs(5);

/// The share of the rate of arrivals that is sent during a check.
const SHARE: f64 = 0.5;

/// The bounds of the time in which a queue drains, after the round trip in which the lower rate arrives.
const DRAINING: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

/// The share of the delay that is left after the check of a path that has become longer. The queue of a
/// flow that fills a link alone has half of it left at most, unless it is longer than 400 ms.
const LEFT: f64 = 0.75;

/// Tells a queue of one's own from a path that has become longer, such as over another cell: less is
/// sent for a moment, in which a queue would drain (as BBR's ProbeRTT does, but only on suspicion).
#[derive(Debug, Clone, Default)]
pub(crate) struct BaseCheck {
    standing_since: Option<Instant>,
    check: Option<Check>,
    last: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Check {
    until: Instant,
    /// The delay above the base at its beginning.
    delay: Duration,
    /// The rate that may be sent, bits per second.
    bps: f64,
}

impl BaseCheck {
    /// Handles a new sample, while `bps` arrive. Returns whether the path has become longer.
    pub(crate) fn handle_sample(&mut self, now: Instant, rtt: &Rtt, bps: f64) -> bool {
        let delay = rtt.standing_queue();
        if let Some(check) = self.check {
            if now < check.until {
                return false;
            }
            self.check = None;
            self.last = Some(now);
            self.standing_since = None;
            return delay > SUSPICIOUS && delay.as_secs_f64() > LEFT * check.delay.as_secs_f64();
        }
        if delay <= SUSPICIOUS {
            self.standing_since = None;
            return false;
        }
        let since = *self.standing_since.get_or_insert(now);
        let is_rested = self
            .last
            .is_none_or(|last| now.saturating_since(last) > INTERVAL);
        if is_rested && now.saturating_since(since) >= STANDING {
            let draining = delay.clamp(DRAINING[0], DRAINING[1]);
            let until = now + rtt.smoothed_or_assumed() + draining;
            let bps = SHARE * bps;
            self.check = Some(Check { until, delay, bps });
        }
        false
    }

    /// Returns the rate that may be sent during a check, bits per second.
    pub(crate) fn allowed_bps(&self) -> Option<f64> {
        self.check.map(|check| check.bps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Adds a sample every 5 ms. Returns the number of the sample by which the path was longer, and
    /// whether there was a check.
    fn run(samples: impl Iterator<Item = Duration>) -> (Option<usize>, bool) {
        let (mut rtt, mut base) = (Rtt::default(), BaseCheck::default());
        let mut was_checked = false;
        let longer = samples.enumerate().find_map(|(number, sample)| {
            let now = Instant::ZERO + 5 * MS * u32::try_from(number).unwrap();
            rtt.add(now, sample, sample);
            let is_longer = base.handle_sample(now, &rtt, 10e6);
            was_checked |= base.allowed_bps() == Some(5e6);
            is_longer.then_some(number)
        });
        (longer, was_checked)
    }

    #[test]
    fn a_delay_that_stays_while_less_is_sent_is_the_paths() {
        let samples = (0..400).map(|number| if number < 100 { 20 * MS } else { 80 * MS });
        let (longer, _) = run(samples);
        // Half a second of suspicion, 160 ms of the check, at 5 ms each.
        assert!((220..260).contains(&longer.unwrap()), "{longer:?}");
    }

    #[test]
    fn a_queue_that_drains_while_less_is_sent_is_a_queue() {
        let samples = (0..400).map(|number| match number {
            0..100 => 20 * MS,
            100..220 => 80 * MS,
            _ => 40 * MS,
        });
        assert_eq!(run(samples), (None, true));
    }

    #[test]
    fn delays_that_return_to_the_base_are_not_checked() {
        let samples = (0..2000).map(|number| if number % 15 == 0 { 20 * MS } else { 90 * MS });
        assert_eq!(run(samples), (None, false));
    }
}
