use std::fmt;
use std::time::Duration;

/// The number of ranges, and of those in which times double.
const RANGES: usize = 120;
const PER_OCTAVE: f64 = 8.0;

/// The end of the first range. The others end 9 % later each, the last but one at 30 s.
const FIRST: Duration = Duration::from_millis(1);

/// A distribution of delays: how many are in each of 120 ranges, the upper ends of which are 9 %
/// apart. Counts never decrease.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Delays([u64; RANGES]);

impl Default for Delays {
    fn default() -> Self {
        Delays([0; RANGES])
    }
}

/// Formats the median and the 99th percentile.
impl fmt::Debug for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delays")
            .field("p50", &self.percentile(0.5))
            .field("p99", &self.percentile(0.99))
            .finish()
    }
}

impl Delays {
    /// Counts a delay.
    pub fn record(&mut self, delay: Duration) {
        let octaves = (delay.as_secs_f64() / FIRST.as_secs_f64()).max(1.0).log2();
        let range = (octaves * PER_OCTAVE).ceil() as usize;
        self.0[range.min(RANGES - 1)] += 1;
    }

    /// Returns the delays that were counted since an earlier state.
    pub fn since(&self, earlier: &Delays) -> Delays {
        let mut since = *self;
        for (count, before) in since.0.iter_mut().zip(earlier.0) {
            *count = count.saturating_sub(before);
        }
        since
    }

    /// Returns the delay that a share of all delays, 0 to 1, does not exceed: the upper end of its
    /// range. `None` without delays.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let total: u64 = self.0.iter().sum();
        let rank = ((total as f64 * share).ceil() as u64).max(1);
        let mut counted = 0;
        let range = self.0.iter().position(|count| {
            counted += count;
            counted >= rank
        });
        range.filter(|_| total > 0).map(upper_end)
    }
}

fn upper_end(range: usize) -> Duration {
    FIRST.mul_f64((range as f64 / PER_OCTAVE).exp2())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(delay: Option<Duration>) -> f64 {
        delay.unwrap().as_secs_f64() * 1e3
    }

    #[test]
    fn percentiles_are_at_most_a_range_above_the_delays() {
        let mut delays = Delays::default();
        assert_eq!(delays.percentile(0.5), None);
        for delay in 1..=1000 {
            delays.record(Duration::from_millis(delay));
        }
        for share in [0.001, 0.1, 0.5, 0.99, 1.0] {
            let (exact, found) = (share * 1000.0, ms(delays.percentile(share)));
            assert!((exact..exact * 1.0906).contains(&found), "{share}: {found}");
        }
    }

    #[test]
    fn what_was_counted_before_is_left_out() {
        let mut delays = Delays::default();
        delays.record(Duration::from_secs(1));
        let before = delays;
        delays.record(Duration::from_millis(20));
        assert!(ms(delays.percentile(1.0)) >= 1000.0);
        assert!(ms(delays.since(&before).percentile(1.0)) < 22.0);
        assert_eq!(delays.since(&delays).percentile(0.5), None);
    }

    #[test]
    fn extreme_delays_are_counted() {
        let mut delays = Delays::default();
        delays.record(Duration::ZERO);
        assert_eq!(delays.percentile(1.0), Some(FIRST));
        delays.record(Duration::MAX);
        assert!(delays.percentile(1.0).unwrap() > Duration::from_secs(29));
    }
}
