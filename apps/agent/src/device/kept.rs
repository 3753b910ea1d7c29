use anyhow::{Context, Result};
use hawser_io::{file, interface};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tracing::{error, info, warn};

/// Addresses and routes that the agent has given to the kernel and that outlive it, so that the next one knows which are its
/// own. The file is to be where nothing outlives the machine, as they do not either.
#[derive(Debug)]
pub(super) struct Kept {
    file: PathBuf,
    entries: BTreeSet<String>,
    /// Those that the kernel refused.
    refused: BTreeSet<String>,
    /// Whether the file could not be written last.
    failing: bool,
}

/// The command for an entry, which is one of `ip` without its verb: `route 10.99.0.2/32 via 192.0.2.2 dev eth0`.
fn command(verb: &str, entry: &str) -> String {
    let (object, rest) = entry.split_once(' ').unwrap_or((entry, ""));
    format!("{object} {verb} {rest}")
}

impl Kept {
    /// Reads what an earlier agent has left, from the file in `directory`.
    pub(super) fn read(directory: &Path) -> Result<Self> {
        let file = directory.join("device.json");
        let unreadable = || format!("cannot read {}", file.display());
        let entries = match fs::read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeSet::new(),
            text => serde_json::from_slice(&text.with_context(unreadable)?).with_context(unreadable)?,
        };
        Ok(Kept { file, entries, refused: BTreeSet::new(), failing: false })
    }

    /// Whether the kernel was last given exactly this.
    pub(super) fn is(&self, wanted: &BTreeSet<String>) -> bool {
        self.entries == *wanted
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
        let text = serde_json::to_vec(&self.entries).context("cannot describe addresses and routes")?;
        file::replace(&self.file, &text, 0o644)
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}
