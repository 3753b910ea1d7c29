use hawser_units::Instant;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns the time of the monotonic clock.
pub fn now() -> Instant {
    Instant::ZERO + read(ClockId::CLOCK_MONOTONIC)
}

/// Both clocks, read at the same moment: the kernel timestamps frames with the time of day, which
/// may be set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    monotonic: Instant,
    time_of_day: Duration,
}

impl Clocks {
    pub(super) fn read() -> Self {
        Clocks {
            monotonic: now(),
            time_of_day: read(ClockId::CLOCK_REALTIME),
        }
    }

    /// Converts the time of day of a recent event to monotonic time.
    pub(super) fn monotonic(&self, time_of_day: Duration) -> Instant {
        self.monotonic - self.time_of_day.saturating_sub(time_of_day)
    }
}

fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).expect("the clock exists").into()
}
