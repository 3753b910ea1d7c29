use hawser_io::file;
use nix::time::{ClockId, clock_gettime};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::warn;

/// How often the clock is kept, microseconds.
const KEEP_EVERY: u64 = 10_000_000;

/// What is added to a kept clock: more than it goes on between two times that it is kept, by what a slow disk may take.
const RESERVE: u64 = KEEP_EVERY + 20_000_000;

/// How far a time of day may be ahead of the kept clock. One further ahead is wrong, and receivers, who see 48 bits of the
/// microseconds, could take it for an older one.
const FURTHEST: u64 = 365 * 86_400 * 1_000_000;

/// Numbers that a flow can use up in a microsecond, on the average over a session, and still begin the next one above them.
const NUMBERS_PER_MICRO: u64 = 4;

/// The clock of send times and of the numbers that sessions start at: it never goes back, whatever becomes of the time of day,
/// over restarts and reboots too. Microseconds, those since 1970 where all goes well.
#[derive(Debug)]
pub(super) struct SendClock {
    offset_micros: u64,
    file: PathBuf,
    kept: u64,
    failing: bool,
}

impl SendClock {
    /// Goes on from the time of day or from what is kept in `directory`, whichever is later.
    pub(super) fn start(directory: &Path) -> Self {
        let file = directory.join("send-clock");
        let kept = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
        let start = start(micros(ClockId::CLOCK_REALTIME), kept);
        let offset_micros = start.wrapping_sub(micros(ClockId::CLOCK_BOOTTIME));
        let mut clock = SendClock { offset_micros, file, kept: 0, failing: false };
        clock.keep();
        clock
    }

    /// What is added to the time since the machine started.
    pub(super) fn offset_micros(&self) -> u64 {
        self.offset_micros
    }

    /// Where a session starts that begins now.
    pub(super) fn first_sequence(&self) -> u64 {
        self.now().wrapping_mul(NUMBERS_PER_MICRO)
    }

    /// Keeps the clock if it is time to.
    pub(super) fn keep(&mut self) {
        let now = self.now();
        if now - self.kept < KEEP_EVERY {
            return;
        }
        self.kept = now;
        let folder = self.file.parent().unwrap_or(Path::new("/"));
        let kept = fs::create_dir_all(folder)
            .and_then(|()| file::replace(&self.file, now.to_string().as_bytes(), 0o600));
        match kept {
            Err(error) if !self.failing => warn!(
                "the send clock cannot be kept in {}: {error}; should this machine start with a wrong time of day, receivers \
                 refuse what it sends",
                self.file.display()
            ),
            Ok(()) if self.failing => warn!("the send clock is kept again"),
            _ => return,
        }
        self.failing = !self.failing;
    }

    fn now(&self) -> u64 {
        self.offset_micros.wrapping_add(micros(ClockId::CLOCK_BOOTTIME))
    }
}

/// The clock at its start, by the time of day and by what was kept of the clock before.
fn start(time_of_day: u64, kept: Option<u64>) -> u64 {
    match kept {
        // A wrong one is not followed a part of the way either: over several restarts the parts would add up.
        Some(kept) if time_of_day > kept.saturating_add(FURTHEST) => kept.saturating_add(RESERVE),
        Some(kept) => time_of_day.max(kept.saturating_add(RESERVE)),
        None => time_of_day,
    }
}

fn micros(clock: ClockId) -> u64 {
    let now = clock_gettime(clock).expect("every Linux has this clock");
    u64::try_from(Duration::from(now).as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000_000;

    #[test]
    fn it_never_goes_back_whatever_the_time_of_day_is() {
        assert_eq!(start(NOW, None), NOW);
        assert_eq!(start(NOW, Some(NOW - 3_600_000_000)), NOW);
        let before = NOW + KEEP_EVERY;
        for wrong in [0, NOW - 1, before] {
            assert!(start(wrong, Some(NOW)) > before, "{wrong}");
        }
    }

    #[test]
    fn it_does_not_follow_a_time_of_day_that_cannot_be() {
        let in_a_hundred_years = NOW + 100 * FURTHEST;
        let clock = start(in_a_hundred_years, Some(NOW));
        assert!(clock - NOW < 1 << 46, "less than half of what receivers see");
    }

    #[test]
    fn a_time_of_day_that_cannot_be_adds_nothing_up_over_restarts() {
        let mut clock = NOW;
        for _ in 0..100 {
            clock = start(NOW + 100 * FURTHEST, Some(clock));
        }
        assert!(clock - NOW < FURTHEST);
    }

    #[test]
    fn it_goes_on_from_what_was_kept() {
        let directory = tempfile::tempdir().unwrap();
        let ahead = micros(ClockId::CLOCK_REALTIME) + 5_000_000_000;
        fs::write(directory.path().join("send-clock"), ahead.to_string()).unwrap();
        let first = SendClock::start(directory.path());
        assert!(first.now() >= ahead + RESERVE);
        let second = SendClock::start(directory.path());
        assert!(second.first_sequence() > first.first_sequence());
    }
}
