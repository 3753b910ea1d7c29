use std::thread;
use std::time::{Duration, Instant};

/// Spreads packets evenly, in batches so small that no queue on the way overflows.
pub(super) struct Pace {
    interval: Duration,
    batch: u32,
    next: Instant,
}

impl Pace {
    /// Waking up more often costs more than it smooths.
    const TICK: Duration = Duration::from_millis(1);

    /// A sender that was held up for longer than this goes on at its rate instead of catching up in a burst.
    const CATCH_UP: Duration = Duration::from_millis(10);

    /// Batches are of at least `least` packets.
    pub(super) fn new(rate_pps: u32, least: u32) -> Self {
        let packets_a_tick = (f64::from(rate_pps) * Self::TICK.as_secs_f64()).ceil() as u32;
        Pace {
            interval: Duration::from_secs(1) / rate_pps,
            batch: packets_a_tick.max(least),
            next: Instant::now(),
        }
    }

    /// Waits for its time to come and returns how many packets to send now.
    pub(super) fn batch(&mut self) -> u32 {
        let now = Instant::now();
        thread::sleep(self.next.saturating_duration_since(now));
        self.next = self.next.max(now - Self::CATCH_UP) + self.interval * self.batch;
        self.batch
    }
}
