use std::fmt;
use std::time::Duration;

/// The number of ranges.
const RANGES: usize = 120;

/// The base-2 logarithm of the number of ranges in which times double. These are equally long.
const OCTAVE_BITS: u32 = 3;

/// The length of the shortest ranges. The first range, up to 1 ms, is eight times as long; the last
/// but one ends at 29 s.
const STEP: Duration = Duration::from_micros(125);

/// A distribution of delays: how many are in each of 120 ranges. The upper end of a range is at most
/// 12.5 % above its lower end, except for the first, which ends at 1 ms, and the last, which has no
/// upper end. Counts never decrease.
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
        self.0[range_of(delay)] += 1;
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

/// Returns the range of a delay. Its steps are a number of four bits, of which the first is set,
/// and `doublings` further bits; the four bits and their position identify the range.
fn range_of(delay: Duration) -> usize {
    let steps = delay.as_nanos().saturating_sub(1) / STEP.as_nanos();
    let doublings = match steps.checked_ilog2() {
        Some(bits) if bits >= OCTAVE_BITS => bits - OCTAVE_BITS,
        _ => return 0,
    };
    let in_octave = (steps >> doublings) as usize - (1 << OCTAVE_BITS);
    (1 + ((doublings as usize) << OCTAVE_BITS) + in_octave).min(RANGES - 1)
}

fn upper_end(range: usize) -> Duration {
    let Some(after_first) = range.checked_sub(1) else {
        return STEP * (1 << OCTAVE_BITS);
    };
    let (doublings, in_octave) = (after_first >> OCTAVE_BITS, after_first % (1 << OCTAVE_BITS));
    let steps = ((1 << OCTAVE_BITS) + in_octave + 1) << doublings;
    STEP * steps as u32
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
            assert!((exact..exact * 1.1251).contains(&found), "{share}: {found}");
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
        assert_eq!(delays.percentile(1.0), Some(Duration::from_millis(1)));
        delays.record(Duration::MAX);
        assert!(delays.percentile(1.0).unwrap() > Duration::from_secs(29));
    }

    #[test]
    fn a_delay_is_in_the_range_that_ends_at_or_after_it() {
        for range in 0..RANGES {
            assert_eq!(range_of(upper_end(range)), range);
            let next = range_of(upper_end(range) + Duration::from_nanos(1));
            assert_eq!(next, (range + 1).min(RANGES - 1));
        }
    }
}
