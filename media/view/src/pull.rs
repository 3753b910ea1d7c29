//! The viewer of the pull pair: requests frames from a publisher, decodes and verifies each one, and measures
//! quality of experience.
//!
//! ```no_run
//! use hawser_view::pull::{Config, watch};
//! use std::sync::atomic::AtomicBool;
//! use std::time::Duration;
//!
//! let config = Config { duration: Some(Duration::from_secs(10)), ..Config::new("127.0.0.1:14748") };
//! let summary = watch(&config, &AtomicBool::new(false))?;
//! println!("{summary}");
//! # Ok::<(), anyhow::Error>(())
//! ```

mod connection;
mod recorder;
mod report;
mod summary;
pub mod timeline;

pub use summary::Summary;

use crate::common::{CommonArgs, printed, stop_flag};
use crate::until::{Until, end_after};
use crate::{Failure, Pictures};
use anyhow::bail;
use connection::{Connection, Ended};
use hawser_codec::pull::MAX_IN_FLIGHT;
use recorder::Recorder;
use report::Report;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use std::{io, thread};

/// Default number of outstanding requests. A request waits at the publisher until a frame is
/// captured, so a viewer gets at most `in_flight` frames per round trip. Five are enough for 30
/// frames per second with a round-trip time of 120 ms and 40 ms to send a frame.
pub const DEFAULT_IN_FLIGHT: usize = 5;

/// Request the frames of `hawser serve`, and measure them
///
/// Requests one frame after the other from the publisher, decodes each one, compares it with the
/// digest of the captured frame, and prints a summary at the end. Fails if any frame differs or
/// none arrives. Frame delays compare the publisher's clock with this machine's clock: synchronize
/// both (NTP or PTP).
///
/// A file that cannot be written any more ends alone; watching goes on, and fails at the end.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example: hawser fetch publisher.example:14748")]
pub struct Args {
    /// The publisher, for example 192.0.2.7:14748
    #[arg(value_name = "HOST:PORT")]
    address: String,
    #[command(flatten)]
    common: CommonArgs,
    /// Write the times at which each frame was captured, requested, received and decoded to this
    /// CSV file
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Write the time and size of every read of the socket to this CSV file
    #[arg(long, value_name = "FILE")]
    arrivals: Option<PathBuf>,
    /// Number of outstanding requests; more sustain a higher frame rate over a longer round-trip
    /// time
    #[arg(long, value_name = "N", default_value_t = DEFAULT_IN_FLIGHT as u64,
        value_parser = clap::value_parser!(u64).range(1..=MAX_IN_FLIGHT as u64))]
    in_flight: u64,
    /// Use MPTCP if the publisher supports it: one subflow for each address that `ip mptcp
    /// endpoint` lists
    #[arg(long)]
    mptcp: bool,
}

/// The publisher that is watched, and the files that are written.
#[derive(Debug, Clone)]
pub struct Config {
    /// Host and port of the publisher.
    pub address: String,
    /// A CSV file of [`timeline::Row`]s.
    pub timeline: Option<PathBuf>,
    /// A CSV file of [`timeline::Arrival`]s.
    pub arrivals: Option<PathBuf>,
    /// A directory for PLY files.
    pub save: Option<PathBuf>,
    /// Pictures and videos of the frames.
    pub pictures: Pictures,
    /// The time after which to stop. Unlimited if `None`.
    pub duration: Option<Duration>,
    /// The number of frames after which to stop. Unlimited if `None`.
    pub frames: Option<u64>,
    /// Number of outstanding requests, 1 to [`MAX_IN_FLIGHT`].
    pub in_flight: usize,
    /// Whether MPTCP is used if the publisher supports it.
    pub mptcp: bool,
    /// The socket of the agent of this machine, to which the viewer reports what it experiences.
    pub report_to: Option<PathBuf>,
}

impl Config {
    /// Returns a configuration that watches until stopped and writes no files.
    pub fn new(address: impl Into<String>) -> Self {
        Config {
            address: address.into(),
            timeline: None,
            arrivals: None,
            save: None,
            pictures: Pictures::default(),
            duration: None,
            frames: None,
            in_flight: DEFAULT_IN_FLIGHT,
            mptcp: false,
            report_to: None,
        }
    }

    fn from_args(args: Args) -> anyhow::Result<Self> {
        Ok(Config {
            duration: args.common.duration()?,
            address: args.address,
            timeline: args.timeline,
            arrivals: args.arrivals,
            save: args.common.save,
            pictures: args.common.pictures,
            frames: args.common.frames,
            in_flight: args.in_flight as usize,
            mptcp: args.mptcp,
            report_to: args.common.report_to,
        })
    }
}

/// Watches as the command line says, until its duration is over or a signal arrives: SIGINT,
/// SIGTERM, or SIGHUP, which is sent when the terminal is closed.
pub fn run(args: Args) -> anyhow::Result<()> {
    let stop = stop_flag()?;
    let json = args.common.json;
    let config = Config::from_args(args)?;
    let print = |summary: &Summary| match json {
        true => hawser_service::print_json(&Report::from(summary)),
        false => hawser_service::print(&format!("{summary}\n")),
    };
    let summary = printed(watch(&config, &stop), print, |summary| summary.frames > 0)?;
    if summary.frames_damaged > 0 {
        bail!(
            "{} frames differ from the captured ones",
            summary.frames_damaged
        );
    }
    if summary.protocol_errors > 0 {
        bail!(
            "{} violated the protocol {} times",
            config.address,
            summary.protocol_errors
        );
    }
    if summary.frames == 0 {
        bail!("no frame arrived from {}", config.address);
    }
    Ok(())
}

/// Watches until the configured duration or number of frames is reached or `stop` is set.
/// Reconnects whenever the connection is lost.
///
/// Fails only if a file cannot be written, at the end if others can be. Errors of the publisher are counted in
/// the summary.
pub fn watch(config: &Config, stop: &AtomicBool) -> Result<Summary, Box<Failure<Summary>>> {
    let until = Until {
        stop,
        end: end_after(config.duration),
    };
    let mut recorder = Recorder::create(config)?;
    let mut pause = Pause::default();
    while !until.should_stop() {
        let frames_before = recorder.frames();
        let ended = watch_once(config, &mut recorder, &until)?;
        if recorder.frames() > frames_before {
            pause = Pause::default();
        }
        let (address, wait) = (&config.address, pause.0);
        match ended {
            Ended::Stopped => break,
            Ended::Protocol(error) => {
                recorder.protocol_error();
                tracing::error!(address, "{error}; reconnecting in {wait:?}");
            }
            Ended::Lost(error) => {
                tracing::warn!(address, "{error}; reconnecting in {wait:?}");
            }
        }
        pause.wait(&until);
    }
    recorder.finish()
}

/// Watches over one connection.
fn watch_once(
    config: &Config,
    recorder: &mut Recorder,
    until: &Until<'_>,
) -> anyhow::Result<Ended> {
    match Connection::open(config) {
        Ok(mut connection) => {
            recorder.connected();
            Ok(connection.watch(recorder, until))
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            bail!("\"{}\" is not HOST:PORT: {error}", config.address);
        }
        Err(error) => Ok(Ended::Lost(error)),
    }
}

/// The pause before reconnecting. It doubles after every connection that delivered no frame.
struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Pause(Duration::from_millis(100))
    }
}

impl Pause {
    const MAX: Duration = Duration::from_secs(2);

    fn wait(&mut self, until: &Until<'_>) {
        let end = Instant::now() + self.0;
        while Instant::now() < end && !until.should_stop() {
            thread::sleep(Duration::from_millis(20));
        }
        self.0 = (self.0 * 2).min(Self::MAX);
    }
}
