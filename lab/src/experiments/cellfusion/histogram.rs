use std::time::Duration;

/// A histogram of durations with a resolution of 0.1 ms. Its percentiles do not depend on the order
/// of insertion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Histogram {
    counts: Vec<u32>,
    total: u64,
}

impl Histogram {
    const STEP: Duration = Duration::from_micros(100);

    /// Counts one duration.
    pub(super) fn add(&mut self, duration: Duration) {
        let step =
            usize::try_from(duration.as_nanos().div_ceil(Self::STEP.as_nanos())).expect("minutes");
        if step >= self.counts.len() {
            self.counts.resize(step + 1, 0);
        }
        self.counts[step] += 1;
        self.total += 1;
    }

    /// Adds the counts of another histogram.
    pub(super) fn merge(&mut self, other: &Histogram) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
    }

    /// Returns the number of durations counted.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of durations up to `limit`, with the resolution of the histogram.
    pub(super) fn up_to(&self, limit: Duration) -> u64 {
        let steps = (limit.as_nanos() / Self::STEP.as_nanos()) as usize + 1;
        let counts = self.counts.iter().take(steps);
        counts.map(|count| u64::from(*count)).sum()
    }

    /// Returns the empirical distribution function as points (ms, share), one for each ms.
    pub(super) fn distribution(&self) -> Vec<(f64, f64)> {
        let (mut below, mut points) = (0, Vec::new());
        for (step, count) in self.counts.iter().enumerate() {
            below += u64::from(*count);
            if step % 10 == 0 || below == self.total {
                points.push((step as f64 / 10.0, below as f64 / self.total as f64));
            }
            if below == self.total {
                break;
            }
        }
        points
    }

    /// Returns the nearest-rank percentile in ms, rounded up to a step; NaN if nothing was counted.
    pub(super) fn percentile_ms(&self, share: f64) -> f64 {
        self.percentile_ms_of(share, self.total)
    }

    /// Same as [`Histogram::percentile_ms`], of `total` durations, of which those that were not
    /// counted are endless; NaN if the percentile is one of them.
    pub(super) fn percentile_ms_of(&self, share: f64, total: u64) -> f64 {
        let rank = ((share * total as f64).ceil() as u64).max(1);
        let mut below = 0;
        let step = self.counts.iter().position(|count| {
            below += u64::from(*count);
            below >= rank
        });
        step.map_or(f64::NAN, |step| step as f64 / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut histogram = Histogram::default();
        for tenths in [1, 2, 3, 40] {
            histogram.add(Duration::from_micros(100 * tenths));
        }
        assert_eq!(histogram.percentile_ms(0.5), 0.2);
        assert_eq!(histogram.percentile_ms(0.75), 0.3);
        assert_eq!(histogram.percentile_ms(0.99), 4.0);
        assert!(Histogram::default().percentile_ms(0.5).is_nan());

        assert_eq!(histogram.percentile_ms_of(0.5, 8), 4.0);
        assert!(histogram.percentile_ms_of(0.51, 8).is_nan());
        let up_to = |micros| histogram.up_to(Duration::from_micros(micros));
        assert_eq!([99, 100, 399, 4000].map(up_to), [0, 1, 3, 4]);

        let mut both = Histogram::default();
        both.merge(&histogram);
        both.merge(&histogram);
        assert_eq!((both.total(), both.percentile_ms(0.75)), (8, 0.3));
    }
}
