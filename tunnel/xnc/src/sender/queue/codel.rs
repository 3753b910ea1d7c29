//! CoDel (RFC 8289): drops packets at intervals while the delay of a queue stays above a target.

use crate::Config;
use hawser_units::Instant;
use std::time::Duration;

/// A queue shorter than this is left alone, because a packet that is being sent is not a queue (RFC
/// 8289, section 5.4).
pub(super) const MIN_BYTES: u64 = 1500;

/// If the last drop is fewer intervals ago than this, the drop rate continues from its previous
/// value (RFC 8289, section 5.4).
const RESUMED_WITHIN: u32 = 16;

/// The state of CoDel for one queue.
#[derive(Debug, Default)]
pub(super) struct Codel {
    /// When the delay will have been above the target for an interval.
    above_from: Option<Instant>,
    is_dropping: bool,
    next_drop: Instant,
    /// Packets dropped in the current dropping state, and the count at its start.
    count: u32,
    count_before: u32,
}

impl Codel {
    /// Returns whether to drop or mark the packet at the head, which waited for `waited`. `bytes`
    /// is the length of the queue, including the packet.
    pub(super) fn should_drop(
        &mut self,
        now: Instant,
        waited: Duration,
        bytes: u64,
        config: &Config,
    ) -> bool {
        let interval = config.experiment.codel_interval;
        let is_above = self.is_above(now, waited, bytes, config);
        if self.is_dropping {
            self.is_dropping = is_above;
            if !is_above || now < self.next_drop {
                return false;
            }
            self.count = self.count.saturating_add(1);
            self.next_drop = control_law(self.next_drop, interval, self.count);
            return true;
        }
        if !is_above {
            return false;
        }
        self.is_dropping = true;
        let since = self.count.saturating_sub(self.count_before);
        let resumes = now.saturating_since(self.next_drop) < interval * RESUMED_WITHIN;
        self.count = if since > 1 && resumes { since } else { 1 };
        self.count_before = self.count;
        self.next_drop = control_law(now, interval, self.count);
        true
    }

    /// Resets the state when the queue is empty.
    pub(super) fn reset(&mut self) {
        (self.above_from, self.is_dropping) = (None, false);
    }

    fn is_above(&mut self, now: Instant, waited: Duration, bytes: u64, config: &Config) -> bool {
        if waited < config.experiment.codel_target || bytes <= MIN_BYTES {
            self.above_from = None;
            return false;
        }
        let from = *self
            .above_from
            .get_or_insert(now + config.experiment.codel_interval);
        from <= now
    }
}

/// Returns the time of the next drop. The interval decreases with the number of drops (RFC 8289,
/// section 4.4).
fn control_law(from: Instant, interval: Duration, count: u32) -> Instant {
    from + interval.div_f64(f64::from(count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the times of drops in ms, from a queue of 30 kB in which `waited` returns the delay
    /// of the packet at the head for a time in ms.
    fn drops(waited: impl Fn(u32) -> u32, until: u32) -> Vec<u32> {
        let config = Config {
            experiment: Experiment {
                codel_target: 10 * MS,
                codel_interval: 100 * MS,
                ..Experiment::default()
            },
            ..Config::default()
        };
        let mut codel = Codel::default();
        let mut should_drop =
            |ms: u32| codel.should_drop(Instant::ZERO + ms * MS, waited(ms) * MS, 30_000, &config);
        (0..until).filter(|ms| should_drop(*ms)).collect()
    }

    #[test]
    fn a_standing_queue_is_dropped_from_more_and_more_often() {
        assert_eq!(drops(|_| 50, 400), [100, 200, 271, 329, 379]);
    }

    #[test]
    fn a_burst_is_left_alone() {
        assert_eq!(drops(|ms| if ms % 100 < 99 { 90 } else { 9 }, 10_000), []);
    }

    #[test]
    fn a_queue_that_returns_soon_keeps_its_drop_rate() {
        let returning = drops(|ms| if (1000..1010).contains(&ms) { 0 } else { 50 }, 1300);
        let of = |from, to| {
            returning
                .iter()
                .filter(|ms| (from..to).contains(*ms))
                .count()
        };
        assert!(of(1110, 1210) >= 3, "{returning:?}");
        let long_gone = drops(|ms| if (1000..4000).contains(&ms) { 0 } else { 50 }, 4300);
        assert_eq!(
            long_gone
                .iter()
                .filter(|ms| (4000..4210).contains(*ms))
                .count(),
            2,
            "{long_gone:?}"
        );
    }

    #[test]
    fn one_packet_is_no_queue() {
        let config = Config::default();
        let mut codel = Codel::default();
        assert!((0..10_000).all(|ms| !codel.should_drop(
            Instant::ZERO + ms * MS,
            300 * MS,
            1500,
            &config
        )));
    }
}
