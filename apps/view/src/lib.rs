//! The viewer: asks a publisher for frames, decodes and verifies each one, and measures what it experienced.
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

mod connection;
mod recorder;
mod summary;
pub mod timeline;

pub use summary::Summary;

use anyhow::{Context, bail};
use connection::{Connection, Ended};
use hawser_codec::pull::MAX_IN_FLIGHT;
use recorder::Recorder;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Frames asked for ahead. A request waits at the publisher until a frame is captured, so `in_flight` frames per round
/// trip are the most that a viewer gets: five are enough for 30 frames a second and 120 ms with 40 ms to send one.
pub const DEFAULT_IN_FLIGHT: usize = 5;

/// Watch a stream and measure it.
///
/// Asks the publisher for one frame after the other, decodes each, compares it with the digest of what was captured, and
/// ends with a summary. Fails when any frame differs or none arrives. Frame delays compare the publisher's clock with
/// this machine's: keep both on time (NTP or PTP).
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The publisher, for example 192.0.2.7:14748
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// Write when each frame was captured, asked for, received and decoded to this CSV file
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Write when how many bytes arrived to this CSV file, one line for every read of the socket
    #[arg(long, value_name = "FILE")]
    arrivals: Option<PathBuf>,
    /// Write each frame to this directory as frame-<capture time in ns>.ply, which makes it a PLY sequence
    #[arg(long, value_name = "DIRECTORY")]
    save: Option<PathBuf>,
    /// End after so many seconds [default: go on until interrupted]
    #[arg(long)]
    seconds: Option<f64>,
    /// End after so many frames
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// How many frames are asked for ahead; more carry a higher frame rate over a longer path
    #[arg(long, value_name = "N", default_value_t = DEFAULT_IN_FLIGHT as u64,
        value_parser = clap::value_parser!(u64).range(1..=MAX_IN_FLIGHT as u64))]
    in_flight: u64,
    /// Speak MPTCP if the publisher does: one subflow for each of the addresses that `ip mptcp endpoint` names
    #[arg(long)]
    mptcp: bool,
}

/// What is watched and what is written down.
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
    /// When to end by itself.
    pub duration: Option<Duration>,
    /// After how many frames to end by itself.
    pub frames: Option<u64>,
    /// Frames asked for ahead, 1 to [`MAX_IN_FLIGHT`].
    pub in_flight: usize,
    /// Whether MPTCP is spoken if the publisher does.
    pub mptcp: bool,
}

impl Config {
    /// Watches until stopped and writes nothing down.
    pub fn new(address: impl Into<String>) -> Self {
        Config {
            address: address.into(),
            timeline: None,
            arrivals: None,
            save: None,
            duration: None,
            frames: None,
            in_flight: DEFAULT_IN_FLIGHT,
            mptcp: false,
        }
    }

    fn from_args(args: Args) -> anyhow::Result<Self> {
        Ok(Config {
            address: args.address,
            timeline: args.timeline,
            arrivals: args.arrivals,
            save: args.save,
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

/// Watches as the command line says, until its time is over or SIGINT or SIGTERM arrives, or SIGHUP because its terminal was
/// closed.
pub fn run(args: Args) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle signals")?;
    }
    let config = Config::from_args(args)?;
    let summary = watch(&config, &stop)?;
    println!("{summary}");
    if summary.frames_damaged > 0 {
        bail!(
            "{} frames differ from what was captured",
            summary.frames_damaged
        );
    }
    if summary.protocol_errors > 0 {
        bail!(
            "{} sent what the protocol does not allow, {} times",
            config.address,
            summary.protocol_errors
        );
    }
    if summary.frames == 0 {
        bail!("no frame arrived from {}", config.address);
    }
    Ok(())
}

/// Watches until the configured duration or number of frames is reached or `stop` is set. Connects again whenever the publisher goes away.
///
/// Fails only when what is to be written down cannot be; what the publisher does wrong is in the summary.
pub fn watch(config: &Config, stop: &AtomicBool) -> anyhow::Result<Summary> {
    let until = Until {
        stop,
        end: config.duration.map(|duration| Instant::now() + duration),
    };
    let mut recorder = Recorder::create(config)?;
    let mut pause = Pause::default();
    while !until.is_over() {
        let ended = match Connection::open(config) {
            Ok(mut connection) => {
                recorder.connected();
                let frames_before = recorder.frames();
                let ended = connection.watch(&mut recorder, &until);
                if recorder.frames() > frames_before {
                    pause = Pause::default();
                }
                ended
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                bail!("\"{}\" is not HOST:PORT: {error}", config.address);
            }
            Err(error) => Ended::Lost(error),
        };
        match ended {
            Ended::Over => break,
            Ended::Unrecorded(error) => return Err(error),
            Ended::Protocol(error) => {
                recorder.protocol_error();
                tracing::error!(
                    address = config.address,
                    "{error}; connecting again in {:?}",
                    pause.0
                );
            }
            Ended::Lost(error) => {
                tracing::warn!(
                    address = config.address,
                    "{error}; connecting again in {:?}",
                    pause.0
                );
            }
        }
        pause.wait(&until);
    }
    recorder.finish()
}

/// How long to go on.
struct Until<'a> {
    stop: &'a AtomicBool,
    end: Option<Instant>,
}

impl Until<'_> {
    fn is_over(&self) -> bool {
        self.stop.load(Relaxed) || self.end.is_some_and(|end| Instant::now() >= end)
    }
}

/// How long to wait before connecting again: twice as long every time that brings no frame.
struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Pause(Duration::from_millis(100))
    }
}

impl Pause {
    const LONGEST: Duration = Duration::from_secs(2);

    fn wait(&mut self, until: &Until<'_>) {
        let end = Instant::now() + self.0;
        while Instant::now() < end && !until.is_over() {
            thread::sleep(Duration::from_millis(20));
        }
        self.0 = (self.0 * 2).min(Self::LONGEST);
    }
}

/// Nanoseconds since 1970, the clock that capture times are of.
fn unix_time_ns() -> u64 {
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("the clock stands after 1970");
    u64::try_from(since_1970.as_nanos()).expect("the clock stands before 2554")
}
