//! nftables tables that this program creates, and restores when another program changes or removes
//! them.

use crate::netlink::Changes;
use anyhow::{Context, Result, bail};
use hawser_io::kept::{Deviation, Item, Keeper, Problem};
use hawser_io::program::{self, ProgramError};
use nix::sys::socket::SockProtocol;
use parking_lot::Mutex;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::warn;

/// `linux/netfilter/nfnetlink.h`: `NFNLGRP_NFTABLES`, as a mask.
const NFTABLES_GROUP: u32 = 1 << 6;

/// The time after which `nft` is killed.
const NFT_LIMIT: Duration = Duration::from_secs(10);

/// The interval of checks without a notification, and the pause after a failed restoration.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(30);
pub(crate) const RETRY: Duration = Duration::from_secs(2);

/// The minimum time between two checks, however often something changes.
pub(crate) const MIN_CHECK_PAUSE: Duration = Duration::from_millis(100);

/// A table of the family `inet`. It stays in the kernel when this value is dropped.
#[derive(Debug)]
pub(crate) struct Table {
    name: String,
    /// None if the table should not exist.
    desired: Mutex<Option<Desired>>,
    /// Locked while the table is checked.
    keeper: Mutex<Keeper>,
    deviations: Mutex<Vec<Deviation>>,
    restored: AtomicU64,
    /// Whether it was already logged that nftables cannot list the table.
    unlisted: AtomicBool,
}

#[derive(Debug)]
struct Desired {
    contents: String,
    /// The table as nftables lists it; none if listing it failed.
    listing: Option<String>,
}

impl Table {
    /// Returns a table that has not been created yet.
    pub(crate) fn named(name: String) -> Table {
        Table {
            name,
            desired: Mutex::new(None),
            keeper: Mutex::default(),
            deviations: Mutex::default(),
            restored: AtomicU64::new(0),
            unlisted: AtomicBool::new(false),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Creates the table with `contents`, replacing any table of this name atomically.
    pub(crate) fn create(&self, contents: String) -> Result<()> {
        let mut desired = self.desired.lock();
        replace(&self.name, &contents)?;
        *desired = Some(Desired {
            listing: self.listing(),
            contents,
        });
        Ok(())
    }

    /// Removes the table if it exists.
    pub(crate) fn remove(&self) -> Result<()> {
        let mut desired = self.desired.lock();
        *desired = None;
        nft(&removal(&self.name))
    }

    /// Returns how often the table was restored after another program had changed or removed it.
    pub(crate) fn restored(&self) -> u64 {
        self.restored.load(Relaxed)
    }

    /// Returns the changes and removals by other programs.
    pub(crate) fn deviations(&self) -> Vec<Deviation> {
        self.deviations.lock().clone()
    }

    /// Restores the table unless it is unchanged. Returns the time after which to check again at
    /// the latest.
    fn check(&self) -> Duration {
        let mut desired = self.desired.lock();
        let mut keeper = self.keeper.lock();
        let Some(desired) = &mut *desired else {
            return CHECK_INTERVAL;
        };
        keeper.keep(&mut [Box::new(KeptTable {
            table: self,
            desired,
        })]);
        let deviations = keeper.deviations();
        let are_restored = deviations.iter().all(|found| found.restored);
        *self.deviations.lock() = deviations;
        if are_restored { CHECK_INTERVAL } else { RETRY }
    }

    /// Returns whether the table is unchanged, or, if it could not be listed before, whether it
    /// exists.
    fn is_unchanged(&self, listing: Option<&str>) -> Result<bool> {
        let Some(listing) = listing else {
            return exists(&self.name);
        };
        match list(&self.name) {
            Ok(now) => Ok(now == listing),
            Err(error) => match exists(&self.name)? {
                true => Err(error),
                false => Ok(false),
            },
        }
    }

    /// Lists the table after its creation. A failure is logged once.
    fn listing(&self) -> Option<String> {
        let listing = list(&self.name);
        if let Err(error) = &listing
            && !self.unlisted.swap(true, Relaxed)
        {
            warn!(
                table = self.name,
                "cannot list an nftables table: only its removal is noticed, not other changes: {error:#}"
            );
        }
        listing.ok()
    }
}

/// A table, which should be as it was created.
struct KeptTable<'a> {
    table: &'a Table,
    desired: &'a mut Desired,
}

impl Item for KeptTable<'_> {
    fn name(&self) -> String {
        format!("nftables table {}", self.table.name)
    }

    fn examine(&self) -> Option<Problem> {
        let what = match self.table.is_unchanged(self.desired.listing.as_deref()) {
            Ok(true) => return None,
            Ok(false) => "another program has changed or removed it".to_owned(),
            Err(error) => format!("it cannot be listed: {error:#}"),
        };
        Some(Problem {
            what: format!("{}: {what}", self.name()),
            advice: "look at the output of `nft list ruleset`".to_owned(),
        })
    }

    fn restore(&mut self) -> Result<bool, String> {
        let listing = self.desired.listing.as_deref();
        let is_unchanged = self.table.is_unchanged(listing);
        if is_unchanged.map_err(|error| format!("{error:#}"))? {
            return Ok(true);
        }
        replace(&self.table.name, &self.desired.contents).map_err(|error| format!("{error:#}"))?;
        self.desired.listing = self.table.listing();
        self.table.restored.fetch_add(1, Relaxed);
        Ok(true)
    }
}

/// Restores tables whenever they have been changed or removed. Must be called within a Tokio
/// runtime.
pub(crate) fn watch(tables: Vec<Arc<Table>>) -> Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    let changes = Changes::subscribe(SockProtocol::NetlinkNetFilter, NFTABLES_GROUP)
        .context("cannot subscribe to changes of nftables")?;
    tokio::spawn(restore(tables, changes));
    Ok(())
}

/// Restores the tables until the runtime shuts down.
async fn restore(tables: Vec<Arc<Table>>, changes: Changes) {
    loop {
        // Check first: changes made before the subscription are not reported.
        let checked = tables.clone();
        let check = move || {
            let checks = checked.iter().map(|table| table.check());
            checks.min().unwrap_or(CHECK_INTERVAL)
        };
        // Fails only while the runtime shuts down.
        let Ok(check_again) = spawn_blocking(check).await else {
            return;
        };
        sleep(MIN_CHECK_PAUSE).await;
        // A timeout is as good a reason to check as a notification.
        let _ = timeout(check_again, changes.next(Duration::ZERO)).await;
    }
}

/// Returns the names of the tables of the family `inet`; none without nftables.
pub(crate) fn names() -> Vec<String> {
    existing().unwrap_or_default()
}

fn exists(name: &str) -> Result<bool> {
    Ok(existing()?.iter().any(|known| known == name))
}

fn existing() -> Result<Vec<String>> {
    let tables = ask(&["list", "tables", "inet"])?;
    let name = |line: &str| line.trim().strip_prefix("table inet ").map(str::to_owned);
    Ok(tables.lines().filter_map(name).collect())
}

/// Lists a table without its counters and the contents of its named sets.
fn list(name: &str) -> Result<String> {
    ask(&["--stateless", "--terse", "list", "table", "inet", name])
}

fn ask(arguments: &[&str]) -> Result<String> {
    let output = program::output(Command::new("nft").args(arguments), "", NFT_LIMIT)?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

fn replace(name: &str, contents: &str) -> Result<()> {
    nft(&format!(
        "{}table inet {name} {{\n{contents}}}\n",
        removal(name)
    ))
}

/// Adding a table that exists has no effect, so the deletion never fails.
fn removal(name: &str) -> String {
    format!("add table inet {name}\ndelete table inet {name}\n")
}

/// Runs a script of `nft`. Its error output becomes the error.
fn nft(script: &str) -> Result<()> {
    let mut command = Command::new("nft");
    match program::output(command.args(["-f", "-"]), script, NFT_LIMIT) {
        Ok(_) => Ok(()),
        Err(error @ ProgramError::Missing { .. }) => {
            Err(error).context("install the package nftables")
        }
        Err(error) => bail!("{error}; its input was:\n{script}"),
    }
}
