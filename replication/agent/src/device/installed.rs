use super::entry::Entry;
use super::kept::{KeptEntry, Present};
use hawser_io::boot;
use hawser_io::failures::{Change, Failures};
use hawser_io::json_file::JsonFile;
use hawser_io::kept::{Deviation, Item, Keeper};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use tracing::{error, info, warn};

/// The addresses and routes that the agent has installed in the kernel and that outlive it, so that
/// the next agent knows which are its own. They do not survive a reboot, and the file is then
/// ignored.
#[derive(Debug)]
pub(super) struct InstalledEntries {
    file: JsonFile,
    boot: String,
    entries: BTreeSet<Entry>,
    kept: Keeper,
    failures: Failures,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The boot in which the entries were installed.
    boot: String,
    entries: BTreeSet<Entry>,
}

impl InstalledEntries {
    /// Reads the entries of an earlier agent from the file in `directory`. A file that cannot be
    /// read, such as an empty one after a power failure, counts as empty.
    pub(super) fn read(directory: &Path) -> Self {
        InstalledEntries::for_boot(directory, &boot::current())
    }

    fn for_boot(directory: &Path, boot: &str) -> Self {
        let file = JsonFile::at(directory.join("device.json"), 0o644);
        let record: Option<Record> = file.read().unwrap_or_else(|error| {
            warn!(
                "{error}; addresses and routes of an earlier agent that are no longer in the configuration stay \
                 in the kernel (`ip route show proto 72`, `ip address show dev lo`)"
            );
            None
        });
        let of_this_boot = record.filter(|record| record.boot == boot);
        InstalledEntries {
            file,
            boot: boot.to_owned(),
            entries: of_this_boot
                .map(|record| record.entries)
                .unwrap_or_default(),
            kept: Keeper::default(),
            failures: Failures::default(),
        }
    }

    /// Returns whether exactly these entries are installed.
    pub(super) fn is(&self, wanted: &BTreeSet<Entry>) -> bool {
        self.entries == *wanted
    }

    /// Returns whether the kernel rejected this entry when it was last installed.
    pub(super) fn is_refused(&self, entry: &Entry) -> bool {
        let name = entry.to_string();
        let mut deviations = self.kept.deviations().into_iter();
        deviations.any(|found| found.name == name && !found.restored)
    }

    /// Returns the entries that another program has removed or changed, or that the kernel rejected.
    pub(super) fn deviations(&self) -> Vec<Deviation> {
        self.kept.deviations()
    }

    /// Installs `wanted` where it is missing, and removes all other entries that were installed before.
    /// New entries are installed before old ones are removed.
    pub(super) fn set(&mut self, wanted: BTreeSet<Entry>) {
        let removed: Vec<_> = self.entries.difference(&wanted).cloned().collect();
        self.record(self.entries.union(&wanted).cloned().collect());
        // In this order, an address is installed before the routes that have it as source, and
        // removed after them.
        let present = Present::read(wanted.iter());
        let items = wanted.iter().map(|entry| KeptEntry {
            entry,
            present: &present,
        });
        let mut items: Vec<_> = items.map(|item| Box::new(item) as Box<dyn Item>).collect();
        self.kept.keep(&mut items);
        drop(items);
        for entry in removed.iter().rev() {
            // The kernel removes routes with their interface, so this may fail.
            let _ = entry.delete();
        }
        self.record(wanted);
    }

    /// Writes the entries to the file. A failure, such as a full disk, must not stop replication:
    /// it is logged once.
    fn record(&mut self, entries: BTreeSet<Entry>) {
        if self.entries == entries && !self.failures.is_failing() {
            return;
        }
        self.entries = entries;
        let record = Record {
            boot: self.boot.clone(),
            entries: self.entries.clone(),
        };
        match self.failures.record(self.file.write(&record)) {
            Some(Change::Failed(error)) => {
                error!(
                    "{error}; the next agent may not remove all of the device's addresses and routes"
                );
            }
            Some(Change::Recovered) => {
                info!("the device's addresses and routes can be recorded again");
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn entries() -> BTreeSet<Entry> {
        let entry = Entry::try_from("address 10.99.0.1/32 dev lo".to_owned());
        BTreeSet::from([entry.unwrap()])
    }

    /// Writes the file that an agent leaves in a boot.
    fn write_file(directory: &Path, boot: &str) {
        let mut installed = InstalledEntries::for_boot(directory, boot);
        installed.record(entries());
        assert!(!installed.failures.is_failing());
    }

    #[test]
    fn leftovers_are_known_until_the_machine_restarts() {
        let directory = tempfile::tempdir().unwrap();
        write_file(directory.path(), "first");
        assert_eq!(
            InstalledEntries::for_boot(directory.path(), "first").entries,
            entries()
        );
        assert_eq!(
            InstalledEntries::for_boot(directory.path(), "second").entries,
            BTreeSet::new()
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_counts_as_none_and_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("device.json");
        for useless in [
            "",
            "{ \"boot\":",
            "[]",
            r#"{"boot":"first","entries":["route"]}"#,
        ] {
            fs::write(&file, useless).unwrap();
            assert_eq!(
                InstalledEntries::read(directory.path()).entries,
                BTreeSet::new(),
                "{useless:?}"
            );
        }
        write_file(directory.path(), "first");
        assert_eq!(
            InstalledEntries::for_boot(directory.path(), "first").entries,
            entries()
        );
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(
            InstalledEntries::read(directory.path()).entries,
            BTreeSet::new(),
            "a folder"
        );
    }
}
