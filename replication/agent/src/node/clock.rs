use hawser_io::failures::{Change, Failures};
use hawser_io::file;
use nix::time::{ClockId, clock_gettime};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tracing::warn;

/// Interval at which the clock is saved, microseconds.
const SAVE_EVERY: u64 = 10_000_000;

/// Added to a saved clock at the start, microseconds: the interval between two saves and the time
/// that a slow disk may take.
const RESERVE: u64 = SAVE_EVERY + 20_000_000;

/// The furthest that the time of day may be ahead of the saved clock, microseconds. A time further
/// ahead is wrong, and receivers, which see 48 bits of the microseconds, could take it for an older
/// one.
const MAX_AHEAD: u64 = 365 * 86_400 * 1_000_000;

/// Sequence numbers that a flow can use per microsecond, on average over a session, so that the
/// next session still starts above them.
const NUMBERS_PER_MICRO: u64 = 4;

/// The clock of send times and of the first sequence numbers of sessions, in microseconds, normally
/// since 1970. It never goes back, even if the time of day does, over restarts and reboots.
#[derive(Debug)]
pub(super) struct SendClock {
    offset_micros: u64,
    file: PathBuf,
    saved: u64,
    /// The thread that writes the file. A disk may take seconds, during which arrival records would
    /// be lost.
    writer: Option<JoinHandle<io::Result<()>>>,
    failures: Failures,
}

impl SendClock {
    /// Starts the clock at the time of day or at the clock saved in `directory`, whichever is
    /// later. The start time has been written to the disk when this returns; if it could not be,
    /// the log says why.
    pub(super) fn start(directory: &Path) -> Self {
        let file = directory.join("send-clock");
        let saved = read(&file).unwrap_or_else(|why| {
            warn!(
                "cannot use {}: {why}; the send clock starts from the time of day. If that has gone back, \
                 receivers drop what this node sends until it has caught up",
                file.display()
            );
            None
        });
        let start = start(micros(ClockId::CLOCK_REALTIME), saved);
        let offset_micros = start.wrapping_sub(micros(ClockId::CLOCK_BOOTTIME));
        let mut clock = SendClock {
            offset_micros,
            file,
            saved: start,
            writer: None,
            failures: Failures::default(),
        };
        let outcome = write(&clock.file, start);
        clock.log_outcome(outcome);
        clock
    }

    /// Returns the offset of the clock to the time since boot, microseconds.
    pub(super) fn offset_micros(&self) -> u64 {
        self.offset_micros
    }

    /// Returns the first sequence number of a session that starts now.
    pub(super) fn first_sequence(&self) -> u64 {
        self.now().wrapping_mul(NUMBERS_PER_MICRO)
    }

    /// Starts to save the clock if it is due and the previous write is done.
    pub(super) fn persist(&mut self) {
        if let Some(done) = self.writer.take_if(|writer| writer.is_finished()) {
            let outcome = done
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread that writes it panicked")));
            self.log_outcome(outcome);
        }
        let now = self.now();
        if now - self.saved < SAVE_EVERY || self.writer.is_some() {
            return;
        }
        self.saved = now;
        let file = self.file.clone();
        match thread::Builder::new().spawn(move || write(&file, now)) {
            Ok(writer) => self.writer = Some(writer),
            Err(error) => self.log_outcome(Err(error)),
        }
    }

    /// Logs once that the clock cannot be saved, and once that it can be again.
    fn log_outcome(&mut self, outcome: io::Result<()>) {
        match self.failures.record(outcome) {
            Some(Change::Failed(error)) => warn!(
                "cannot save the send clock to {}: {error}; if this machine starts with a wrong time of day, receivers \
                 drop what it sends",
                self.file.display()
            ),
            Some(Change::Recovered) => warn!("the send clock can be saved again"),
            None => {}
        }
    }

    fn now(&self) -> u64 {
        self.offset_micros
            .wrapping_add(micros(ClockId::CLOCK_BOOTTIME))
    }
}

/// Reads the saved clock, microseconds. Returns `None` if there is no file yet.
///
/// # Errors
/// If the file cannot be read, or does not hold a number.
fn read(file: &Path) -> Result<Option<u64>, String> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| error.to_string())?,
    };
    let saved = text.trim().parse();
    saved.map(Some).map_err(|_| {
        format!(
            "it holds {:?}, which is not a number of microseconds",
            text.trim()
        )
    })
}

/// Writes the clock and syncs it to the disk: after a power failure the clock must not start from
/// an older one.
fn write(file: &Path, clock: u64) -> io::Result<()> {
    file::create_folder(file.parent().unwrap_or(Path::new("/")), 0o777)?;
    file::replace_durably(file, clock.to_string().as_bytes(), 0o600)
}

/// Returns the start time of the clock from the time of day and the saved clock.
fn start(time_of_day: u64, saved: Option<u64>) -> u64 {
    match saved {
        // A wrong time of day is not followed in part either: the parts would add up over several
        // restarts.
        Some(saved) if time_of_day > saved.saturating_add(MAX_AHEAD) => {
            saved.saturating_add(RESERVE)
        }
        Some(saved) => time_of_day.max(saved.saturating_add(RESERVE)),
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
        let before = NOW + SAVE_EVERY;
        for wrong in [0, NOW - 1, before] {
            assert!(start(wrong, Some(NOW)) > before, "{wrong}");
        }
    }

    #[test]
    fn it_does_not_follow_a_time_of_day_that_cannot_be() {
        let in_a_hundred_years = NOW + 100 * MAX_AHEAD;
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
            clock = start(NOW + 100 * MAX_AHEAD, Some(clock));
        }
        assert!(clock - NOW < MAX_AHEAD);
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
            read(&file).unwrap().is_some_and(|saved| saved >= before),
            "the file is good again"
        );
    }

    #[test]
    fn the_clock_is_kept_when_it_is_time_to() {
        let directory = tempfile::tempdir().unwrap();
        let mut clock = SendClock::start(directory.path());
        clock.persist();
        assert!(clock.writer.is_none(), "saved just now");
        clock.saved -= SAVE_EVERY;
        clock.persist();
        clock
            .writer
            .take()
            .expect("the clock is being saved")
            .join()
            .unwrap()
            .unwrap();
        assert_eq!(
            read(&directory.path().join("send-clock")),
            Ok(Some(clock.saved))
        );
    }
}
