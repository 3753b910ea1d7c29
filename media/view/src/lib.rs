//! The viewer: receives the frames of a publisher over UDP as it sends them, encrypted, shows each as far as it
//! has arrived in time, and measures quality of experience. With [`pull`], frames are requested over TCP instead.
//!
//! One thread has the socket and the session; another one decodes. What neither has time for is
//! counted, not waited for.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod ahead;
mod attention;
mod common;
mod decode;
mod experience;
mod failure;
mod files;
mod link;
mod measured;
mod metrics;
mod network;
mod picture;
mod poses;
pub mod pull;
mod record;
mod report;
mod row;
mod save;
mod session;
mod sound;
mod speaker;
mod summary;
mod table;
mod until;
mod viewpoint;

pub use failure::Failure;
pub use picture::{Drawn, Pictures};
pub use row::Row;
pub use summary::{Damaged, Decoded, Looked, Received, Summary};

use anyhow::bail;
use common::{CommonArgs, printed, stop_flag};
use decode::{Decoding, Extents};
use hawser_io::clock::SteadyClock;
use hawser_keys::{KeyArgs, KeySource, Keyring, Origin, TrackRole};
use hawser_metrics::server::parse_loopback;
use metrics::DecodedFrames;
use network::Network;
use parking_lot::Mutex;
use record::Recorder;
use report::Report;
use speaker::Speaker;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use until::{Until, end_after};
use viewpoint::Viewpoint;

/// The default number of points that all tracks of a frame may have together: 16 of the largest clouds, or
/// 8 views of 1920 x 1080 pixels. They take 160 MB as points.
pub const DEFAULT_MAX_POINTS: usize = 1 << 24;

/// Watch a stream that is sent over UDP, and measure it
///
/// Receives frames as `hawser publish` or `hawser relay` sends them, encrypted, and shows each as far as it
/// has arrived in time. What was changed on the way is refused. Fails if none arrives or one cannot be
/// decoded. The clocks need not be synchronized: reports relate them.
///
/// A file that cannot be written any more ends alone; watching continues, and fails at the end.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example: hawser view publisher.example:14748 --key stage.key")]
pub struct Args {
    /// The publisher or a relay, for example 192.0.2.7:14748. With --track, the controller says where, and this is
    /// not needed
    #[arg(value_name = "HOST:PORT", required_unless_present = "track")]
    address: Option<String>,
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    key: KeyArgs,
    /// Write when each frame was captured, its first packet and the last of it arrived, and its
    /// decoding began and ended to this CSV file
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Number of layers of every track to receive; fewer take less of a slow path
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u8).range(1..=8))]
    layers: u8,
    /// Encoding of each camera to receive, if the stream has several: `auto` leaves the choice to the relay
    #[arg(long, value_enum, default_value_t = EncodingName::Auto)]
    encoding: EncodingName,
    /// Number of layers of every track to receive while none of its points are in view from --pose or
    /// --poses; 0: nothing, until where the points were last comes into view. At most --layers, which switches
    /// this off
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(0..=8))]
    layers_unseen: u8,
    /// The viewer's poses over time, from the start on: a CSV file with columns time_s,x,y,z,yaw,pitch, in
    /// seconds, and metres and degrees as of --pose. Between two lines they change evenly; the last one stays
    #[arg(long, value_name = "FILE", conflicts_with = "pose")]
    poses: Option<PathBuf>,
    /// Number of points that all cameras of a frame may have together, where each pixel of a view counts as
    /// a point; bounds the memory. Frames that announce more are damaged
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_POINTS as u32,
        value_parser = clap::value_parser!(u32).range(1..))]
    max_points: u32,
    /// Play the sound on this device of ALSA, for example default. Requires ffmpeg
    #[arg(long, value_name = "DEVICE")]
    speaker: Option<String>,
    /// Serve metrics over HTTP at this loopback address, for example 127.0.0.1:9480
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_loopback)]
    metrics: Option<SocketAddr>,
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
pub struct Config {
    /// Host and port of the publisher or of a relay; `None` if the controller says where.
    pub address: Option<String>,
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
    /// A CSV file of [`Row`]s.
    pub timeline: Option<PathBuf>,
    /// A directory for PLY files.
    pub save: Option<PathBuf>,
    /// Pictures and videos of the frames. The publisher samples points for the pose, if there is one, and what
    /// is out of view from there is received with fewer layers.
    pub pictures: Pictures,
    /// The device of ALSA that plays the sound.
    pub speaker: Option<String>,
    /// The time after which to stop. Unlimited if `None`.
    pub duration: Option<Duration>,
    /// The number of frames after which to stop. Unlimited if `None`.
    pub frames: Option<u64>,
    /// The loopback address at which metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The socket of the agent of this machine, to which the viewer reports what it experiences.
    pub report_to: Option<PathBuf>,
}

impl Config {
    /// Returns a configuration that watches until stopped and writes no files.
    pub fn new(address: impl Into<String>, key: impl Into<KeySource>) -> Self {
        Config {
            address: Some(address.into()),
            key: key.into(),
            layers: 8,
            encoding: EncodingName::Auto,
            layers_unseen: 1,
            poses: None,
            max_points: DEFAULT_MAX_POINTS,
            timeline: None,
            save: None,
            pictures: Pictures::default(),
            speaker: None,
            duration: None,
            frames: None,
            metrics: None,
            report_to: None,
        }
    }
}

impl Config {
    fn from_args(args: Args) -> anyhow::Result<Self> {
        let duration = args.common.duration()?;
        Ok(Config {
            layers: args.layers,
            encoding: args.encoding,
            layers_unseen: args.layers_unseen,
            poses: args.poses,
            max_points: args.max_points as usize,
            timeline: args.timeline,
            save: args.common.save,
            pictures: args.common.pictures,
            speaker: args.speaker,
            duration,
            frames: args.common.frames,
            metrics: args.metrics,
            address: args.address,
            report_to: args.common.report_to,
            ..Config::new(String::new(), args.key.source())
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
    let summary = printed(watch(&config, &stop), print, |summary| {
        summary.decoded.frames > 0
    })?;
    let damaged = summary.decoded.damaged;
    if damaged.total() > 0 {
        bail!("frames: {damaged}");
    }
    if summary.decoded.frames == 0 {
        let narrow = summary.narrow_path().map(|narrow| format!("; {narrow}"));
        let from = config.address.as_ref();
        let from = from.map(|address| format!(" from {address}"));
        bail!(
            "no frame arrived{}{}",
            from.unwrap_or_default(),
            narrow.unwrap_or_default()
        );
    }
    Ok(())
}

/// Watches until the configured duration or number of frames is reached or `stop` is set. Asks for a
/// new session whenever one has ended.
///
/// # Errors
/// If the address is not `HOST:PORT`, the key file is not valid, the controller does not let this node
/// watch, or a file cannot be written: with the measurements, once watching has begun. What the
/// publisher does wrong is counted in the summary.
pub fn watch(config: &Config, stop: &AtomicBool) -> Result<Summary, Box<Failure<Summary>>> {
    let watched = watch_and_record(config, stop)?;
    Failure::unless_empty(watched.0, watched.1)
}

fn watch_and_record(
    config: &Config,
    stop: &AtomicBool,
) -> anyhow::Result<(Summary, Vec<anyhow::Error>)> {
    let key = Keyring::open(&config.key, TrackRole::Reader)?;
    let mut origin = Origin::parse(config.address.as_deref())?;
    let clock = SteadyClock::start();
    let (extents, known) = mpsc::channel();
    let viewpoint = Viewpoint::open(config, clock.now(), known)?;
    let recorder = Recorder::create(config)?;
    let speaker = config.speaker.as_deref().map(Speaker::open).transpose()?;
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
        end: end_after(config.duration),
    };
    let is_over = || {
        until.should_stop()
            || config
                .frames
                .is_some_and(|frames| decoded.lock().frames >= frames)
    };
    thread::scope(|scope| {
        let decoding = scope.spawn(move || decoding.run());
        let connected = origin.find(&key.0, is_over);
        let opened = connected.map(|connected| {
            Network::open(
                clock, origin, connected, key, viewpoint, to_decoder, figures,
            )
            .map(|network| {
                network
                    .reporting_to(config.report_to.as_ref())
                    .playing_on(speaker)
            })
        });
        let (mut received, watched) = match opened {
            Some(Ok(mut network)) => {
                let watched = network.run(is_over);
                let received = network.finish();
                (received, watched.and(network.end_sound()))
            }
            Some(Err(error)) => (Received::default(), Err(error)),
            None => (Received::default(), Ok(())),
        };
        let (recorded, mut errors) = decoding.join().expect("the decoder does not panic");
        received.not_decoded += decoded.lock().passed_over;
        errors.extend(watched.err());
        Ok((Summary::new(received, recorded), errors))
    })
}
