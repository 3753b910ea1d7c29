//! Watches a broadcast that is pushed over UDP.
//!
//! One thread has the socket and the session; another one decodes. What neither has time for is
//! counted, not waited for.

mod ahead;
mod attention;
mod decode;
mod metrics;
mod network;
mod poses;
mod record;
mod row;
mod session;
mod summary;
mod tracks;
mod viewpoint;

pub use row::PushRow;
pub use summary::{Damaged, Decoded, Looked, PushSummary, Received};

use crate::{Failure, Pictures, Until};
use decode::{Decoding, Extents};
use hawser_io::clock::SteadyClock;
use hawser_io::peer::PeerAddresses;
use hawser_keys::{KeyArgs, KeySource, Keyring, TrackRole};
use hawser_metrics::server::parse_loopback;
use metrics::DecodedFrames;
use network::Network;
use parking_lot::Mutex;
use record::Recorder;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use viewpoint::Viewpoint;

/// The default number of points that all tracks of a frame may have together: 16 of the largest clouds, or
/// 8 views of 1920 x 1080 pixels. They take 160 MB as points.
pub const DEFAULT_MAX_POINTS: usize = 1 << 24;

/// Options of `hawser view --push`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Push")]
pub struct PushArgs {
    /// Watch a broadcast that is pushed over UDP; see `hawser publish --push`
    #[arg(long, requires = "secret", conflicts_with_all = ["in_flight", "mptcp", "arrivals"])]
    pub push: bool,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// Number of layers of every track to receive; fewer take less of a slow path
    #[arg(long, value_name = "N", requires = "push", default_value_t = 8,
        value_parser = clap::value_parser!(u8).range(1..=8))]
    pub layers: u8,
    /// Encoding of each camera to receive, if the stream has several: `auto` leaves the choice to the relay
    #[arg(long, value_enum, requires = "push", default_value_t = EncodingName::Auto)]
    pub encoding: EncodingName,
    /// Number of layers of every track to receive while none of its points are in view from --pose or
    /// --poses; 0: nothing, until where the points were last comes into view. At most --layers, which switches
    /// this off
    #[arg(long, value_name = "N", requires = "push", default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(0..=8))]
    pub layers_unseen: u8,
    /// The viewer's poses over time, from the start on: a CSV file with columns time_s,x,y,z,yaw,pitch, in
    /// seconds, and metres and degrees as of --pose. Between two lines they change evenly; the last one stays
    #[arg(long, value_name = "FILE", requires = "push", conflicts_with = "pose")]
    pub poses: Option<PathBuf>,
    /// Number of points that all cameras of a frame may have together, where each pixel of a view counts as
    /// a point; bounds the memory. Frames that announce more are damaged
    #[arg(long, value_name = "N", requires = "push", default_value_t = DEFAULT_MAX_POINTS as u32,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub max_points: u32,
    /// Serve metrics over HTTP at this loopback address, for example 127.0.0.1:9480
    #[arg(long, value_name = "ADDRESS:PORT", requires = "push", value_parser = parse_loopback)]
    pub metrics: Option<SocketAddr>,
}

/// The encoding of each source that a viewer receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum EncodingName {
    /// The best one that the path bears, as the relay finds; of a publisher, the best one
    Auto,
    /// The best one
    Best,
    /// The one of the lowest rate
    Small,
}

/// The broadcast that is watched, and the files that are written.
#[derive(Debug, Clone)]
pub struct PushConfig {
    /// Host and port of the publisher.
    pub address: String,
    /// Where the secret of the broadcast comes from.
    pub key: KeySource,
    /// The maximum number of layers of each track.
    pub layers: u8,
    /// The encoding of each source.
    pub encoding: EncodingName,
    /// The maximum number of layers of each track while none of its points are in view. 0: nothing is received
    /// until where the points were last comes into view.
    pub layers_unseen: u8,
    /// A CSV file of the viewer's poses over time, instead of the one pose of the pictures.
    pub poses: Option<PathBuf>,
    /// The number of points that all tracks of a frame may have together, where each pixel of a view
    /// counts as a point.
    pub max_points: usize,
    /// A CSV file of [`PushRow`]s.
    pub timeline: Option<PathBuf>,
    /// A directory for PLY files.
    pub save: Option<PathBuf>,
    /// Pictures and videos of the frames. The publisher samples points for the pose, if there is one, and what
    /// is out of view from there is received with fewer layers.
    pub pictures: Pictures,
    /// The time after which to stop. Unlimited if `None`.
    pub duration: Option<Duration>,
    /// The number of frames after which to stop. Unlimited if `None`.
    pub frames: Option<u64>,
    /// The loopback address at which metrics are served.
    pub metrics: Option<SocketAddr>,
}

impl PushConfig {
    /// Returns a configuration that watches until stopped and writes no files.
    pub fn new(address: impl Into<String>, key: impl Into<KeySource>) -> Self {
        PushConfig {
            address: address.into(),
            key: key.into(),
            layers: 8,
            encoding: EncodingName::Auto,
            layers_unseen: 1,
            poses: None,
            max_points: DEFAULT_MAX_POINTS,
            timeline: None,
            save: None,
            pictures: Pictures::default(),
            duration: None,
            frames: None,
            metrics: None,
        }
    }
}

/// Watches until the configured duration or number of frames is reached or `stop` is set. Asks for a
/// new session whenever one has ended.
///
/// # Errors
/// If the address is not `HOST:PORT`, the key file is not valid, the controller does not let this node
/// watch, or a file cannot be written: with the measurements, once watching has begun. What the
/// publisher does wrong is counted in the summary.
pub fn watch(
    config: &PushConfig,
    stop: &AtomicBool,
) -> Result<PushSummary, Box<Failure<PushSummary>>> {
    let watched = watch_and_record(config, stop)?;
    Failure::unless_empty(watched.0, watched.1)
}

fn watch_and_record(
    config: &PushConfig,
    stop: &AtomicBool,
) -> anyhow::Result<(PushSummary, Vec<anyhow::Error>)> {
    let key = Keyring::open(&config.key, TrackRole::Reader)?;
    let mut publishers = PeerAddresses::parse(&config.address)?;
    let clock = SteadyClock::start();
    let (extents, known) = mpsc::channel();
    let viewpoint = Viewpoint::open(config, clock.now(), known)?;
    let recorder = Recorder::create(config)?;
    let (to_decoder, work) = decode::work();
    let decoded: Arc<Mutex<DecodedFrames>> = Arc::default();
    let figures = config
        .metrics
        .map(|address| metrics::serve(address, &decoded));
    let figures = figures.transpose()?;
    let decoding = Decoding::new(
        clock,
        work,
        recorder,
        config.max_points,
        Arc::clone(&decoded),
        viewpoint.has_pose().then(|| Extents::new(extents)),
    );
    let until = Until {
        stop,
        end: crate::end_after(config.duration),
    };
    let is_over = || {
        until.should_stop()
            || config
                .frames
                .is_some_and(|frames| decoded.lock().frames >= frames)
    };
    thread::scope(|scope| {
        let decoding = scope.spawn(move || decoding.run());
        let connected = publishers.find(is_over);
        let opened = connected.map(|connected| {
            Network::open(
                clock, publishers, connected, key, viewpoint, to_decoder, figures,
            )
        });
        let (mut received, watched) = match opened {
            Some(Ok(mut network)) => {
                let watched = network.run(is_over);
                (network.finish(), watched)
            }
            Some(Err(error)) => (Received::default(), Err(error)),
            None => (Received::default(), Ok(())),
        };
        let (recorded, mut errors) = decoding.join().expect("the decoder does not panic");
        received.not_decoded += decoded.lock().passed_over;
        errors.extend(watched.err());
        Ok((PushSummary::new(received, recorded), errors))
    })
}
