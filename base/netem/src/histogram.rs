use crate::figure;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A histogram of durations whose quantiles are at most 1.6 % too high, and never too low.
///
/// Each power of two of nanoseconds is divided into 64 buckets, so that the histogram holds at most
/// 3776 counters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max_ns: u64,
}

/// The quantiles of a [`Histogram`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quantiles {
    /// The number of durations.
    pub count: u64,
    /// The median.
    #[serde(rename = "p50_ms", with = "figure")]
    pub p50: Duration,
    /// The 99th percentile.
    #[serde(rename = "p99_ms", with = "figure")]
    pub p99: Duration,
    /// The maximum.
    #[serde(rename = "max_ms", with = "figure")]
    pub max: Duration,
}

/// The binary digits by which buckets distinguish durations.
const DIGITS: u32 = 6;

impl Histogram {
    /// Adds a duration. Those beyond 584 years count as that.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let index = index(ns);
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, 0);
        }
        self.buckets[index] += 1;
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the maximum, or zero if there is none.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// Returns the least duration that `share` of all do not exceed, or zero if there is none.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut below = 0;
        let reaches = |count: &u64| {
            below += count;
            below >= rank
        };
        let bucket = self.buckets.iter().position(reaches);
        let ns = bucket.map_or(0, highest);
        Duration::from_nanos(ns.min(self.max_ns))
    }

    /// Returns the median, the 99th percentile and the maximum.
    pub fn quantiles(&self) -> Quantiles {
        Quantiles {
            count: self.count,
            p50: self.quantile(0.5),
            p99: self.quantile(0.99),
            max: self.max(),
        }
    }

    /// Returns the durations that were recorded after `earlier`, a past state of this histogram.
    /// Their maximum is as exact as the quantiles.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let before = earlier.buckets.iter().copied().chain(std::iter::repeat(0));
        let pairs = self.buckets.iter().zip(before);
        let buckets: Vec<u64> = pairs
            .map(|(now, before)| now.saturating_sub(before))
            .collect();
        let last = buckets.iter().rposition(|count| *count > 0);
        Histogram {
            count: buckets.iter().sum(),
            max_ns: last.map_or(0, highest).min(self.max_ns),
            buckets,
        }
    }
}

/// Returns the bucket of a duration.
fn index(ns: u64) -> usize {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(DIGITS + 1);
    ((u64::from(shift) << DIGITS) + (ns >> shift)) as usize
}

/// Returns the longest duration of a bucket.
fn highest(bucket: usize) -> u64 {
    let next = bucket as u64 + 1;
    let shift = (next >> DIGITS).saturating_sub(1);
    let mantissa = next - (shift << DIGITS);
    let above = u128::from(mantissa) << shift;
    u64::try_from(above - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_what_differs_by_less_than_a_64th(ns: u64, shift in 0u32..64) {
            let ns = ns >> shift;
            let highest = highest(index(ns));
            prop_assert!(highest >= ns);
            prop_assert!(u128::from(highest - ns) * 64 <= u128::from(ns));
            prop_assert_eq!(index(highest), index(ns));
            prop_assert!(highest == u64::MAX || index(highest + 1) == index(ns) + 1);
            prop_assert!(index(ns) < 3776);
        }

        #[test]
        fn a_quantile_is_close_above_the_one_of_the_sorted_list(
            mut list in prop::collection::vec(0u64..50_000_000, 1..300),
            share in 0.0f64..=1.0,
        ) {
            let mut histogram = Histogram::default();
            list.iter().for_each(|ns| histogram.record(Duration::from_nanos(*ns)));
            list.sort_unstable();
            let rank = ((share * list.len() as f64).ceil() as usize).clamp(1, list.len());
            let exact = Duration::from_nanos(list[rank - 1]);
            let estimate = histogram.quantile(share);
            prop_assert!(exact <= estimate && estimate <= exact + exact / 64, "{:?} {:?}", exact, estimate);
            prop_assert_eq!(histogram.max(), Duration::from_nanos(*list.last().unwrap()));
        }
    }

    #[test]
    fn a_difference_holds_what_was_recorded_between() {
        let ms = Duration::from_millis;
        let mut histogram = Histogram::default();
        histogram.record(ms(800));
        let earlier = histogram.clone();
        (1..=100).for_each(|value| histogram.record(ms(value)));
        let since = histogram.since(&earlier).quantiles();

        assert_eq!(since.count, 100);
        assert!((ms(50)..ms(51)).contains(&since.p50), "{since:?}");
        assert!((ms(99)..ms(101)).contains(&since.p99), "{since:?}");
        assert!((ms(100)..ms(102)).contains(&since.max), "{since:?}");
        assert_eq!(histogram.max(), ms(800));
        assert_eq!(Histogram::default().quantiles(), Quantiles::default());
    }
}
