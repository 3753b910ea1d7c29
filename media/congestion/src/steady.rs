use hawser_units::Instant;
use std::time::Duration;

/// The time constant of the average: some rounds of marks and growth.
const MEMORY: Duration = Duration::from_secs(1);

/// The average of the rate that is controlled. The encoder need not follow each mark.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steady {
    bps: f64,
    at: Instant,
}

impl Steady {
    pub(crate) fn new(now: Instant, bps: f64) -> Self {
        Steady { bps, at: now }
    }

    /// Adds a rate that has held since the last time.
    pub(crate) fn follow(&mut self, now: Instant, bps: f64) {
        let elapsed = now.saturating_since(self.at).as_secs_f64();
        self.bps += (bps - self.bps) * (1.0 - (-elapsed / MEMORY.as_secs_f64()).exp());
        self.at = now;
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
    fn the_average_of_a_rate_that_rises_and_falls_hardly_moves() {
        let mut now = Instant::ZERO;
        let mut steady = Steady::new(now, 30e6);
        for count in 0..2000 {
            now += Duration::from_millis(5);
            // 18 to 22 Mb/s within 200 ms.
            steady.follow(now, 18e6 + 0.1e6 * f64::from(count % 40));
        }
        assert!((steady.bps() / 20e6 - 1.0).abs() < 0.02, "{steady:?}");
    }
}
