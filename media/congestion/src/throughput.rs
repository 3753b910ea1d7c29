use hawser_units::{ByteSize, Instant};
use std::time::Duration;

/// The time constant of the average: six frames at 30 frames per second.
const MEMORY: Duration = Duration::from_millis(200);

/// The rate at which acknowledged bytes were sent, averaged over some frames.
#[derive(Debug, Clone)]
pub(crate) struct Throughput {
    bps: f64,
    bytes: u64,
    since: Instant,
}

impl Throughput {
    pub(crate) fn new(now: Instant, bps: f64) -> Self {
        Throughput {
            bps,
            bytes: 0,
            since: now,
        }
    }

    pub(crate) fn add(&mut self, now: Instant, size: ByteSize) {
        self.bytes = self.bytes.saturating_add(size.0);
        let elapsed = now.saturating_since(self.since).as_secs_f64();
        if elapsed < 0.005 {
            return;
        }
        let weight = 1.0 - (-elapsed / MEMORY.as_secs_f64()).exp();
        let latest = ByteSize(self.bytes).0 as f64 * 8.0 / elapsed;
        self.bps += weight * (latest - self.bps);
        self.bytes = 0;
        self.since = now;
    }

    /// Returns bits per second.
    pub(crate) fn bps(&self) -> f64 {
        self.bps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_follows_within_some_frames() {
        let mut throughput = Throughput::new(Instant::ZERO, 0.0);
        for step in 1..=100u32 {
            let now = Instant::ZERO + Duration::from_millis(10) * step;
            throughput.add(now, ByteSize(12_500));
        }
        assert!((throughput.bps() / 10e6 - 1.0).abs() < 0.01);
    }
}
