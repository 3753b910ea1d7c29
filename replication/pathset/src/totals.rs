use hawser_units::{ByteSize, MAX_PATHS, PathId};
use std::time::Duration;

/// Totals of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowTotals {
    /// Packets of which at least one copy arrived, counted once the fate of the other copies is
    /// known.
    pub packets: u64,
    /// Totals of each path, indexed by [`PathId::index`].
    pub paths: [PathTotals; MAX_PATHS],
}

impl FlowTotals {
    /// Returns the totals of one path.
    pub fn path(&self, path: PathId) -> &PathTotals {
        &self.paths[path.index()]
    }
}

/// Contribution of one path to the packets of a flow.
///
/// When the deadline of its packet has passed, every arrival counts as one of `first`,
/// `skew.total()`, `late` or `repeated`. Every packet that the policy sent over the path counts as
/// `missing` unless its copy counted as one of the first two.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PathTotals {
    /// Copies that arrived, at any time.
    pub arrivals: u64,
    /// Inner bytes of these copies.
    pub bytes: ByteSize,
    /// Copies that arrived first of their packet.
    pub first: u64,
    /// First copies that no other followed before the deadline: without this path, the packet would
    /// have been lost.
    pub only: u64,
    /// Copies that were expected and did not arrive before the deadline.
    pub missing: u64,
    /// Copies that arrived after the deadline.
    pub late: u64,
    /// Copies that the path itself duplicated, if they arrived before their packet was judged.
    pub repeated: u64,
    /// The delays after the first copy of the other copies that arrived before the deadline.
    pub skew: SkewHistogram,
}

/// A histogram of skews with buckets of doubling width.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SkewHistogram {
    buckets: [u64; SkewHistogram::BUCKETS],
}

impl SkewHistogram {
    /// The number of buckets.
    pub const BUCKETS: usize = 21;

    /// Returns the buckets. Bucket i counts skews from 2^i up to 2^(i+1) microseconds. The first
    /// bucket also counts shorter ones, the last one also longer ones.
    pub fn buckets(&self) -> &[u64; SkewHistogram::BUCKETS] {
        &self.buckets
    }

    /// Returns the number of skews counted.
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub(crate) fn record(&mut self, skew: Duration) {
        let bucket = skew.as_micros().max(1).ilog2() as usize;
        self.buckets[bucket.min(Self::BUCKETS - 1)] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skews_are_counted_by_their_highest_bit() {
        let bucket = |skew| {
            let mut histogram = SkewHistogram::default();
            histogram.record(skew);
            histogram
                .buckets
                .iter()
                .position(|count| *count == 1)
                .unwrap()
        };
        assert_eq!(bucket(Duration::ZERO), 0);
        assert_eq!(bucket(Duration::from_nanos(1999)), 0);
        assert_eq!(bucket(Duration::from_micros(2)), 1);
        assert_eq!(bucket(Duration::from_micros(1023)), 9);
        assert_eq!(bucket(Duration::from_micros(1024)), 10);
        assert_eq!(bucket(Duration::from_secs(3600)), 20);
    }
}
