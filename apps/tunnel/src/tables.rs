//! Tables of nftables that this program makes, and makes again when somebody else changes or removes them.

use crate::device::run_with_input;
use crate::netlink::Changes;
use anyhow::{Context, Result, ensure};
use nix::sys::socket::SockProtocol;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{error, warn};

/// `linux/netfilter/nfnetlink.h`: `NFNLGRP_NFTABLES`, as a mask.
const NFTABLES_GROUP: u32 = 1 << 6;

/// How often tables are looked at although nothing was heard, and after they could not be made again.
const LOOK_ANYWAY: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(2);

/// The time between two looks, however often something changes.
const PAUSE: Duration = Duration::from_millis(100);

/// A table of the family `inet`. It stays in the kernel when this value goes.
#[derive(Debug)]
pub(crate) struct Table {
    name: String,
    /// None: it is not to be there.
    made: Mutex<Option<Made>>,
    restored: AtomicU64,
}

#[derive(Debug)]
struct Made {
    contents: String,
    /// As nftables shows it; none when it did not.
    listed: Option<String>,
}

impl Table {
    /// One that has not been made.
    pub(crate) fn named(name: String) -> Table {
        Table { name, made: Mutex::new(None), restored: AtomicU64::new(0) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Puts a table with `contents` in place of the one that may be there, in one step.
    pub(crate) fn make(&self, contents: String) -> Result<()> {
        let mut made = self.made();
        replace(&self.name, &contents)?;
        *made = Some(Made { listed: list(&self.name), contents });
        Ok(())
    }

    /// Removes it, if it is there.
    pub(crate) fn remove(&self) -> Result<()> {
        let mut made = self.made();
        *made = None;
        nft(&removal(&self.name))
    }

    /// How often it was made again because somebody else had changed or removed it.
    pub(crate) fn restored(&self) -> u64 {
        self.restored.load(Relaxed)
    }

    /// Makes it again unless it is as it was made.
    fn restore(&self) -> Result<()> {
        let mut made = self.made();
        let Some(made) = &mut *made else { return Ok(()) };
        let listed = list(&self.name);
        if listed.is_some() && listed == made.listed {
            return Ok(());
        }
        replace(&self.name, &made.contents)?;
        made.listed = list(&self.name);
        self.restored.fetch_add(1, Relaxed);
        warn!(
            table = self.name,
            "somebody changed or removed this table of nftables: it has been made again"
        );
        Ok(())
    }

    fn made(&self) -> MutexGuard<'_, Option<Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes tables again whenever they are not as they were made. Needs a runtime.
pub(crate) fn keep(tables: Vec<Arc<Table>>) -> Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    let changes = Changes::subscribe(SockProtocol::NetlinkNetFilter, NFTABLES_GROUP)
        .context("cannot hear of changes to nftables")?;
    tokio::spawn(async move {
        let mut look_anyway = LOOK_ANYWAY;
        loop {
            // That nothing was heard is as good a reason to look as that something was.
            let _ = timeout(look_anyway, changes.next(Duration::ZERO)).await;
            let kept = tables.clone();
            let restore = move || kept.iter().try_for_each(|table| table.restore());
            look_anyway = match spawn_blocking(restore).await {
                Ok(Ok(())) => LOOK_ANYWAY,
                Ok(Err(error)) => {
                    error!("a table of nftables that is gone cannot be made again: {error:#}");
                    RETRY
                }
                // The program ends.
                Err(_) => return,
            };
            sleep(PAUSE).await;
        }
    });
    Ok(())
}

/// The names of the tables of the family `inet`; none without nftables.
pub(crate) fn names() -> Vec<String> {
    let tables = ask(&["list", "tables", "inet"]).unwrap_or_default();
    tables.lines().filter_map(|line| line.trim().strip_prefix("table inet ").map(str::to_owned)).collect()
}

/// A table without its counters and without what is in its named sets.
fn list(name: &str) -> Option<String> {
    ask(&["--stateless", "--terse", "list", "table", "inet", name]).ok()
}

fn ask(arguments: &[&str]) -> Result<String> {
    let output = Command::new("nft").args(arguments).output().context("cannot run `nft`")?;
    ensure!(output.status.success(), "`nft`: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn replace(name: &str, contents: &str) -> Result<()> {
    nft(&format!("{}table inet {name} {{\n{contents}}}\n", removal(name)))
}

/// Adding a table that is there does nothing, so that the deletion never fails.
fn removal(name: &str) -> String {
    format!("add table inet {name}\ndelete table inet {name}\n")
}

fn nft(script: &str) -> Result<()> {
    run_with_input("nft", &["-f", "-"], "nftables", script)
}
