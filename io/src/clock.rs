//! The time of day, never before 1970, and a clock that does not jump.

use hawser_units::Instant;
use std::time::{self, Duration, SystemTime};

/// Returns the time since 1970.
pub fn since_1970() -> Duration {
    until(SystemTime::now())
}

/// Returns the time since 1970, milliseconds.
pub fn unix_ms() -> u64 {
    unix_ms_at(SystemTime::now())
}

/// Returns `time` in milliseconds since 1970.
pub fn unix_ms_at(time: SystemTime) -> u64 {
    u64::try_from(until(time).as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time since 1970, nanoseconds; the largest number from the year 2554 on.
pub fn unix_ns() -> u64 {
    u64::try_from(since_1970().as_nanos()).unwrap_or(u64::MAX)
}

/// A clock that shows the time of day when it starts, and then never jumps.
#[derive(Debug, Clone, Copy)]
pub struct SteadyClock {
    started: time::Instant,
    /// The time since 1970 at the start.
    shown: Instant,
}

impl SteadyClock {
    /// Starts a clock.
    pub fn start() -> Self {
        SteadyClock {
            started: time::Instant::now(),
            shown: Instant::from_nanos(unix_ns()),
        }
    }

    /// Returns the time.
    pub fn now(&self) -> Instant {
        self.shown + self.started.elapsed()
    }
}

fn until(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_clock_begins_at_the_time_of_day_and_goes_on() {
        let before = unix_ns();
        let clock = SteadyClock::start();
        let (first, second) = (clock.now(), clock.now());
        assert!(first.as_nanos() >= before && second >= first);
    }

    #[test]
    fn times_are_those_since_1970() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_500_700);
        assert_eq!(unix_ms_at(at), 1_500);
        let (before, now, after) = (unix_ms(), unix_ns(), unix_ms());
        assert!((before..=after).contains(&(now / 1_000_000)));
    }
}
