use crate::common::{Common, CommonArgs, DEFAULT_MAX_FPS, DEFAULT_PORT};
use anyhow::ensure;
use clap::ValueEnum;
use hawser_cloud::Level;
use hawser_congestion::{Bounds, Spread};
use hawser_io::peer::parse_address;
use hawser_keys::{KeyArgs, KeySource, parse_announced};
use hawser_metrics::server::parse_loopback;
use hawser_objects::FlowConfig;
use hawser_recording::{Recording, Source};
use hawser_units::{Bitrate, ByteSize};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The rates at which a sender may send, Mb/s.
const RATES_MBPS: std::ops::RangeInclusive<f64> = 0.1..=10_000.0;

/// The defaults of the rates, Mb/s: the initial and the highest one are those of De Fré et al.
const MIN_MBPS: f64 = 2.0;
const INITIAL_MBPS: f64 = 12.5;
const MAX_MBPS: f64 = 90.0;

/// The default lifetime of frames in milliseconds.
const LIFETIME_MS: u16 = 150;

/// The default maximum number of viewers.
const VIEWERS: u16 = 8;

/// The largest in-flight buffer of a viewer.
const MAX_BUFFER: ByteSize = ByteSize(64 << 20);

/// Send a recording to viewers over UDP, encrypted
///
/// The recording is played in a loop, in real time. Viewers are sent every frame at the rate that the path of each
/// bears; see `hawser view`. SIGHUP has no effect.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Example: hawser publish --recording synthetic --key stage.key --listen 0.0.0.0:14748"
)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Address and port to listen on; other machines can connect only if this is not a loopback address
    /// [default: 127.0.0.1:14748, with --track [::]:14748, which includes IPv4]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    listen: Option<SocketAddr>,
    /// Address and port at which others reach this publisher, for the controller to tell them, if that is not
    /// --listen nor the address from which the controller is asked
    #[arg(long, value_name = "ADDRESS:PORT", requires = "track", value_parser = parse_announced)]
    announce: Option<SocketAddr>,
    #[command(flatten)]
    key: KeyArgs,
    /// Codec of the frames [default: rgbd for cameras, otherwise chunks]
    #[arg(long, value_enum)]
    codec: Option<CodecName>,
    /// Number of encodings of the stream. The second one has a twelfth of the rate: a relay sends it to viewers
    /// whose paths do not bear the base of the first
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..=2))]
    encodings: u8,
    /// Rate with which a viewer's flow begins, Mb/s, with all headers [default: 12.5, within the other two]
    #[arg(long, value_name = "MBPS")]
    initial_rate: Option<f64>,
    /// Lowest rate of a viewer's flow, Mb/s [default: 2, or --max-rate if that is lower]
    #[arg(long, value_name = "MBPS")]
    min_rate: Option<f64>,
    /// Highest rate of a viewer's flow, Mb/s
    #[arg(long, value_name = "MBPS", default_value_t = MAX_MBPS)]
    max_rate: f64,
    /// Time from the capture of a frame after which it is no longer sent or shown, milliseconds
    #[arg(long, value_name = "MS", default_value_t = LIFETIME_MS,
        value_parser = clap::value_parser!(u16).range(20..=1000))]
    lifetime: u16,
    /// Send every frame over this time, milliseconds, instead of as fast as the path bears; De Fré et
    /// al. use 20
    #[arg(long, value_name = "MS",
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    pace: Option<u16>,
    /// Maximum number of viewers at the same time
    #[arg(long, value_name = "N", default_value_t = VIEWERS,
        value_parser = clap::value_parser!(u16).range(1..=64))]
    viewers: u16,
    /// Write every captured frame's time, points, target, bytes and the time that encoding took to this CSV file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write the state of every viewer's flow to this CSV file, ten times a second
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Report every second, at this socket of the agent of this machine, the rate at which it would like to send to each
    /// viewer: docs/agent.md
    #[arg(long, value_name = "SOCKET")]
    report_to: Option<PathBuf>,
    /// Serve metrics over HTTP at this loopback address, for example 127.0.0.1:9479
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_loopback)]
    metrics: Option<SocketAddr>,
    /// Serve a page at this loopback address with which browsers of this machine watch, for example 127.0.0.1:14780,
    /// and print the link. It has the secret of the broadcast. While only browsers watch, the stream has the rate
    /// --initial-rate
    #[arg(long, value_name = "ADDRESS:PORT")]
    web: Option<SocketAddr>,
    /// Serve the page for a local network: let --web be an address of it. It is plain HTTP: who can change packets there
    /// can change the page, and get the secret
    #[arg(long, requires = "web", conflicts_with = "web_certificate")]
    web_plain_http: bool,
    /// PEM file with the certificate chain of the page, for HTTPS: --web may then be any address of this machine. The link
    /// has the first host name of the certificate
    #[arg(long, value_name = "FILE", requires_all = ["web", "web_certificate_key"])]
    web_certificate: Option<PathBuf>,
    /// PEM file with its key, which only its owner and its group may read
    #[arg(long, value_name = "FILE", requires = "web_certificate")]
    web_certificate_key: Option<PathBuf>,
}

/// A codec of pushed frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CodecName {
    /// Views as the cameras captured them, in two layers
    Rgbd,
    /// Points in packets that decode alone, in two layers
    Chunks,
    /// Google's Draco with the parameters of De Fré et al.
    Draco,
    /// All points without loss, compressed by zstd
    Zstd,
}

/// The recording that is published, and the parameters of the stream.
#[derive(Debug, Clone)]
pub struct Config {
    /// The recording that is played.
    pub recording: Recording,
    /// The codec.
    pub codec: CodecName,
    /// Whether there is a second, small encoding of each track.
    pub has_small: bool,
    /// The maximum number of points of a frame; does not apply to [`CodecName::Rgbd`].
    pub points: usize,
    /// Frames per second.
    pub fps: f64,
    /// The address on which to listen.
    pub listen: SocketAddr,
    /// The address at which others reach the publisher; `None`: that of the socket.
    pub announce: Option<SocketAddr>,
    /// The source of the broadcast's secret.
    pub key: KeySource,
    /// The rates of a viewer's flow.
    pub bounds: Bounds,
    /// The time from capture to deadline.
    pub lifetime: Duration,
    /// How the packets of a frame are spread.
    pub spread: Spread,
    /// The maximum number of viewers.
    pub viewers: usize,
    /// The time after which to stop. Unlimited if `None`.
    pub duration: Option<Duration>,
    /// A CSV file of captured frames.
    pub log: Option<PathBuf>,
    /// A CSV file of the states of flows.
    pub stats: Option<PathBuf>,
    /// The socket of the agent of this machine, to which the publisher reports the rate that it wishes.
    pub report_to: Option<PathBuf>,
    /// The loopback address at which metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The page for browsers.
    pub web: Option<WebConfig>,
}

/// The page for browsers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebConfig {
    /// The address at which it is served.
    pub address: SocketAddr,
    /// The files with its certificate and the key, PEM; `None`: it is plain HTTP.
    pub identity: Option<[PathBuf; 2]>,
}

impl Config {
    /// Returns a configuration that publishes a recording on the loopback interface with default
    /// parameters.
    pub fn new(recording: Recording, key: impl Into<KeySource>) -> Self {
        Config {
            codec: default_codec(&recording),
            has_small: false,
            fps: recording.fps.min(DEFAULT_MAX_FPS),
            recording,
            points: Level::Fhd.points(),
            listen: (Ipv4Addr::LOCALHOST, DEFAULT_PORT).into(),
            announce: None,
            key: key.into(),
            bounds: bounds([MIN_MBPS, INITIAL_MBPS, MAX_MBPS]),
            lifetime: Duration::from_millis(LIFETIME_MS.into()),
            spread: Spread::BorneRate,
            viewers: VIEWERS.into(),
            duration: None,
            log: None,
            stats: None,
            report_to: None,
            metrics: None,
            web: None,
        }
    }

    pub(crate) fn from_args(args: Args) -> anyhow::Result<Self> {
        let common = Common::from_args(&args.common)?;
        let max_rate = args.max_rate;
        let min_rate = args.min_rate.unwrap_or(MIN_MBPS.min(max_rate));
        let default = INITIAL_MBPS.max(min_rate).min(max_rate);
        let initial_rate = args.initial_rate.unwrap_or(default);
        for (name, rate) in [
            ("--min-rate", min_rate),
            ("--initial-rate", initial_rate),
            ("--max-rate", max_rate),
        ] {
            let (low, high) = (RATES_MBPS.start(), RATES_MBPS.end());
            ensure!(
                RATES_MBPS.contains(&rate),
                "{name} {rate} must be from {low} to {high} Mb/s"
            );
        }
        ensure!(
            min_rate <= initial_rate && initial_rate <= max_rate,
            "--min-rate {min_rate} must not exceed --initial-rate {initial_rate}, nor that --max-rate {max_rate}"
        );
        ensure!(
            args.pace.is_none_or(|pace| pace < args.lifetime / 2),
            "--pace must be less than half of --lifetime ({} ms)",
            args.lifetime
        );
        ensure!(
            args.pace
                .is_none_or(|pace| f64::from(pace) <= 1000.0 / common.fps),
            "--pace must not exceed the time from frame to frame: 1 / --fps, {:.1} ms",
            1000.0 / common.fps
        );
        let web = args.web.map(|address| WebConfig {
            address,
            identity: args
                .web_certificate
                .zip(args.web_certificate_key)
                .map(<[_; 2]>::from),
        });
        if let Some(WebConfig { address, identity }) = &web {
            ensure!(
                address.ip().is_loopback() || args.web_plain_http || identity.is_some(),
                "--web {address} is not a loopback address such as 127.0.0.1:14780: others could change the page on its way and \
                 get the secret; it needs --web-certificate, or --web-plain-http in a network that is trusted"
            );
            ensure!(
                !address.ip().is_unspecified(),
                "--web {address} must be one address of this machine"
            );
        }
        let interval = args.pace.map(|pace| Duration::from_millis(pace.into()));
        let key = args.key.source();
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, DEFAULT_PORT));
        let everywhere = matches!(key, KeySource::Controller(_)).then_some(everywhere);
        let defaults = Config::new(common.recording, key);
        Ok(Config {
            codec: args.codec.unwrap_or(defaults.codec),
            has_small: args.encodings > 1,
            points: common.level.points(),
            fps: common.fps,
            listen: args.listen.or(everywhere).unwrap_or(defaults.listen),
            announce: args.announce,
            bounds: bounds([min_rate, initial_rate, max_rate]),
            lifetime: Duration::from_millis(args.lifetime.into()),
            spread: interval.map_or(Spread::BorneRate, Spread::Interval),
            viewers: args.viewers.into(),
            duration: common.duration,
            log: args.log,
            stats: args.stats,
            report_to: args.report_to,
            metrics: args.metrics,
            web,
            ..defaults
        })
    }

    /// Returns the settings of a viewer's flow. The in-flight buffer has room for what leaves within a
    /// frame's lifetime at the highest rate, and for the next frame.
    pub(crate) fn flow(&self) -> FlowConfig {
        let time = self.lifetime + self.leaving_time();
        let leaving = self.bounds.maximum().bytes_in(time);
        FlowConfig {
            spread: self.spread,
            ..FlowConfig::new(leaving.min(MAX_BUFFER))
        }
    }

    /// Returns the time from frame to frame.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.fps)
    }

    /// Returns the time in which a frame has to leave at the target rate: until the next one, and early
    /// enough to arrive within its lifetime.
    pub(crate) fn leaving_time(&self) -> Duration {
        self.interval().min(self.lifetime * 2 / 3)
    }
}

/// Returns the bounds of the lowest, the initial and the highest rate in Mb/s.
fn bounds(mbps: [f64; 3]) -> Bounds {
    let [lowest, initial, highest] = mbps.map(Bitrate::from_mbps);
    Bounds::new(lowest, initial, highest)
}

fn default_codec(recording: &Recording) -> CodecName {
    match recording.source {
        Source::Cameras { .. } => CodecName::Rgbd,
        Source::PlySequence(_) | Source::Synthetic(_) => CodecName::Chunks,
    }
}
