//! The publisher: plays a recording in real time and sends every frame over UDP, encrypted, at the rate that
//! each viewer's path bears. With [`pull`], viewers request frames over TCP instead.
//!
//! One thread plays the recording and encodes frames at the target of the rate control; another one
//! has the socket, the sessions and the pacer. `docs/design/media.md` describes the packets.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod broadcast;
mod capture;
mod common;
mod encode;
mod lines;
mod log;
mod metrics;
mod network;
mod options;
mod playing;
pub mod pull;
mod report;
mod sound;
mod ticks;
#[cfg(feature = "moq")]
mod web;
#[cfg(not(feature = "moq"))]
#[path = "without_web.rs"]
mod web;

pub use common::DEFAULT_PORT;
pub use encode::{EncodedFrame, Encoders, payload};
pub use options::{Args, CodecName, Config, WebConfig};
pub use report::{Failure, Report};

use anyhow::Context;
use broadcast::Broadcast;
use capture::Capture;
use common::with_data_dir;
use hawser_io::clock::SteadyClock;
use hawser_io::key_file;
use hawser_io::udp::UdpSocket;
use hawser_keys::{Keyring, TrackRole};
use hawser_recording::{Audio, Player, Sound};
use metrics::Figures;
use network::Network;
use parking_lot::Mutex;
use playing::{Leading, Playing};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::thread;
use web::Web;

/// Writes a new secret of a broadcast to a file that must not exist yet. Only the owner can read it.
pub fn generate_secret(path: &Path) -> io::Result<()> {
    key_file::generate_media(path)
}

/// Publishes with the options of the command line, until the duration is over or SIGINT or SIGTERM arrives.
/// SIGHUP has no effect.
pub fn run(args: Args) -> anyhow::Result<()> {
    let stop = common::stop_flag()?;
    let publisher = Publisher::open(&Config::from_args(args)?)?;
    let ran = publisher.run(&stop);
    let report = ran.as_ref().unwrap_or_else(|failure| &failure.report);
    hawser_service::print(&format!("{report}\n"))?;
    ran?;
    Ok(())
}

/// A publisher whose recording is open and whose address is bound.
pub struct Publisher {
    capture: Capture,
    network: Network,
    sound: Option<sound::Player>,
    address: SocketAddr,
    metrics: Option<SocketAddr>,
}

impl Publisher {
    /// Opens the recording and the socket.
    ///
    /// # Errors
    /// If the recording cannot be played with this codec, an address is not free, the key file is not
    /// valid, or the controller does not let this node publish.
    ///
    /// With a page ([`Config::web`]), its link is printed, which has the secret.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        let (keyring, secret) = Keyring::open(&config.key, TrackRole::Writer)?;
        let mut player = config
            .recording
            .open_looped()
            .with_context(|| with_data_dir("cannot open the recording"))?;
        let first = player
            .next_frame()?
            .context("the recording has no frames")?;
        let mut encoders = Encoders::new(config.codec, &first)?;
        if config.has_small {
            encoders = encoders.with_small(config.codec, &first)?;
        }
        let mut socket = UdpSocket::bind(config.listen)
            .with_context(|| format!("cannot listen on {} (UDP)", config.listen))?;
        let address = socket
            .local_address()
            .context("the socket has no address")?;
        let departure_times = network::allow_departure_times(&mut socket);
        let clock = SteadyClock::start();
        let sound = open_sound(config, &player)?;
        let mut tracks = encoders.tracks(broadcast::timing(config));
        if sound.is_some() {
            broadcast::add_sound(&mut tracks, config)?;
        }
        let broadcast = Broadcast::new(config, tracks, keyring, address, departure_times);
        let publication = broadcast.publication(&secret)?;
        let web = config.web.as_ref().map(Web::open).transpose()?;
        if let Some(web) = &web {
            web.print_link(&secret)?;
        }
        let (messages, camera) = channel();
        let figures: Arc<Mutex<Figures>> = Arc::default();
        let metrics = config.metrics;
        let metrics = metrics.map(|address| metrics::serve(address, &figures));
        let metrics = metrics.transpose()?;
        let figures = metrics.map(|_| figures);
        let network = Network::new(
            config,
            clock,
            socket,
            (broadcast, publication),
            camera,
            (figures, web),
        )?;
        let playing: Arc<Playing> = Arc::default();
        let sound = sound.map(|sound| sound::Player {
            clock,
            sound,
            playing: Arc::clone(&playing),
            messages: messages.clone(),
            waker: network.waker(),
        });
        let ends = (network.sender(messages), Leading(playing));
        let capture = Capture::new(config, clock, player, encoders, ends)?;
        Ok(Publisher {
            capture,
            network,
            sound,
            address,
            metrics,
        })
    }

    /// Returns the address on which the publisher listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address at which metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Captures and sends until the configured duration is over or `stop` is set.
    ///
    /// # Errors
    /// If a frame cannot be read or encoded, or a file cannot be written. The error has the counts of the run.
    pub fn run(self, stop: &AtomicBool) -> Result<Report, Box<Failure>> {
        let Publisher {
            capture,
            network,
            sound,
            ..
        } = self;
        tracing::info!(address = %self.address, "publishing by push");
        let (captured, sent) = thread::scope(|scope| {
            let capture = scope.spawn(|| capture.run(stop));
            if let Some(sound) = sound {
                scope.spawn(|| sound.run());
            }
            let sent = network.run();
            (capture.join().expect("the capture does not panic"), sent)
        });
        let ((captured, mut errors), (sent, of_network)) = (captured, sent);
        errors.extend(of_network);
        let report = Report { captured, sent };
        match errors.is_empty() {
            true => Ok(report),
            false => Err(Box::new(Failure { report, errors })),
        }
    }
}

/// Opens the sound of a recording, if it has some.
fn open_sound(config: &Config, player: &Player) -> anyhow::Result<Option<Sound>> {
    let recording = &config.recording;
    let Some(audio) = &recording.audio else {
        return Ok(None);
    };
    let is_faster = recording.step(config.fps) * config.fps > recording.fps * 1.001;
    if is_faster && matches!(audio, Audio::Recorded(_)) {
        tracing::warn!(
            "the recording is played faster than it was captured, and so without its sound"
        );
        return Ok(None);
    }
    let sound = Sound::open(audio, player.pass());
    let sound = sound.with_context(|| with_data_dir("cannot open the sound"))?;
    Ok(Some(sound))
}
