//! The reverse path filters of path interfaces. A strict one drops packets, after deduplication, that
//! arrived on another path than the route back takes. The agent makes it loose, and puts back what it
//! found when deduplication on the interface ends, which outlives the agent.

use crate::boot;
use anyhow::{Context, Result};
use hawser_io::json_file::JsonFile;
use hawser_io::sysctl;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tracing::{error, info, warn};

/// The filters that were changed.
#[derive(Debug)]
pub(crate) struct Filters {
    file: JsonFile,
    changed: Record,
}

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// The boot in which they were changed.
    boot: String,
    /// The values that were found, by interface.
    reverse_path_filters: BTreeMap<String, u8>,
}

impl Filters {
    /// Reads what an earlier agent has changed since the machine booted.
    pub(crate) fn read(directory: &Path) -> Self {
        let file = JsonFile::at(directory.join("parameters.json"), 0o644);
        let record: Option<Record> = file.read().unwrap_or_else(|error| {
            warn!("{error}; reverse path filters that an earlier agent has made loose stay so");
            None
        });
        let boot = boot::current();
        let changed = record
            .filter(|record| record.boot == boot)
            .unwrap_or(Record {
                boot,
                ..Record::default()
            });
        Filters { file, changed }
    }

    /// Makes the filter of an interface loose if it is strict. Returns whether it was.
    ///
    /// # Errors
    /// If it cannot be set, with the command that does it.
    pub(super) fn loosen(&mut self, interface: &str) -> Result<bool> {
        if sysctl::reverse_path_filter(interface) != sysctl::STRICT {
            return Ok(false);
        }
        let advice = || {
            format!(
                "interface {interface}: the reverse path filter is strict and drops packets that arrive on other paths than the \
                 route back, and it cannot be changed here; run `sysctl -w net.ipv4.conf.{interface}.rp_filter=2`"
            )
        };
        let found = sysctl::own_reverse_path_filter(interface).with_context(advice)?;
        let filters = &mut self.changed.reverse_path_filters;
        filters.entry(interface.to_owned()).or_insert(found);
        self.record();
        if let Err(error) = sysctl::set_reverse_path_filter(interface, sysctl::LOOSE) {
            self.changed.reverse_path_filters.remove(interface);
            self.record();
            return Err(error).with_context(advice);
        }
        info!(
            interface,
            "the reverse path filter is loose now (net.ipv4.conf.{interface}.rp_filter): a strict one drops packets that \
             arrive on other paths than the route back"
        );
        Ok(true)
    }

    /// Puts back the filters of all interfaces except those in `held`.
    pub(crate) fn restore_except(&mut self, held: &BTreeSet<String>) {
        self.restore(|interface| !held.contains(interface));
    }

    /// Puts back the filters of the interfaces that have ended. A filter that someone else has changed
    /// in the meantime stays as it is.
    pub(super) fn restore(&mut self, has_ended: impl Fn(&str) -> bool) {
        let filters = std::mem::take(&mut self.changed.reverse_path_filters);
        let (ended, held): (BTreeMap<_, _>, BTreeMap<_, _>) = filters
            .into_iter()
            .partition(|(interface, _)| has_ended(interface));
        self.changed.reverse_path_filters = held;
        if ended.is_empty() {
            return;
        }
        for (interface, found) in ended {
            // The interface may be gone.
            if sysctl::own_reverse_path_filter(&interface).ok() != Some(sysctl::LOOSE) {
                continue;
            }
            match sysctl::set_reverse_path_filter(&interface, found) {
                Ok(()) => info!(interface, "the reverse path filter is {found} again"),
                Err(error) => warn!(
                    "cannot put back the reverse path filter: {error}; run `sysctl -w net.ipv4.conf.{interface}.rp_filter={found}`"
                ),
            }
        }
        self.record();
    }

    fn record(&self) {
        if let Err(error) = self.file.write(&self.changed) {
            error!("{error}; reverse path filters that are loose now are not put back later");
        }
    }
}
