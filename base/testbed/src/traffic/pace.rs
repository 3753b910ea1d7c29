use std::thread;
use std::time::{Duration, Instant};

/// Spreads packets evenly, in batches small enough not to overflow any queue.
pub(super) struct Pace {
    interval: Duration,
    batch: u32,
    next: Instant,
}

impl Pace {
    /// The sending interval. Waking up more often costs more than it smooths.
    const TICK: Duration = Duration::from_millis(1);

    /// The maximum time that a delayed sender catches up in a burst. After a longer delay it
    /// continues at its rate.
    const CATCH_UP: Duration = Duration::from_millis(10);

    /// `min_batch` is the minimum number of packets in a batch.
    pub(super) fn new(rate_pps: u32, min_batch: u32) -> Self {
        let packets_per_tick = (f64::from(rate_pps) * Self::TICK.as_secs_f64()).ceil() as u32;
        Pace {
            interval: Duration::from_secs(1) / rate_pps,
            batch: packets_per_tick.max(min_batch),
            next: Instant::now(),
        }
    }

    /// Waits until the next batch is due and returns its number of packets.
    pub(super) fn batch(&mut self) -> u32 {
        let now = Instant::now();
        thread::sleep(self.next.saturating_duration_since(now));
        self.next = self.next.max(now - Self::CATCH_UP) + self.interval * self.batch;
        self.batch
    }
}
