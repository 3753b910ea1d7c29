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

/// The bytes that each uplink has carried this month, stored in a file across restarts.
#[derive(Debug)]
pub(crate) struct Usage {
    file: PathBuf,
    current: MonthlyUsage,
    stored: MonthlyUsage,
    /// The last byte count of each connection.
    last_counts: HashMap<usize, u64>,
    write_failed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MonthlyUsage {
    /// The calendar month (UTC), as in `2026-11`.
    month: String,
    bytes: BTreeMap<String, u64>,
}

impl Usage {
    /// Reads the usage stored in `file`, if it exists.
    pub(crate) fn read(file: PathBuf) -> Result<Usage> {
        let usage = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| {
                format!(
                    "{} is not a valid usage file: remove it to restart counting for this month",
                    file.display()
                )
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => MonthlyUsage::default(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", file.display()));
            }
        };
        Ok(Usage {
            file,
            stored: usage.clone(),
            current: usage,
            last_counts: HashMap::new(),
            write_failed: false,
        })
    }

    /// Adds the bytes that the connections have carried since the last call.
    pub(crate) fn add(&mut self, paths: &[PathReport], now: SystemTime) {
        let month = month(now);
        // A clock that is behind, for example before it is synchronized, does not reset the usage.
        if self.current.month < month {
            self.current = MonthlyUsage {
                month,
                bytes: BTreeMap::new(),
            };
        }
        for path in paths {
            let before = self
                .last_counts
                .insert(path.connection, path.outer_bytes)
                .unwrap_or(0);
            // An ID may be reused by another connection, whose byte count starts from zero.
            let more = path
                .outer_bytes
                .checked_sub(before)
                .unwrap_or(path.outer_bytes);
            *self.current.bytes.entry(path.name.clone()).or_default() += more;
        }
        self.last_counts
            .retain(|connection, _| paths.iter().any(|path| path.connection == *connection));
    }

    /// Returns the bytes that the uplink has carried this month.
    pub(crate) fn of(&self, uplink: &str) -> u64 {
        self.current.bytes.get(uplink).copied().unwrap_or(0)
    }

    /// Stores the usage. A failure is logged once.
    pub(crate) fn write(&mut self) {
        if self.current == self.stored {
            return;
        }
        match self.replace() {
            Ok(()) => {
                self.write_failed = false;
                self.stored = self.current.clone();
            }
            Err(error) if !self.write_failed => {
                self.write_failed = true;
                warn!(
                    "cannot store the data usage of uplinks, which will be lost at a restart: {error:#}"
                );
            }
            Err(_) => {}
        }
    }

    fn replace(&self) -> Result<()> {
        if let Some(folder) = self.file.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        file::replace(&self.file, &serde_json::to_vec(&self.current)?, 0o666)
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}

/// Returns year and month (UTC).
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
        usage
            .current
            .bytes
            .insert("wwan0".to_owned(), 5_000_000_000);
        for days in [december, 0, december - 60, december] {
            usage.add(&[], at(days));
            assert_eq!(usage.of("wwan0"), 5_000_000_000, "{days} days after 1970");
        }
        usage.add(&[], at(january));
        assert_eq!(
            (usage.of("wwan0"), usage.current.month.as_str()),
            (0, "2027-01")
        );
    }
}
