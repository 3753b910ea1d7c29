use hawser_io::file;
use nix::time::{ClockId, clock_gettime};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
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
    /// A disk may take seconds, which the packets' records would not wait for.
    keeping: Option<JoinHandle<io::Result<()>>>,
    failing: bool,
}

impl SendClock {
    /// Goes on from the time of day or from what is kept in `directory`, whichever is later. Where it begins is on the disk
    /// when this returns, or the log says why not.
    pub(super) fn start(directory: &Path) -> Self {
        let file = directory.join("send-clock");
        let kept = read(&file).unwrap_or_else(|why| {
            warn!(
                "{} is of no use: {why}; the send clock goes on from the time of day, and if that is behind what it was, \
                 receivers refuse what this node sends until it has caught up",
                file.display()
            );
            None
        });
        let start = start(micros(ClockId::CLOCK_REALTIME), kept);
        let offset_micros = start.wrapping_sub(micros(ClockId::CLOCK_BOOTTIME));
        let mut clock = SendClock {
            offset_micros,
            file,
            kept: start,
            keeping: None,
            failing: false,
        };
        let outcome = write(&clock.file, start);
        clock.note(outcome);
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

    /// Begins to keep the clock if it is time to and the disk is done with the one before.
    pub(super) fn keep(&mut self) {
        if let Some(done) = self.keeping.take_if(|keeping| keeping.is_finished()) {
            let outcome = done
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread that writes it has ended")));
            self.note(outcome);
        }
        let now = self.now();
        if now - self.kept < KEEP_EVERY || self.keeping.is_some() {
            return;
        }
        self.kept = now;
        let file = self.file.clone();
        match thread::Builder::new().spawn(move || write(&file, now)) {
            Ok(keeping) => self.keeping = Some(keeping),
            Err(error) => self.note(Err(error)),
        }
    }

    /// Says once that the clock cannot be kept, and once that it can be again.
    fn note(&mut self, outcome: io::Result<()>) {
        match outcome {
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
        self.offset_micros
            .wrapping_add(micros(ClockId::CLOCK_BOOTTIME))
    }
}

/// Reads the clock that was kept, microseconds; none when there is no file yet.
///
/// # Errors
/// Why the file cannot be used: it cannot be read, or holds no number.
fn read(file: &Path) -> Result<Option<u64>, String> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| error.to_string())?,
    };
    let kept = text.trim().parse();
    kept.map(Some).map_err(|_| {
        format!(
            "it holds {:?}, which is no number of microseconds",
            text.trim()
        )
    })
}

/// Durably: after a power failure the clock must not go on from an older one.
fn write(file: &Path, clock: u64) -> io::Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
    file::replace_durably(file, clock.to_string().as_bytes(), 0o600)
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
        assert!(
            clock - NOW < 1 << 46,
            "less than half of what receivers see"
        );
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

    #[test]
    fn what_is_kept_is_read_back_and_what_tells_nothing_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("node/send-clock");
        assert_eq!(read(&file), Ok(None), "there is none yet");
        write(&file, NOW).unwrap();
        assert_eq!(read(&file), Ok(Some(NOW)));
        for useless in ["", "soon", "-1"] {
            fs::write(&file, useless).unwrap();
            assert!(
                read(&file).unwrap_err().contains(&format!("{useless:?}")),
                "{useless:?}"
            );
        }
        let before = micros(ClockId::CLOCK_REALTIME);
        assert!(
            SendClock::start(&directory.path().join("node")).now() >= before,
            "the time of day"
        );
        assert!(
            read(&file).unwrap().is_some_and(|kept| kept >= before),
            "the file is good again"
        );
    }

    #[test]
    fn the_clock_is_kept_when_it_is_time_to() {
        let directory = tempfile::tempdir().unwrap();
        let mut clock = SendClock::start(directory.path());
        clock.keep();
        assert!(clock.keeping.is_none(), "it was kept just now");
        clock.kept -= KEEP_EVERY;
        clock.keep();
        clock
            .keeping
            .take()
            .expect("it is being kept")
            .join()
            .unwrap()
            .unwrap();
        assert_eq!(
            read(&directory.path().join("send-clock")),
            Ok(Some(clock.kept))
        );
    }
}
