//! The time of day, never before 1970, and clocks that do not jump.

use hawser_units::Instant;
use nix::time::{ClockId, clock_gettime};
use std::io;
use std::mem;
use std::time::{Duration, SystemTime};

/// Returns the time of the monotonic clock.
pub fn monotonic() -> Instant {
    Instant::ZERO + read(ClockId::CLOCK_MONOTONIC)
}

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

/// Returns whether a program such as an NTP client keeps the time of day right, which it tells the
/// kernel (adjtimex(2)).
pub fn is_synchronized() -> io::Result<bool> {
    // SAFETY: every bit pattern of the structure is valid.
    let mut state: libc::timex = unsafe { mem::zeroed() };
    // SAFETY: the pointer is that of a live structure; without `modes` nothing is changed.
    match unsafe { libc::adjtimex(&raw mut state) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(state.status & libc::STA_UNSYNC == 0),
    }
}

/// A clock that shows the time of day when it starts, and then never jumps.
#[derive(Debug, Clone, Copy)]
pub struct SteadyClock {
    /// The time of the monotonic clock at the start.
    started: Instant,
    /// The time since 1970 at the start.
    shown: Instant,
}

impl SteadyClock {
    /// Starts a clock.
    pub fn start() -> Self {
        SteadyClock {
            started: monotonic(),
            shown: Instant::from_nanos(unix_ns()),
        }
    }

    /// Returns the time.
    pub fn now(&self) -> Instant {
        self.shown_at(monotonic())
    }

    /// Converts a time of the monotonic clock, which is not before the start, to that of this one.
    pub fn shown_at(&self, time: Instant) -> Instant {
        self.shown + time.saturating_since(self.started)
    }

    /// Converts a time of this clock, which is not before the start, to that of the monotonic one.
    pub fn monotonic_at(&self, time: Instant) -> Instant {
        self.started + time.saturating_since(self.shown)
    }
}

/// Both clocks, read at the same moment: the kernel stamps packets with the time of day, which may be
/// set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clocks {
    time_of_day: Duration,
    monotonic: Instant,
}

impl Clocks {
    /// Reads the time of day first: where the thread is interrupted between the two, converted times
    /// are too late, never too early.
    pub(crate) fn read() -> Self {
        Clocks {
            time_of_day: read(ClockId::CLOCK_REALTIME),
            monotonic: monotonic(),
        }
    }

    /// Converts the time of day of a recent event to monotonic time.
    pub(crate) fn monotonic(&self, time_of_day: Duration) -> Instant {
        self.monotonic - self.time_of_day.saturating_sub(time_of_day)
    }
}

fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).expect("the clock exists").into()
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
        let there = clock.monotonic_at(second);
        assert!(there <= monotonic() && clock.shown_at(there) == second);
    }

    #[test]
    fn the_kernel_tells_whether_the_clock_is_synchronized() {
        is_synchronized().unwrap();
    }

    #[test]
    fn times_are_those_since_1970() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_500_700);
        assert_eq!(unix_ms_at(at), 1_500);
        let (before, now, after) = (unix_ms(), unix_ns(), unix_ms());
        assert!((before..=after).contains(&(now / 1_000_000)));
    }
}
