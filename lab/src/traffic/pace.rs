use std::thread;
use std::time::{Duration, Instant};

/// Spreads packets evenly, in batches so small that no queue on the way overflows.
pub(super) struct Pace {
    interval: Duration,
    next: Instant,
}

impl Pace {
    /// Waking up more often costs more than it smooths.
    const TICK: Duration = Duration::from_millis(1);

    /// A sender that was held up for longer than this goes on at its rate instead of catching up in a burst.
    const CATCH_UP: Duration = Duration::from_millis(10);

    pub(super) fn new(rate_pps: u32) -> Self {
        Pace { interval: Duration::from_secs(1) / rate_pps, next: Instant::now() }
    }

    /// Waits for its time to come and returns how many packets to send now.
    pub(super) fn batch(&mut self) -> u32 {
        let now = Instant::now();
        thread::sleep(self.next.saturating_duration_since(now));
        self.next = self.next.max(now - Self::CATCH_UP);
        let packets = Self::TICK.as_nanos().div_ceil(self.interval.as_nanos().max(1));
        let packets = u32::try_from(packets).expect("at most 10^6 packets a tick");
        self.next += self.interval * packets;
        packets
    }
}
