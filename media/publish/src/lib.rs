//! The publisher: plays a recording in real time and answers every request of a viewer with
//! the newest frame.
//!
//! With [`push`], frames are pushed over UDP instead, at the rate that each viewer's path bears.
//!
//! The protocol of requests is described in `docs/design/pull.md`. Every frame is captured, sampled and encoded
//! once for all viewers. Each viewer has two threads and one mailbox, so a slow viewer skips frames
//! and does not delay the others.
//!
//! ```no_run
//! use hawser_cloud::Level;
//! use hawser_recording::Recording;
//! use hawser_publish::{Config, Publisher};
//! use std::sync::atomic::AtomicBool;
//!
//! let config = Config::new(Recording::synthetic(), Level::Hd);
//! let publisher = Publisher::open(&config)?;
//! println!("watch it with: hawser view {}", publisher.address());
//! publisher.run(&AtomicBool::new(false))?;
//! # Ok::<(), anyhow::Error>(())
//! ```

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[path = "pull/capture.rs"]
mod capture;
mod lines;
#[path = "pull/mailbox.rs"]
mod mailbox;
pub mod push;
#[path = "pull/server.rs"]
mod server;
mod ticks;
#[path = "pull/transport.rs"]
mod transport;

pub use capture::Report;
pub use push::generate_secret;

use anyhow::{Context, ensure};
use capture::Capture;
use hawser_cloud::Level;
use hawser_io::peer::parse_address;
use hawser_recording::Recording;
use push::{PushArgs, PushConfig, PushPublisher};
use server::Server;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

/// The port of the publisher: TCP for requests, UDP for push.
pub const DEFAULT_PORT: u16 = 14748;
/// Maximum of the default frame rate, frames per second, as in the paper.
const DEFAULT_MAX_FPS: f64 = 30.0;

/// Stream a recording to viewers
///
/// The recording is played in a loop, in real time. Viewers request frames and get
/// the newest one; see `hawser view`. With --push they are sent every frame over UDP, encrypted, at
/// the rate that the path of each bears.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Description of the recording (TOML), or "synthetic" for a generated performer
    #[arg(long, value_name = "FILE|synthetic")]
    recording: RecordingName,
    /// Maximum number of points per frame: nfov (35,000), hd (94,000) or fhd (184,000)
    #[arg(long, default_value_t = Level::Fhd)]
    level: Level,
    /// Frames per second [default: those of the recording, up to 30]
    #[arg(long)]
    fps: Option<f64>,
    /// Maximum number of frames of the recording to load (a frame takes 1.7 MB of memory at fhd)
    #[arg(long, value_name = "N", default_value_t = 300)]
    frames: usize,
    /// Address and port to listen on; other machines can connect only if this is not a loopback
    /// address
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)), value_parser = parse_address)]
    listen: SocketAddr,
    /// Name of the TCP congestion control
    #[arg(long, value_name = "NAME", default_value = "bbr")]
    congestion: String,
    /// Use MPTCP with viewers that support it, and TCP with the others
    #[arg(long)]
    mptcp: bool,
    /// Encode the recording before the stream starts, so that frames take no time to encode:
    /// measures the network, not the codec
    #[arg(long)]
    encode_ahead: bool,
    /// Exit after this many seconds [default: run until interrupted]
    #[arg(long)]
    seconds: Option<f64>,
    /// Write every captured frame's number, time, points, bytes and digest to this CSV file; with
    /// --push its time, points, target, bytes and the time that encoding took
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    push: PushArgs,
}

/// The validated options that both kinds of publisher have.
struct Common {
    recording: Recording,
    level: Level,
    fps: f64,
    listen: SocketAddr,
    duration: Option<Duration>,
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

/// The recording that is published, and the parameters of the stream.
#[derive(Debug, Clone)]
pub struct Config {
    /// The recording that is played.
    pub recording: Recording,
    /// Maximum number of points per frame.
    pub level: Level,
    /// Frames per second.
    pub fps: f64,
    /// Maximum number of frames of the recording to load.
    pub max_frames: usize,
    /// The address on which to listen.
    pub listen: SocketAddr,
    /// The name of the TCP congestion control.
    pub congestion: String,
    /// Whether MPTCP is used with viewers that support it.
    pub mptcp: bool,
    /// Whether all frames are encoded before the stream starts, instead of when they are captured.
    pub encode_ahead: bool,
    /// The time after which to stop. Unlimited if `None`.
    pub duration: Option<Duration>,
    /// A CSV file of captured frames.
    pub log: Option<PathBuf>,
}

impl Config {
    /// Returns a configuration that publishes a recording on the loopback interface with default
    /// parameters.
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
        let common = Common::from_args(&args)?;
        Ok(Config {
            fps: common.fps,
            max_frames: args.frames,
            listen: common.listen,
            congestion: args.congestion,
            mptcp: args.mptcp,
            encode_ahead: args.encode_ahead,
            duration: common.duration,
            log: common.log,
            ..Config::new(common.recording, common.level)
        })
    }
}

impl Common {
    fn from_args(args: &Args) -> anyhow::Result<Self> {
        let recording = match &args.recording {
            RecordingName::Synthetic => Recording::synthetic(),
            RecordingName::File(path) => Recording::read(path, &hawser_recording::data_dir())?,
        };
        let fps = args.fps.unwrap_or(recording.fps.min(DEFAULT_MAX_FPS));
        ensure!(
            (0.1..=240.0).contains(&fps),
            "--fps {fps} must be from 0.1 to 240"
        );
        say_rate(&recording, fps);
        let duration = args
            .seconds
            .map(Duration::try_from_secs_f64)
            .transpose()
            .context("--seconds")?;
        Ok(Common {
            recording,
            level: args.level,
            fps,
            listen: args.listen,
            duration,
            log: args.log.clone(),
        })
    }
}

/// Logs if the recording is played at another rate than that of its capture.
fn say_rate(recording: &Recording, fps: f64) {
    let of_recording = recording.fps;
    if recording.is_live() || of_recording == fps {
        return;
    }
    if of_recording > fps {
        tracing::info!(
            fps,
            of_recording,
            "frames of the recording are left out to play it in real time; --fps raises the rate"
        );
    } else {
        tracing::warn!(
            fps,
            of_recording,
            "the recording is played faster than it was captured"
        );
    }
}

/// Returns the context of an error, with the value of `$HAWSER_DATA`.
fn with_data_dir(error: &str) -> String {
    let data_dir = hawser_recording::data_dir();
    format!("{error} ($HAWSER_DATA stands for {})", data_dir.display())
}

/// Publishes with the options of the command line, until the duration is over or SIGINT or SIGTERM arrives.
/// SIGHUP is ignored.
pub fn run(args: Args) -> anyhow::Result<()> {
    let stop = hawser_service::stop_flag()?;
    let mut hangups = Signals::new([SIGHUP]).context("cannot handle signals")?;
    thread::spawn(move || {
        for _ in hangups.forever() {
            tracing::info!("SIGHUP ignored: another recording or address needs a restart");
        }
    });
    if args.push.push {
        let common = Common::from_args(&args)?;
        let publisher = PushPublisher::open(&PushConfig::from_args(args.push, common)?)?;
        let ran = publisher.run(&stop);
        let report = ran.as_ref().unwrap_or_else(|failure| &failure.report);
        hawser_service::print(&format!("{report}\n"))?;
        ran?;
    } else {
        let publisher = Publisher::open(&Config::from_args(args)?)?;
        hawser_service::print(&format!("{}\n", publisher.run(&stop)?))?;
    }
    Ok(())
}

/// A publisher whose recording is loaded and whose address is bound.
pub struct Publisher {
    capture: Capture,
    listener: TcpListener,
    address: SocketAddr,
}

impl Publisher {
    /// Loads the recording and listens. Viewers that connect are served once [`Publisher::run`] is
    /// called.
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

    /// Returns the address on which the publisher listens.
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
