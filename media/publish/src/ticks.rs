use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which a waiting capture checks whether it should stop.
const STOP_POLL: Duration = Duration::from_millis(50);

/// The times at which frames are captured.
pub(crate) struct Ticks {
    started: Instant,
    end: Option<Instant>,
    interval: Duration,
    tick: u64,
}

impl Ticks {
    /// Starts with tick 0 now, and ends after `duration`.
    pub(crate) fn start(interval: Duration, duration: Option<Duration>) -> Self {
        let started = Instant::now();
        Ticks {
            started,
            // An end that is never reached counts as no end.
            end: duration.and_then(|duration| started.checked_add(duration)),
            interval,
            tick: 0,
        }
    }

    /// Waits for the current tick. Returns its number; `None` if it is after the end or `stop` was
    /// set.
    pub(crate) fn wait(&self, stop: &AtomicBool) -> Option<u64> {
        let due = self.due();
        while !stop.load(Relaxed) {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.end.is_none_or(|end| due < end).then_some(self.tick);
            }
            thread::sleep(left.min(STOP_POLL));
        }
        None
    }

    /// Moves to the next tick that is not over. Returns the number of ticks that were missed.
    pub(crate) fn advance(&mut self) -> u64 {
        let late = Instant::now().saturating_duration_since(self.due());
        let missed = (late.as_nanos() / self.interval.as_nanos()) as u64;
        self.tick += 1 + missed;
        missed
    }

    fn due(&self) -> Instant {
        self.started + self.interval.mul_f64(self.tick as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_no_clock_reaches_is_none() {
        let ticks = Ticks::start(Duration::from_millis(1), Some(Duration::MAX));
        assert_eq!(ticks.wait(&AtomicBool::new(false)), Some(0));
    }
}
