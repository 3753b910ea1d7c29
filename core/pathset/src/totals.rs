use hawser_units::{ByteSize, MAX_PATHS, PathId};
use std::time::Duration;

/// What happened to the packets of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowTotals {
    /// Packets of which a copy arrived, once it is known what became of the other copies.
    pub packets: u64,
    /// Indexed by [`PathId::index`].
    pub paths: [PathTotals; MAX_PATHS],
}

impl FlowTotals {
    /// What one path did.
    pub fn path(&self, path: PathId) -> &PathTotals {
        &self.paths[path.index()]
    }
}

/// What a path did for the packets of a flow.
///
/// Every arrival becomes, when its packet's deadline has passed, one of `first`, `skew.total()`, `late` or `repeated`.
/// Every packet that the policy sent over the path is counted in `missing` unless its copy became one of the first two.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PathTotals {
    /// Copies that arrived, whenever.
    pub arrivals: u64,
    /// Inner bytes of these copies.
    pub bytes: ByteSize,
    /// Copies that came before the others of their packet.
    pub first: u64,
    /// Those of them that no other followed before the deadline: without this path, the packet would have been lost.
    pub only: u64,
    /// Copies that should have come and did not before the deadline.
    pub missing: u64,
    /// Copies that came after the deadline.
    pub late: u64,
    /// Copies that the path itself duplicated, as far as they came before their packet was judged.
    pub repeated: u64,
    /// How long after the first copy the others came that came before the deadline.
    pub skew: SkewHistogram,
}

/// Counts of skews in buckets of doubling width.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SkewHistogram {
    buckets: [u64; SkewHistogram::BUCKETS],
}

impl SkewHistogram {
    /// How many buckets there are.
    pub const BUCKETS: usize = 21;

    /// Bucket i counts skews of 2^i up to 2^(i+1) microseconds, the first also shorter and the last also longer ones.
    pub fn buckets(&self) -> &[u64; SkewHistogram::BUCKETS] {
        &self.buckets
    }

    /// How many skews were counted.
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
