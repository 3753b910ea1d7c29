use anyhow::{Context, Result};
use hawser_io::{file, interface};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tracing::{error, info, warn};

/// Where the kernel says which boot this is.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Addresses and routes that the agent has given to the kernel and that outlive it, so that the next one knows which are its
/// own. They end with the machine, and so does what the file says, should that be on a disk.
#[derive(Debug)]
pub(super) struct Kept {
    file: PathBuf,
    boot: String,
    entries: BTreeSet<String>,
    /// Those that the kernel refused.
    refused: BTreeSet<String>,
    /// Whether the file could not be written last.
    failing: bool,
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The boot of the machine in which the kernel was given these.
    boot: String,
    entries: BTreeSet<String>,
}

/// The command for an entry, which is one of `ip` without its verb: `route 10.99.0.2/32 via 192.0.2.2 dev eth0`.
fn command(verb: &str, entry: &str) -> String {
    let (object, rest) = entry.split_once(' ').unwrap_or((entry, ""));
    format!("{object} {verb} {rest}")
}

impl Kept {
    /// Reads what an earlier agent has left, from the file in `directory`. One that cannot be read, such as an empty one
    /// after a power failure, counts as none.
    pub(super) fn read(directory: &Path) -> Self {
        let boot = fs::read_to_string(BOOT).unwrap_or_else(|error| {
            warn!("cannot tell this boot of the machine from others: {BOOT}: {error}");
            String::new()
        });
        Kept::of_boot(directory, boot.trim())
    }

    fn of_boot(directory: &Path, boot: &str) -> Self {
        let file = directory.join("device.json");
        let record = read(&file).unwrap_or_else(|error| {
            warn!(
                "{} is of no use: {error:#}; what an earlier agent gave the kernel and the configuration no longer has stays \
                 there (`ip route show proto 72`, `ip address show dev lo`)",
                file.display()
            );
            None
        });
        let of_this_boot = record.filter(|record| record.boot == boot);
        Kept {
            file,
            boot: boot.to_owned(),
            entries: of_this_boot
                .map(|record| record.entries)
                .unwrap_or_default(),
            refused: BTreeSet::new(),
            failing: false,
        }
    }

    /// Whether the kernel was last given exactly this.
    pub(super) fn is(&self, wanted: &BTreeSet<String>) -> bool {
        self.entries == *wanted
    }

    /// Whether the kernel refused this when it was given it last.
    pub(super) fn is_refused(&self, entry: &str) -> bool {
        self.refused.contains(entry)
    }

    /// Has the kernel hold `wanted`, and of what was kept before nothing else. All that is new is there before anything
    /// goes. A part that the kernel refuses is said once.
    pub(super) fn set(&mut self, wanted: BTreeSet<String>) {
        let gone: Vec<_> = self.entries.difference(&wanted).cloned().collect();
        self.record(self.entries.union(&wanted).cloned().collect());
        // An address comes before the routes that name it as source, in this order, and goes after them.
        for entry in &wanted {
            match interface::change(&command("replace", entry)) {
                Ok(()) => drop(self.refused.remove(entry)),
                Err(error) if self.refused.insert(entry.clone()) => {
                    warn!("an address or a route is not in place: {error}");
                }
                Err(_) => {}
            }
        }
        for entry in gone.iter().rev() {
            // The kernel takes routes away with their interface.
            let _ = interface::change(&command("delete", entry));
        }
        self.refused.retain(|entry| wanted.contains(entry));
        self.record(wanted);
    }

    /// A full disk must not end replication: it is said once, and the agent goes on.
    fn record(&mut self, entries: BTreeSet<String>) {
        if self.entries == entries && !self.failing {
            return;
        }
        self.entries = entries;
        match self.write() {
            Ok(()) if self.failing => info!("the device's addresses and routes are recorded again"),
            Err(error) if !self.failing => {
                error!("{error:#}; the next agent will not know all of them as its own");
            }
            _ => return,
        }
        self.failing = !self.failing;
    }

    fn write(&self) -> Result<()> {
        let record = Record {
            boot: self.boot.clone(),
            entries: self.entries.clone(),
        };
        let text = serde_json::to_vec(&record).context("cannot describe addresses and routes")?;
        file::replace(&self.file, &text, 0o644)
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}

fn read(file: &Path) -> Result<Option<Record>> {
    match fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        text => Ok(Some(serde_json::from_slice(&text?)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> BTreeSet<String> {
        BTreeSet::from(["address 10.99.0.1/32 dev lo".to_owned()])
    }

    /// A file as an agent leaves it in a boot.
    fn leave(directory: &Path, boot: &str) {
        let mut kept = Kept::of_boot(directory, boot);
        kept.record(entries());
        assert!(!kept.failing);
    }

    #[test]
    fn what_an_agent_leaves_is_known_to_the_next_one_until_the_machine_is_started_again() {
        let directory = tempfile::tempdir().unwrap();
        leave(directory.path(), "first");
        assert_eq!(Kept::of_boot(directory.path(), "first").entries, entries());
        assert_eq!(
            Kept::of_boot(directory.path(), "second").entries,
            BTreeSet::new()
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_counts_as_none_and_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("device.json");
        for useless in ["", "{ \"boot\":", "[]"] {
            fs::write(&file, useless).unwrap();
            assert_eq!(
                Kept::read(directory.path()).entries,
                BTreeSet::new(),
                "{useless:?}"
            );
        }
        leave(directory.path(), "first");
        assert_eq!(Kept::of_boot(directory.path(), "first").entries, entries());
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(
            Kept::read(directory.path()).entries,
            BTreeSet::new(),
            "a folder"
        );
    }
}
