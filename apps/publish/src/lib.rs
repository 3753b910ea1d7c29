//! The publisher: plays a recording as if it were live and answers every request of a viewer with its newest frame.
//!
//! The protocol is described in `docs/design/pull.md`. Every frame is captured, sampled and encoded once, whoever
//! watches; each viewer has two threads and one mailbox, so a slow one skips frames and holds up nobody.
//!
//! ```no_run
//! use hawser_cloud::Level;
//! use hawser_io::media::Recording;
//! use hawser_publish::{Config, Publisher};
//! use std::sync::atomic::AtomicBool;
//!
//! let config = Config::new(Recording::synthetic(), Level::Hd);
//! let publisher = Publisher::open(&config)?;
//! println!("watch it with: hawser view {}", publisher.address());
//! publisher.run(&AtomicBool::new(false))?;
//! # Ok::<(), anyhow::Error>(())
//! ```

mod capture;
mod mailbox;
mod server;
mod transport;

pub use capture::Report;

use anyhow::{Context, ensure};
use capture::Capture;
use hawser_cloud::Level;
use hawser_io::media::{self, Recording};
use server::Server;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

/// The port of the pull protocol.
pub const DEFAULT_PORT: u16 = 14748;
/// Frames per second that are not exceeded unless asked for, as in the paper.
const DEFAULT_MAX_FPS: f64 = 30.0;

/// Stream a recording to viewers.
///
/// The recording is played forwards and backwards without end, as if it were captured now. Viewers ask for frames and
/// get the newest one; see `hawser view`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// A recording's description (TOML), or "synthetic" for a made-up performer
    #[arg(long, value_name = "FILE|synthetic")]
    recording: RecordingName,
    /// How many points a frame has at most: nfov (35,000), hd (94,000) or fhd (184,000)
    #[arg(long, default_value_t = Level::Fhd)]
    level: Level,
    /// Frames per second [default: the recording's, but not more than 30]
    #[arg(long)]
    fps: Option<f64>,
    /// Load at most this many frames of the recording (a frame takes 1.7 MB of memory at fhd)
    #[arg(long, value_name = "N", default_value_t = 300)]
    frames: usize,
    /// Where viewers connect; beyond this machine only when asked for
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)))]
    listen: SocketAddr,
    /// TCP congestion control
    #[arg(long, value_name = "NAME", default_value = "bbr")]
    congestion: String,
    /// Speak MPTCP with viewers that do; whoever does not is served over TCP
    #[arg(long)]
    mptcp: bool,
    /// Encode the recording before the stream begins, so that a frame costs no time: what the network carries, not the
    /// codec
    #[arg(long)]
    encode_ahead: bool,
    /// End after so many seconds [default: go on until interrupted]
    #[arg(long)]
    seconds: Option<f64>,
    /// Write every captured frame's number, time, points, bytes and digest to this CSV file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RecordingName {
    Synthetic,
    File(PathBuf),
}

impl FromStr for RecordingName {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(if name == "synthetic" {
            RecordingName::Synthetic
        } else {
            RecordingName::File(name.into())
        })
    }
}

/// What is published and where.
#[derive(Debug, Clone)]
pub struct Config {
    /// What is played.
    pub recording: Recording,
    /// How many points a frame has at most.
    pub level: Level,
    /// Frames per second.
    pub fps: f64,
    /// How many frames of the recording are loaded at most.
    pub max_frames: usize,
    /// Where viewers connect.
    pub listen: SocketAddr,
    /// The name of a TCP congestion control.
    pub congestion: String,
    /// Whether MPTCP is spoken with viewers that do.
    pub mptcp: bool,
    /// Whether every frame is encoded before the stream begins instead of when it is captured.
    pub encode_ahead: bool,
    /// When to end by itself.
    pub duration: Option<Duration>,
    /// A CSV file of captured frames.
    pub log: Option<PathBuf>,
}

impl Config {
    /// Publishes a recording on the loopback interface with every default.
    pub fn new(recording: Recording, level: Level) -> Self {
        Config {
            fps: recording.fps.min(DEFAULT_MAX_FPS),
            recording,
            level,
            max_frames: 300,
            listen: (Ipv4Addr::LOCALHOST, DEFAULT_PORT).into(),
            congestion: "bbr".to_owned(),
            mptcp: false,
            encode_ahead: false,
            duration: None,
            log: None,
        }
    }

    fn from_args(args: Args) -> anyhow::Result<Self> {
        let recording = match args.recording {
            RecordingName::Synthetic => Recording::synthetic(),
            RecordingName::File(path) => Recording::read(&path, &media::data_dir())?,
        };
        let defaults = Config::new(recording, args.level);
        let fps = args.fps.unwrap_or(defaults.fps);
        ensure!(
            (0.1..=240.0).contains(&fps),
            "--fps {fps} must be from 0.1 to 240"
        );
        let duration = args
            .seconds
            .map(Duration::try_from_secs_f64)
            .transpose()
            .context("--seconds")?;
        Ok(Config {
            fps,
            max_frames: args.frames,
            listen: args.listen,
            congestion: args.congestion,
            mptcp: args.mptcp,
            encode_ahead: args.encode_ahead,
            duration,
            log: args.log,
            ..defaults
        })
    }
}

/// Publishes as the command line says, until its time is over or SIGINT or SIGTERM arrives; SIGHUP does not end it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle signals")?;
    }
    let mut hangups = Signals::new([SIGHUP]).context("cannot handle signals")?;
    thread::spawn(move || {
        for _ in hangups.forever() {
            tracing::info!("nothing is read again: another recording or address needs a restart");
        }
    });
    let publisher = Publisher::open(&Config::from_args(args)?)?;
    println!("{}", publisher.run(&stop)?);
    Ok(())
}

/// A publisher that is ready: its recording is in memory and its address is bound.
pub struct Publisher {
    capture: Capture,
    listener: TcpListener,
    address: SocketAddr,
}

impl Publisher {
    /// Loads the recording and begins to listen; viewers that connect are served once it runs.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        let listener = transport::listen(config.listen, &config.congestion, config.mptcp)
            .with_context(|| format!("cannot listen on {}", config.listen))?;
        let address = listener
            .local_addr()
            .context("the listening socket has no address")?;
        let capture = Capture::open(config)?;
        Ok(Publisher {
            capture,
            listener,
            address,
        })
    }

    /// Where viewers connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Captures and serves until the configured duration is over or `stop` is set.
    pub fn run(self, stop: &AtomicBool) -> anyhow::Result<Report> {
        let server = Server::start(self.listener).context("cannot start to accept viewers")?;
        tracing::info!(address = %self.address, "publishing");
        self.capture.run(server, stop)
    }
}
