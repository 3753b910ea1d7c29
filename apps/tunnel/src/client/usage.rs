use crate::session::PathReport;
use anyhow::{Context, Result};
use hawser_io::file;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;
use time::OffsetDateTime;
use tracing::warn;

/// Bytes that each uplink has carried this month, kept over restarts.
#[derive(Debug)]
pub(crate) struct Usage {
    file: PathBuf,
    kept: Kept,
    written: Kept,
    /// What was last seen of each connection.
    seen: HashMap<usize, u64>,
    failed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// Of the calendar (UTC), as in `2026-11`.
    month: String,
    bytes: BTreeMap<String, u64>,
}

impl Usage {
    /// What was kept in `file`, if it is there.
    pub(crate) fn read(file: PathBuf) -> Result<Usage> {
        let kept = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| {
                format!(
                    "{} does not say what uplinks have carried: without it the month begins anew",
                    file.display()
                )
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Kept::default(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", file.display()));
            }
        };
        Ok(Usage {
            file,
            written: kept.clone(),
            kept,
            seen: HashMap::new(),
            failed: false,
        })
    }

    /// Adds what the connections have carried since the last time.
    pub(crate) fn add(&mut self, paths: &[PathReport], now: SystemTime) {
        let month = month(now);
        // A clock that is behind, as before it was set, forgets nothing.
        if self.kept.month < month {
            self.kept = Kept {
                month,
                bytes: BTreeMap::new(),
            };
        }
        for path in paths {
            let before = self
                .seen
                .insert(path.connection, path.outer_bytes)
                .unwrap_or(0);
            // A connection's number may come again; its bytes then begin anew.
            let more = path
                .outer_bytes
                .checked_sub(before)
                .unwrap_or(path.outer_bytes);
            *self.kept.bytes.entry(path.name.clone()).or_default() += more;
        }
        self.seen
            .retain(|connection, _| paths.iter().any(|path| path.connection == *connection));
    }

    /// Bytes that the uplink has carried this month.
    pub(crate) fn of(&self, uplink: &str) -> u64 {
        self.kept.bytes.get(uplink).copied().unwrap_or(0)
    }

    /// Puts the figures where they outlive the process. That it fails is said once.
    pub(crate) fn write(&mut self) {
        if self.kept == self.written {
            return;
        }
        match self.replace() {
            Ok(()) => {
                self.failed = false;
                self.written = self.kept.clone();
            }
            Err(error) if !self.failed => {
                self.failed = true;
                warn!("what uplinks have carried will be forgotten: {error:#}");
            }
            Err(_) => {}
        }
    }

    fn replace(&self) -> Result<()> {
        if let Some(folder) = self.file.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        file::replace(&self.file, &serde_json::to_vec(&self.kept)?, 0o666)
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}

/// Year and month of UTC.
fn month(now: SystemTime) -> String {
    let now = OffsetDateTime::from(now);
    format!("{}-{:02}", now.year(), u8::from(now.month()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_new_month_begins_anew_and_a_clock_that_is_behind_forgets_nothing() {
        let at = |days: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400);
        let (december, january) = (20_800, 20_830);
        let folder = tempfile::tempdir().unwrap();
        let mut usage = Usage::read(folder.path().join("usage.json")).unwrap();
        usage.add(&[], at(december));
        usage.kept.bytes.insert("wwan0".to_owned(), 5_000_000_000);
        for days in [december, 0, december - 60, december] {
            usage.add(&[], at(days));
            assert_eq!(usage.of("wwan0"), 5_000_000_000, "{days} days after 1970");
        }
        usage.add(&[], at(january));
        assert_eq!(
            (usage.of("wwan0"), usage.kept.month.as_str()),
            (0, "2027-01")
        );
    }
}
