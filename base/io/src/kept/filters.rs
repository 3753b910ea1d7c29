//! The reverse path filters of IPv4. A strict one drops packets that arrive on another interface than
//! the route back takes. They are made loose, and what was found is put back when the interface is no
//! longer used, also by another process.

use super::{Item, Problem};
use crate::boot;
use crate::json_file::JsonFile;
use crate::sysctl;
use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tracing::{error, info, warn};

/// The filters of the interfaces that a program uses, and those that were changed.
#[derive(Debug)]
pub struct Filters {
    file: JsonFile,
    changed: Record,
    /// The interfaces whose filter should be loose.
    used: BTreeSet<String>,
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
    /// Reads what an earlier process has changed since the machine booted, from the file
    /// `parameters.json` in `directory`.
    pub fn read(directory: &Path) -> Self {
        let file = JsonFile::at(directory.join("parameters.json"), 0o644);
        let record: Option<Record> = file.read().unwrap_or_else(|error| {
            warn!("{error}; reverse path filters that an earlier process has made loose stay so");
            None
        });
        let boot = boot::current();
        let changed = record
            .filter(|record| record.boot == boot)
            .unwrap_or(Record {
                boot,
                ..Record::default()
            });
        Filters {
            file,
            changed,
            used: BTreeSet::new(),
        }
    }

    /// Returns the interfaces whose filter should be loose.
    pub fn used(&self) -> &BTreeSet<String> {
        &self.used
    }

    /// Sets the interfaces whose filter should be loose, which a [`LooseFilter`] keeps so. Puts back the
    /// filters of all others.
    pub fn set_used(&mut self, interfaces: BTreeSet<String>) {
        self.restore_except(&interfaces);
        self.used = interfaces;
    }

    /// Makes the filter of an interface loose if it is strict. Returns whether it was.
    ///
    /// # Errors
    /// If it cannot be set, with the command that does it.
    pub fn loosen(&mut self, interface: &str) -> Result<bool> {
        self.used.insert(interface.to_owned());
        if sysctl::reverse_path_filter(interface) != sysctl::STRICT {
            return Ok(false);
        }
        let advice = || {
            let Problem { what, advice } = strict(interface);
            format!("{what}, and it cannot be changed here; {advice}")
        };
        let found = sysctl::own_reverse_path_filter(interface).with_context(advice)?;
        // Another program may have set it since it was made loose.
        let filters = &mut self.changed.reverse_path_filters;
        let before = filters.insert(interface.to_owned(), found);
        self.record();
        if let Err(error) = sysctl::set_reverse_path_filter(interface, sysctl::LOOSE) {
            let filters = &mut self.changed.reverse_path_filters;
            match before {
                Some(before) => filters.insert(interface.to_owned(), before),
                None => filters.remove(interface),
            };
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
    pub fn restore_except(&mut self, held: &BTreeSet<String>) {
        self.restore(|interface| !held.contains(interface));
    }

    /// Puts back the filters of the interfaces that have ended. A filter that someone else has changed
    /// in the meantime stays as it is.
    pub fn restore(&mut self, has_ended: impl Fn(&str) -> bool) {
        self.used.retain(|interface| !has_ended(interface));
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

/// The reverse path filter of an interface, which should not be strict.
#[derive(Debug)]
pub struct LooseFilter {
    /// The interface.
    pub interface: String,
    /// The filters that are made loose; without them, that is left to a person.
    pub filters: Option<Arc<Mutex<Filters>>>,
}

impl Item for LooseFilter {
    fn name(&self) -> String {
        format!("net.ipv4.conf.{}.rp_filter", self.interface)
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.interface)
    }

    fn examine(&self) -> Option<Problem> {
        let is_strict = sysctl::reverse_path_filter(&self.interface) == sysctl::STRICT;
        is_strict.then(|| strict(&self.interface))
    }

    fn restore(&mut self) -> Result<bool, String> {
        let Some(filters) = &self.filters else {
            return Ok(false);
        };
        let mut filters = filters.lock();
        if !filters.used.contains(&self.interface) {
            return Ok(false);
        }
        match filters.loosen(&self.interface) {
            Ok(_) => Ok(true),
            Err(error) => Err(error.root_cause().to_string()),
        }
    }
}

/// The reverse path filter of an interface by which packets may arrive although the route back takes
/// another one. It should not be strict while filters drop packets, and is never changed.
#[derive(Debug)]
pub struct DroppingFilter {
    filter: LooseFilter,
    dropped_before: u64,
}

impl DroppingFilter {
    /// Describes the filter of an interface. Filters had dropped so many packets at the start.
    pub fn new(interface: String, dropped_before: u64) -> Self {
        let filter = LooseFilter {
            interface,
            filters: None,
        };
        DroppingFilter {
            filter,
            dropped_before,
        }
    }

    /// Returns how many packets the filters of all interfaces have dropped.
    pub fn dropped() -> u64 {
        let text = fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default();
        counter(&text, "IPReversePathFilter").unwrap_or(0)
    }
}

impl Item for DroppingFilter {
    fn name(&self) -> String {
        self.filter.name()
    }

    fn interface(&self) -> Option<&str> {
        self.filter.interface()
    }

    fn examine(&self) -> Option<Problem> {
        let strict = self.filter.examine()?;
        (DroppingFilter::dropped() > self.dropped_before).then_some(strict)
    }
}

/// Returns a counter of a text with a line of names and one of values.
fn counter(text: &str, name: &str) -> Option<u64> {
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(known, _)| *known == name)?.1.parse().ok()
}

fn strict(interface: &str) -> Problem {
    Problem {
        what: format!(
            "interface {interface}: the reverse path filter is strict and drops packets that arrive on other paths than the \
             route back"
        ),
        advice: format!("run `sysctl -w net.ipv4.conf.{interface}.rp_filter=2`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_name() {
        let text = "TcpExt: A IPReversePathFilter\nTcpExt: 3 7\nIpExt: A\nIpExt: 9\n";
        assert_eq!(counter(text, "IPReversePathFilter"), Some(7));
        assert_eq!(counter(text, "B"), None);
        assert_eq!(counter("", "A"), None);
    }
}
