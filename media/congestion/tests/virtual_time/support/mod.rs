//! A network in virtual time: flows over one bottleneck, 10 ms away in each direction.

pub(crate) mod bottleneck;
pub(crate) mod media;
pub(crate) mod network;
pub(crate) mod packet;
pub(crate) mod scenario;

use std::time::Duration;

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns the value below which `share` of the values lie.
pub(crate) fn percentile(mut values: Vec<f64>, share: f64) -> f64 {
    assert!(!values.is_empty());
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// A small generator for sizes of frames and starts of flows (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number from 0 up to 1.
    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}
