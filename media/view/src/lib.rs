//! The viewer: requests frames from a publisher, decodes and verifies each one, and measures
//! quality of experience. With [`push`], frames are received over UDP as the publisher sends them.
//!
//! ```no_run
//! use hawser_view::{Config, watch};
//! use std::sync::atomic::AtomicBool;
//! use std::time::Duration;
//!
//! let config = Config { duration: Some(Duration::from_secs(10)), ..Config::new("127.0.0.1:14748") };
//! let summary = watch(&config, &AtomicBool::new(false))?;
//! println!("{summary}");
//! # Ok::<(), anyhow::Error>(())
//! ```

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[path = "pull/connection.rs"]
mod connection;
mod failure;
mod files;
mod picture;
pub mod push;
#[path = "pull/recorder.rs"]
mod recorder;
mod report;
mod save;
#[path = "pull/summary.rs"]
mod summary;
mod table;
#[path = "pull/timeline.rs"]
pub mod timeline;

pub use failure::Failure;
pub use picture::{Drawn, Pictures};
pub use summary::Summary;

use anyhow::{Context, bail};
use connection::{Connection, Ended};
use hawser_codec::pull::MAX_IN_FLIGHT;
use push::{PushArgs, PushConfig, PushSummary};
use recorder::Recorder;
use report::{Pulled, Pushed};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// Default number of outstanding requests. A request waits at the publisher until a frame is
/// captured, so a viewer gets at most `in_flight` frames per round trip. Five are enough for 30
/// frames per second with a round-trip time of 120 ms and 40 ms to send a frame.
pub const DEFAULT_IN_FLIGHT: usize = 5;

/// Watch a stream and measure it
///
/// Requests one frame after the other from the publisher, decodes each one, compares it with the
/// digest of the captured frame, and prints a summary at the end. Fails if any frame differs or
/// none arrives. Frame delays compare the publisher's clock with this machine's clock: synchronize
/// both (NTP or PTP).
///
/// With --push, receives frames as the publisher sends them, encrypted, and shows each as far as it
/// has arrived in time. What was changed on the way is refused. Fails if none arrives or one cannot be
/// decoded. The clocks need not be synchronized: reports relate them.
///
/// A file that cannot be written any more ends alone; watching goes on, and fails at the end.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The publisher, for example 192.0.2.7:14748
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// Write the times at which each frame was captured, requested, received and decoded to this
    /// CSV file; with --push when it was captured, its first packet and the last of it arrived, and its
    /// decoding began and ended
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Write the time and size of every read of the socket to this CSV file
    #[arg(long, value_name = "FILE")]
    arrivals: Option<PathBuf>,
    /// Write each frame to this directory as frame-<capture time in ns>.ply, and a recording.toml with
    /// which `hawser publish` plays them again. The directory must not have an earlier recording
    #[arg(long, value_name = "DIRECTORY")]
    save: Option<PathBuf>,
    #[command(flatten)]
    pictures: Pictures,
    /// Exit after this many seconds [default: run until interrupted]
    #[arg(long)]
    seconds: Option<f64>,
    /// Exit after this many frames
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// Number of outstanding requests; more sustain a higher frame rate over a longer round-trip
    /// time
    #[arg(long, value_name = "N", default_value_t = DEFAULT_IN_FLIGHT as u64,
        value_parser = clap::value_parser!(u64).range(1..=MAX_IN_FLIGHT as u64))]
    in_flight: u64,
    /// Use MPTCP if the publisher supports it: one subflow for each address that `ip mptcp
    /// endpoint` lists
    #[arg(long)]
    mptcp: bool,
    /// Print the report at the end as one JSON object; docs/push.md explains it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    push: PushArgs,
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
        }
    }

    fn from_args(args: &Args) -> anyhow::Result<Self> {
        Ok(Config {
            address: args.address.clone(),
            timeline: args.timeline.clone(),
            arrivals: args.arrivals.clone(),
            save: args.save.clone(),
            pictures: args.pictures.clone(),
            duration: args
                .seconds
                .map(Duration::try_from_secs_f64)
                .transpose()
                .context("--seconds")?,
            frames: args.frames,
            in_flight: args.in_flight as usize,
            mptcp: args.mptcp,
        })
    }
}

/// Watches as the command line says, until its duration is over or a signal arrives: SIGINT,
/// SIGTERM, or SIGHUP, which is sent when the terminal is closed.
pub fn run(args: Args) -> anyhow::Result<()> {
    let stop = hawser_service::stop_flag_of(&[SIGINT, SIGTERM, SIGHUP])?;
    if args.push.push {
        return run_push(&args, &stop);
    }
    let config = Config::from_args(&args)?;
    let print = |summary: &Summary| match args.json {
        true => hawser_service::print_json(&Pulled::from(summary)),
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

/// Returns the end of a viewing that begins now. One that is never reached is none.
fn end_after(duration: Option<Duration>) -> Option<Instant> {
    Instant::now().checked_add(duration?)
}

/// Prints the summary: if watching has failed, that of one that shows something.
fn printed<S>(
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

fn run_push(args: &Args, stop: &AtomicBool) -> anyhow::Result<()> {
    let key = args.push.key.source();
    let key = key.context("--push needs --key or --track")?;
    let common = Config::from_args(args)?;
    let config = PushConfig {
        layers: args.push.layers,
        encoding: args.push.encoding,
        layers_unseen: args.push.layers_unseen,
        poses: args.push.poses.clone(),
        max_points: args.push.max_points as usize,
        metrics: args.push.metrics,
        timeline: common.timeline,
        save: common.save,
        pictures: common.pictures,
        duration: common.duration,
        frames: common.frames,
        ..PushConfig::new(common.address, key)
    };
    let watched = push::watch(&config, stop);
    let print = |summary: &PushSummary| match args.json {
        true => hawser_service::print_json(&Pushed::from(summary)),
        false => hawser_service::print(&format!("{summary}\n")),
    };
    let summary = printed(watched, print, |summary| summary.decoded.frames > 0)?;
    let damaged = summary.decoded.damaged;
    if damaged.total() > 0 {
        bail!("frames: {damaged}");
    }
    if summary.decoded.frames == 0 {
        let narrow = summary.narrow_path().map(|narrow| format!("; {narrow}"));
        bail!(
            "no frame arrived from {}{}",
            config.address,
            narrow.unwrap_or_default()
        );
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

/// The conditions under which watching stops.
struct Until<'a> {
    stop: &'a AtomicBool,
    end: Option<Instant>,
}

impl Until<'_> {
    fn should_stop(&self) -> bool {
        self.stop.load(Relaxed) || self.end.is_some_and(|end| Instant::now() >= end)
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
