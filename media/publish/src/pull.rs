//! The publisher of the pull pair: plays a recording in real time and answers every request of a viewer with
//! the newest frame.
//!
//! The protocol of requests is described in `docs/design/pull.md`. Every frame is captured, sampled and encoded
//! once for all viewers. Each viewer has two threads and one mailbox, so a slow viewer skips frames
//! and does not delay the others.
//!
//! ```no_run
//! use hawser_cloud::Level;
//! use hawser_recording::Recording;
//! use hawser_publish::pull::{Config, Publisher};
//! use std::sync::atomic::AtomicBool;
//!
//! let config = Config::new(Recording::synthetic(), Level::Hd);
//! let publisher = Publisher::open(&config)?;
//! println!("watch it with: hawser fetch {}", publisher.address());
//! publisher.run(&AtomicBool::new(false))?;
//! # Ok::<(), anyhow::Error>(())
//! ```

mod capture;
mod mailbox;
mod server;
mod transport;

pub use capture::Report;

use crate::common::{self, Common, CommonArgs, DEFAULT_MAX_FPS, DEFAULT_PORT};
use anyhow::Context;
use capture::Capture;
use hawser_cloud::Level;
use hawser_io::peer::parse_address;
use hawser_recording::Recording;
use server::Server;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Play a recording to viewers that request frames, over TCP
///
/// The recording is played in a loop, in real time. Viewers request frames and get
/// the newest one, unencrypted; see `hawser fetch`. docs/push.md says when to use this and when `hawser publish`.
/// SIGHUP has no effect.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example: hawser serve --recording synthetic")]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Address and port to listen on; other machines can connect only if this is not a loopback
    /// address
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)), value_parser = parse_address)]
    listen: SocketAddr,
    /// Maximum number of frames of the recording to load (a frame takes 1.7 MB of memory at fhd)
    #[arg(long, value_name = "N", default_value_t = 300)]
    frames: usize,
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
    /// Write every captured frame's number, time, points, bytes and digest to this CSV file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
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
        let common = Common::from_args(&args.common)?;
        Ok(Config {
            fps: common.fps,
            max_frames: args.frames,
            listen: args.listen,
            congestion: args.congestion,
            mptcp: args.mptcp,
            encode_ahead: args.encode_ahead,
            duration: common.duration,
            log: args.log,
            ..Config::new(common.recording, common.level)
        })
    }
}

/// Publishes with the options of the command line, until the duration is over or SIGINT or SIGTERM arrives.
/// SIGHUP has no effect.
pub fn run(args: Args) -> anyhow::Result<()> {
    let stop = common::stop_flag()?;
    let publisher = Publisher::open(&Config::from_args(args)?)?;
    hawser_service::print(&format!("{}\n", publisher.run(&stop)?))?;
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
        if config.recording.audio.is_some() {
            tracing::warn!("frames that are requested have no sound");
        }
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
