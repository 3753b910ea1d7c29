//! Tables of nftables that this program makes, and makes again when somebody else changes or removes them.

use crate::device::run_with_input;
use crate::netlink::Changes;
use anyhow::{Context, Result, ensure};
use nix::sys::socket::SockProtocol;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
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

/// The least time after a table was made again until that is done once more: another program that keeps a table of the same
/// name does not make this one replace it all the time.
const RESTORE_PAUSE: Duration = Duration::from_secs(1);

/// A table of the family `inet`. It stays in the kernel when this value goes.
#[derive(Debug)]
pub(crate) struct Table {
    name: String,
    /// None: it is not to be there.
    made: Mutex<Option<Made>>,
    restored: AtomicU64,
    /// Whether the log says that nftables does not show it.
    unlisted: AtomicBool,
}

#[derive(Debug)]
struct Made {
    contents: String,
    /// As nftables shows it; none when it did not.
    listed: Option<String>,
    restored_at: Option<Instant>,
    /// Why it could not be looked at or made again the last time, if so.
    failure: Option<String>,
}

impl Table {
    /// One that has not been made.
    pub(crate) fn named(name: String) -> Table {
        Table {
            name,
            made: Mutex::new(None),
            restored: AtomicU64::new(0),
            unlisted: AtomicBool::new(false),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Puts a table with `contents` in place of the one that may be there, in one step.
    pub(crate) fn make(&self, contents: String) -> Result<()> {
        let mut made = self.made();
        replace(&self.name, &contents)?;
        *made = Some(Made {
            listed: self.listed(),
            contents,
            restored_at: None,
            failure: None,
        });
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

    /// Makes it again unless it is as it was made. Returns when to look again at the latest.
    fn look(&self) -> Duration {
        let mut made = self.made();
        let Some(made) = &mut *made else {
            return LOOK_ANYWAY;
        };
        match self.restore(made) {
            Ok(look_again) => {
                made.failure = None;
                look_again
            }
            Err(error) => {
                let failure = format!("{error:#}");
                if made.failure.as_ref() != Some(&failure) {
                    error!(
                        table = self.name,
                        "this table of nftables may be gone and cannot be made again: {failure}"
                    );
                }
                made.failure = Some(failure);
                RETRY
            }
        }
    }

    fn restore(&self, made: &mut Made) -> Result<Duration> {
        if self.is_as_made(made.listed.as_deref())? {
            return Ok(LOOK_ANYWAY);
        }
        if let Some(wait) = made
            .restored_at
            .and_then(|at| RESTORE_PAUSE.checked_sub(at.elapsed()))
        {
            return Ok(wait);
        }
        replace(&self.name, &made.contents)?;
        made.restored_at = Some(Instant::now());
        made.listed = self.listed();
        self.restored.fetch_add(1, Relaxed);
        warn!(
            table = self.name,
            "somebody changed or removed this table of nftables: it has been made again"
        );
        Ok(LOOK_ANYWAY)
    }

    /// Whether it is as it was made, or at least there where nftables did not show it.
    fn is_as_made(&self, listed: Option<&str>) -> Result<bool> {
        let Some(listed) = listed else {
            return is_there(&self.name);
        };
        match list(&self.name) {
            Ok(now) => Ok(now == listed),
            Err(error) => match is_there(&self.name)? {
                true => Err(error),
                false => Ok(false),
            },
        }
    }

    /// As nftables shows it, now that it has been made.
    fn listed(&self) -> Option<String> {
        let listed = list(&self.name);
        if let Err(error) = &listed
            && !self.unlisted.swap(true, Relaxed)
        {
            warn!(
                table = self.name,
                "nftables does not show this table: only its removal is noticed, other changes are not: {error:#}"
            );
        }
        listed.ok()
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
        loop {
            // First of all: changes from before the subscription are not heard of.
            let kept = tables.clone();
            let look = move || {
                kept.iter()
                    .map(|table| table.look())
                    .min()
                    .unwrap_or(LOOK_ANYWAY)
            };
            // It fails when the program ends.
            let Ok(look_again) = spawn_blocking(look).await else {
                return;
            };
            sleep(PAUSE).await;
            // That nothing was heard is as good a reason to look as that something was.
            let _ = timeout(look_again, changes.next(Duration::ZERO)).await;
        }
    });
    Ok(())
}

/// The names of the tables of the family `inet`; none without nftables.
pub(crate) fn names() -> Vec<String> {
    known().unwrap_or_default()
}

fn is_there(name: &str) -> Result<bool> {
    Ok(known()?.iter().any(|known| known == name))
}

fn known() -> Result<Vec<String>> {
    let tables = ask(&["list", "tables", "inet"])?;
    let name = |line: &str| line.trim().strip_prefix("table inet ").map(str::to_owned);
    Ok(tables.lines().filter_map(name).collect())
}

/// A table without its counters and without what is in its named sets.
fn list(name: &str) -> Result<String> {
    ask(&["--stateless", "--terse", "list", "table", "inet", name])
}

fn ask(arguments: &[&str]) -> Result<String> {
    let output = Command::new("nft")
        .args(arguments)
        .output()
        .context("cannot run `nft`")?;
    ensure!(
        output.status.success(),
        "`nft`: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn replace(name: &str, contents: &str) -> Result<()> {
    nft(&format!(
        "{}table inet {name} {{\n{contents}}}\n",
        removal(name)
    ))
}

/// Adding a table that is there does nothing, so that the deletion never fails.
fn removal(name: &str) -> String {
    format!("add table inet {name}\ndelete table inet {name}\n")
}

fn nft(script: &str) -> Result<()> {
    run_with_input("nft", &["-f", "-"], "nftables", script)
}
