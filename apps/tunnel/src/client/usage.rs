//! The file with the bytes that the uplinks have carried this month.

use anyhow::{Context, Result};
use hawser_io::failures::{Change, Failures};
use hawser_io::json_file::{JsonFile, JsonFileError};
use hawser_uplinks::Usage;
use std::path::PathBuf;
use std::time::SystemTime;
use time::OffsetDateTime;
use tracing::warn;

/// The file in which the usage is stored across restarts.
#[derive(Debug)]
pub(crate) struct UsageFile {
    file: JsonFile,
    stored: Usage,
    failures: Failures,
}

impl UsageFile {
    /// Reads the usage stored in the file at `path`, if it exists.
    pub(crate) fn read(path: PathBuf) -> Result<UsageFile> {
        let file = JsonFile::at(path, 0o666).compact();
        let stored = match file.read() {
            Err(error @ JsonFileError::Syntax { .. }) => {
                let remedy =
                    "cannot use the usage file; remove it to restart counting for this month";
                return Err(error).context(remedy);
            }
            stored => stored?.unwrap_or_default(),
        };
        Ok(UsageFile {
            file,
            stored,
            failures: Failures::default(),
        })
    }

    /// Returns the usage that was read or written last.
    pub(crate) fn stored(&self) -> &Usage {
        &self.stored
    }

    /// Stores the usage. A failure is logged once.
    pub(crate) fn write(&mut self, usage: &Usage) {
        if *usage == self.stored {
            return;
        }
        let outcome = self.file.write(usage);
        if outcome.is_ok() {
            self.stored = usage.clone();
        }
        if let Some(Change::Failed(error)) = self.failures.record(outcome) {
            warn!(
                "cannot store the data usage of uplinks, which will be lost at a restart: {error}"
            );
        }
    }
}

/// Returns year and month (UTC), as in `2026-11`.
pub(crate) fn month(now: SystemTime) -> String {
    let now = OffsetDateTime::from(now);
    format!("{}-{:02}", now.year(), u8::from(now.month()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    #[test]
    fn the_month_is_that_of_utc() {
        let at = |days: u64| month(SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400));
        assert_eq!(
            [at(0), at(20_800), at(20_830)],
            ["1970-01", "2026-12", "2027-01"]
        );
    }

    #[test]
    fn what_was_written_is_read_again_and_nonsense_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/usage.json");
        let mut file = UsageFile::read(path.clone()).unwrap();
        assert_eq!(*file.stored(), Usage::default());
        let text = r#"{"month":"2026-12","bytes":{"wwan0":5000000000}}"#;
        let usage: Usage = serde_json::from_str(text).unwrap();
        file.write(&usage);
        let again = UsageFile::read(path.clone()).unwrap();
        assert_eq!(again.stored().of("wwan0"), 5_000_000_000);
        fs::write(&path, "{}").unwrap();
        assert!(UsageFile::read(path).is_err());
    }
}
