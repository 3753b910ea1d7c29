//! The parts that both kinds of publisher have.

use anyhow::{Context, ensure};
use hawser_cloud::Level;
use hawser_recording::Recording;
use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The port of a publisher: UDP, and TCP for requests.
pub const DEFAULT_PORT: u16 = 14748;
/// Maximum of the default frame rate, frames per second, as in the paper.
pub(crate) const DEFAULT_MAX_FPS: f64 = 30.0;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CommonArgs {
    /// Description of the recording (TOML), or "synthetic" for a generated performer
    #[arg(long, value_name = "FILE|synthetic")]
    recording: RecordingName,
    /// Maximum number of points per frame: nfov (35,000), hd (94,000) or fhd (184,000)
    #[arg(long, default_value_t = Level::Fhd)]
    level: Level,
    /// Frames per second [default: those of the recording, up to 30]
    #[arg(long)]
    fps: Option<f64>,
    /// Exit after this many seconds [default: run until interrupted]
    #[arg(long)]
    seconds: Option<f64>,
}

/// The validated options.
pub(crate) struct Common {
    pub(crate) recording: Recording,
    pub(crate) level: Level,
    pub(crate) fps: f64,
    pub(crate) duration: Option<Duration>,
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

impl Common {
    pub(crate) fn from_args(args: &CommonArgs) -> anyhow::Result<Self> {
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
            duration,
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
pub(crate) fn with_data_dir(error: &str) -> String {
    let data_dir = hawser_recording::data_dir();
    format!("{error} ($HAWSER_DATA stands for {})", data_dir.display())
}

/// Returns the flag that SIGINT and SIGTERM set. SIGHUP has no effect.
pub(crate) fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    hawser_service::ignore_hangups("another recording or address needs a restart")?;
    hawser_service::stop_flag()
}
