//! The parts that both kinds of viewer have.

use crate::{Failure, Pictures};
use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CommonArgs {
    /// Write each frame to this directory as frame-<capture time in ns>.ply, and a recording.toml with
    /// which `hawser publish` plays them again. The directory must not have an earlier recording
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) save: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) pictures: Pictures,
    /// Exit after this many seconds [default: run until interrupted]
    #[arg(long)]
    seconds: Option<f64>,
    /// Exit after this many frames
    #[arg(long, value_name = "N")]
    pub(crate) frames: Option<u64>,
    /// Report every second, at this socket of the agent of this machine, how many frames were late, stalls and the delay,
    /// so that the stream is helped: docs/agent.md
    #[arg(long, value_name = "SOCKET")]
    pub(crate) report_to: Option<PathBuf>,
    /// Print the report at the end as one JSON object; docs/push.md explains it
    #[arg(long)]
    pub(crate) json: bool,
}

impl CommonArgs {
    /// Returns the time after which to stop.
    pub(crate) fn duration(&self) -> anyhow::Result<Option<Duration>> {
        let duration = self.seconds.map(Duration::try_from_secs_f64);
        duration.transpose().context("--seconds")
    }
}

/// Returns the flag that signals set: SIGINT, SIGTERM, and SIGHUP, which is sent when the terminal is closed.
pub(crate) fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    hawser_service::stop_flag_of(&[SIGINT, SIGTERM, SIGHUP])
}

/// Prints the summary: if watching has failed, that of one that shows something.
pub(crate) fn printed<S>(
    watched: Result<S, Box<Failure<S>>>,
    print: impl Fn(&S) -> anyhow::Result<bool>,
    shows: impl Fn(&S) -> bool,
) -> anyhow::Result<S>
where
    S: fmt::Debug + Send + Sync + 'static,
{
    let summary = match &watched {
        Ok(summary) => Some(summary),
        Err(failure) => failure.summary.as_ref().filter(|summary| shows(summary)),
    };
    if let Some(summary) = summary {
        print(summary)?;
    }
    Ok(watched?)
}
