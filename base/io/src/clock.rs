//! The time of day, never before 1970, and clocks that do not jump.

use hawser_units::Instant;
use nix::time::{ClockId, clock_gettime};
use std::future::Future;
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

/// The longest time for which a step of the time of day is not noticed.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A period by the time of day, which may be set: over when the time of day is outside of it, and also
/// when as much monotonic time has passed as was left at first. So a certificate that is renewed at the
/// end of a period is renewed in time whichever way the clock steps.
#[derive(Debug, Clone, Copy)]
pub struct Period {
    from: SystemTime,
    until: SystemTime,
    /// The monotonic time at which it is over whatever the time of day.
    latest: Instant,
    /// The monotonic time before which it is not over whatever the time of day.
    earliest: Instant,
}

impl Period {
    /// Returns the period between two dates.
    pub fn new(from: SystemTime, until: SystemTime) -> Period {
        Period::seen_at(from, until, SystemTime::now(), monotonic())
    }

    fn seen_at(from: SystemTime, until: SystemTime, now: SystemTime, steady: Instant) -> Period {
        Period {
            from,
            until,
            latest: steady + until.duration_since(now).unwrap_or_default(),
            earliest: steady,
        }
    }

    /// Returns the period that lasts for `least` from now on even if the time of day is outside of it:
    /// a wrong clock then causes no renewals without end.
    pub fn at_least(self, least: Duration) -> Period {
        let earliest = monotonic() + least;
        Period { earliest, ..self }
    }

    /// Returns whether it is over.
    pub fn is_over(&self) -> bool {
        self.pause().is_none()
    }

    /// Waits until it is over. `sleep` waits for a time.
    pub async fn over<F: Future<Output = ()>>(&self, sleep: impl Fn(Duration) -> F) {
        while let Some(pause) = self.pause() {
            sleep(pause).await;
        }
    }

    /// Returns the time after which to look again whether it is over; `None` if it is.
    fn pause(&self) -> Option<Duration> {
        self.pause_at(SystemTime::now(), monotonic())
    }

    fn pause_at(&self, now: SystemTime, steady: Instant) -> Option<Duration> {
        let left = self.until.duration_since(now).unwrap_or_default();
        let left = match now < self.from {
            true => Duration::ZERO,
            false => left.min(self.latest.saturating_since(steady)),
        };
        let left = left.max(self.earliest.saturating_since(steady));
        (!left.is_zero()).then_some(left.min(LOOK_EVERY))
    }
}

/// Both clocks, read at the same moment: the kernel stamps packets with the time of day, which may be
/// set.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    time_of_day: Duration,
    monotonic: Instant,
}

impl Clocks {
    /// Reads the time of day first: where the thread is interrupted between the two, converted times
    /// are too late, never too early.
    pub fn read() -> Self {
        Clocks {
            time_of_day: read(ClockId::CLOCK_REALTIME),
            monotonic: monotonic(),
        }
    }

    /// Converts the time of day of a recent event to monotonic time.
    pub fn monotonic(&self, time_of_day: Duration) -> Instant {
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

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn day(days: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + 20_000 * DAY + days * DAY
    }

    fn steady(days: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(days * 24 * 3600)
    }

    /// A period of 30 days, of which 20 are left at the monotonic time 0.
    fn period() -> Period {
        Period::seen_at(day(0), day(30), day(10), steady(0))
    }

    #[test]
    fn a_period_ends_by_a_clock_that_is_right() {
        let is_over = |days: u32| {
            let passed = u64::from(days - 10);
            period().pause_at(day(days), steady(passed)).is_none()
        };
        assert_eq!([10, 29, 30, 31].map(is_over), [false, false, true, true]);
    }

    #[test]
    fn a_period_ends_when_the_clock_steps_out_of_it() {
        for to in [day(31), day(400), day(0) - DAY, SystemTime::UNIX_EPOCH] {
            assert_eq!(period().pause_at(to, steady(1)), None, "{to:?}");
        }
    }

    #[test]
    fn a_clock_that_was_behind_and_is_corrected_ends_it_in_time() {
        let behind = Period::seen_at(day(0), day(30), day(1), steady(0));
        assert_eq!(behind.pause_at(day(2), steady(1)), Some(LOOK_EVERY));
        assert_eq!(behind.pause_at(day(30), steady(20)), None);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_prolong_a_period() {
        assert!(period().pause_at(day(1), steady(19)).is_some());
        assert_eq!(period().pause_at(day(1), steady(20)), None);
    }

    #[test]
    fn a_wrong_clock_does_not_end_a_period_before_its_least_time() {
        let new = Period {
            earliest: steady(3),
            ..period()
        };
        for wrong in [day(50), SystemTime::UNIX_EPOCH] {
            assert!(new.pause_at(wrong, steady(2)).is_some());
            assert_eq!(new.pause_at(wrong, steady(3)), None);
        }
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
