//! The file with the bytes that the uplinks have carried this month.

use anyhow::{Context, Result};
use hawser_io::clock;
use hawser_io::failures::{Change, Failures};
use hawser_io::file::with_suffix;
use hawser_io::json_file::{JsonFile, JsonFileError};
use hawser_uplinks::Usage;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};
use time::OffsetDateTime;
use tracing::warn;

/// The interval at which the copy is written: a power failure loses at most the bytes of this time,
/// and a flash memory bears a synced write of a few kilobytes at this interval.
const COPY_INTERVAL: Duration = Duration::from_secs(60);

/// The file in which the usage is stored across restarts. It is written every second and not synced,
/// so it may be damaged after a power failure. A copy that is synced then takes its place.
#[derive(Debug)]
pub(crate) struct UsageFile {
    file: Stored,
    copy: Stored,
    /// None if this process has not written the copy yet.
    copied_at: Option<Instant>,
    damaged_files: Vec<String>,
    failures: Failures,
}

/// A file, and the usage that was read from it or written to it last.
#[derive(Debug)]
struct Stored {
    file: JsonFile,
    usage: Option<Usage>,
}

impl Stored {
    fn read(file: JsonFile, damaged: &mut Vec<String>) -> Result<Stored, JsonFileError> {
        let usage = file.read_or_set_aside(damaged)?;
        Ok(Stored { file, usage })
    }

    /// Writes the usage unless the file contains it.
    fn write(&mut self, usage: &Usage) -> Result<(), JsonFileError> {
        if self.usage.as_ref() != Some(usage) {
            self.file.write(usage)?;
            self.usage = Some(usage.clone());
        }
        Ok(())
    }
}

impl UsageFile {
    /// Reads the usage stored in the file at `path`, or else in its copy. If there is none that is
    /// valid, counting starts from zero.
    pub(crate) fn read(path: PathBuf) -> Result<UsageFile> {
        let copy = JsonFile::at(with_suffix(&path, ".copy"), 0o666);
        let file = JsonFile::at(path, 0o666);
        let mut damaged_files = Vec::new();
        let mut read = |file| Stored::read(file, &mut damaged_files);
        let (file, copy) = (read(file.compact()), read(copy.compact().durable()));
        let file = UsageFile {
            file: file.context("the usage of uplinks")?,
            copy: copy.context("the copy of the usage of uplinks")?,
            copied_at: None,
            damaged_files,
            failures: Failures::default(),
        };
        if !file.damaged_files.is_empty() {
            match file.stored() {
                Some(usage) => warn!(
                    ?usage,
                    "the last valid usage of uplinks counts for monthly caps"
                ),
                None => warn!("the usage of uplinks is lost: monthly caps count from zero"),
            }
        }
        Ok(file)
    }

    /// Returns the stored usage, if there is any.
    pub(crate) fn stored(&self) -> Option<&Usage> {
        self.file.usage.as_ref().or(self.copy.usage.as_ref())
    }

    /// Returns what is wrong with the files that were damaged.
    pub(crate) fn damaged_files(&self) -> &[String] {
        &self.damaged_files
    }

    /// Stores the usage. A failure is logged once.
    pub(crate) fn write(&mut self, usage: &Usage) {
        let outcome = self.file.write(usage).and_then(|()| self.write_copy(usage));
        if let Some(Change::Failed(error)) = self.failures.record(outcome) {
            warn!(
                "cannot store the data usage of uplinks, which will be lost at a restart: {error}"
            );
        }
    }

    /// Writes the copy if it is time for it.
    fn write_copy(&mut self, usage: &Usage) -> Result<(), JsonFileError> {
        let is_recent = |at: Instant| at.elapsed() < COPY_INTERVAL;
        if self.copied_at.is_some_and(is_recent) {
            return Ok(());
        }
        self.copied_at = Some(Instant::now());
        self.copy.write(usage)
    }
}

/// Returns year and month (UTC), as in `2026-11`.
pub(crate) fn month(now: SystemTime) -> String {
    let now = OffsetDateTime::from(now);
    format!("{}-{:02}", now.year(), u8::from(now.month()))
}

/// The file of systemd-timesyncd that exists once it has set the clock since the machine was booted.
const TIMESYNCD: &str = "/run/systemd/timesync/synchronized";

/// Returns whether a program such as an NTP client keeps the clock right. It may do so without this
/// being known: of other programs than systemd-timesyncd only the kernel knows, which a sandbox may
/// deny to ask, as `ProtectClock=` of systemd does.
pub(crate) fn is_clock_synchronized() -> bool {
    clock::is_synchronized().unwrap_or_else(|_| fs::exists(TIMESYNCD).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_month_is_that_of_utc() {
        let at = |days: u64| month(SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400));
        assert_eq!(
            [at(0), at(20_800), at(20_830)],
            ["1970-01", "2026-12", "2027-01"]
        );
    }

    #[test]
    fn usage_is_read_from_the_copy_if_one_file_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/usage.json");
        let copy = folder.path().join("state/usage.json.copy");
        let mut file = UsageFile::read(path.clone()).unwrap();
        assert_eq!(file.stored(), None);
        let usage = |bytes: u64| -> Usage {
            let text = format!(r#"{{"months":{{"2026-12":{{"wwan0":{bytes}}}}}}}"#);
            serde_json::from_str(&text).unwrap()
        };
        for bytes in [5_000, 6_000] {
            file.write(&usage(bytes));
        }
        let read = || {
            let file = UsageFile::read(path.clone()).unwrap();
            let bytes = file.stored().map(|usage| usage.of("wwan0"));
            (bytes, file.damaged_files().len())
        };
        assert_eq!(read(), (Some(6_000), 0));
        let copied = fs::read(&copy).unwrap();
        fs::write(&copy, "").unwrap();
        assert_eq!(read(), (Some(6_000), 1));
        // The copy is written less often.
        fs::write(&copy, copied).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(read(), (Some(5_000), 1));
        assert_eq!(read(), (Some(5_000), 0), "before anything is written again");
        fs::write(&path, "{}").unwrap();
        fs::write(&copy, "{").unwrap();
        assert_eq!(read(), (None, 2));
    }
}
