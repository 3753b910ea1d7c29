//! The death of the leader, and what follows.

use super::process::Access;
use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill as signal};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// Returns the name of the controller that decides.
pub(super) async fn leader(access: &Access) -> Result<String> {
    let version = access.operator()?.version().await?;
    version.leader.context("no controller decides")
}

/// Kills a controller with SIGKILL.
pub(super) fn kill(access: &Access, name: &str) -> Result<()> {
    let id = access.process_id(name);
    let id = id.with_context(|| format!("there is no controller {name}"))?;
    signal(Pid::from_raw(i32::try_from(id)?), Signal::SIGKILL)
        .with_context(|| format!("cannot kill {name}"))
}

/// Waits until another controller decides. Returns how long it took.
pub(super) async fn next_leader(
    access: &Access,
    before: &str,
    timeout: Duration,
) -> Result<Duration> {
    let (operator, began) = (access.operator()?, Instant::now());
    while began.elapsed() < timeout {
        let leader = operator.version().await?.leader;
        if leader.is_some_and(|leader| leader != before) {
            return Ok(began.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("no other controller decided within {timeout:?}")
}

/// Returns the number of losses of nodes that were reported.
pub(super) async fn nodes_lost(access: &Access) -> Result<usize> {
    let operator = access.operator()?;
    let events = operator.events(0).all().await?;
    let lost = events.iter().filter(|event| event.kind == "node_lost");
    Ok(lost.count())
}
