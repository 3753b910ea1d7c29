//! A live stream of a person over the five paths: the setup and the metrics that several
//! experiments share.

use super::five_paths::{Variation, emulated};
use crate::emulator::{Emulator, EmulatorReport};
use crate::experiment::{Measured, Run, write_json};
use crate::programs::push::{Places, PushSource, PushedStream};
use crate::programs::stream::{Source, Stream};
use crate::record::Record;
use crate::recordings;
use crate::summary::{Case, Metrics};
use anyhow::{Result, bail};
use hawser_agent::Status;
use hawser_qoe::measure;
use hawser_testbed::ring;
use hawser_testbed::topology::{Lab, Topology};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The resolutions of a frame, in ascending number of points.
pub(super) const LEVELS: [&str; 3] = ["nfov", "hd", "fhd"];

/// The name in place of a level of a stream that is pushed: its resolution follows the rate.
pub(super) const PUSH: &str = "push";

/// Frame rate of a stream that is pulled.
pub(super) const FPS: f64 = 30.0;

/// The recording of a stream that is pushed, which is decoded meanwhile: one camera, at 15 frames a
/// second.
const PUSH_RECORDING: &str = recordings::TALKER_FRONT;
const PUSH_FPS: f64 = 15.0;

/// The highest rate of a stream that is pushed: more than the recording takes.
const PUSH_RATE_MBPS: f64 = 30.0;

/// The recording of the paper's figures: a person talking.
const RECORDING: &str = recordings::TALKER;

/// A lab with the five paths, through which a stream runs.
pub(super) struct Live {
    pub(super) lab: Lab,
    /// The folder for all logs and raw data.
    pub(super) directory: PathBuf,
    emulator: Emulator,
}

/// The results of one run of a case.
pub(crate) struct Outcome {
    /// The treatment of the stream, the first part of the case's name.
    pub(super) policy: &'static str,
    /// The resolution of a frame, "uncapped" or [`PUSH`]: the second part of the case's name.
    pub(super) level: &'static str,
    pub(super) case: Case,
    pub(super) record: Record,
    pub(super) variation: Variation,
    pub(super) invalid_because: Vec<String>,
    /// A PNG file of what the viewer saw at the end of the variation, of a stream that is pushed.
    pub(super) picture: Option<Vec<u8>>,
}

/// A stream that runs.
pub(super) enum RunningStream {
    Pulled(Stream),
    Pushed(PushedStream),
}

impl RunningStream {
    /// Stops publisher and viewer. Returns what they recorded.
    pub(super) fn stop(self) -> Result<Record> {
        match self {
            RunningStream::Pulled(stream) => Record::read(&stream.stop()?),
            RunningStream::Pushed(stream) => Record::read_pushed(&stream.stop()?),
        }
    }

    fn check_running(&mut self) -> Result<()> {
        match self {
            RunningStream::Pulled(stream) => stream.check_running(),
            RunningStream::Pushed(stream) => stream.check_running(),
        }
    }
}

impl Measured for Outcome {
    fn invalid_because(&self) -> Vec<String> {
        self.invalid_because.clone()
    }
}

impl Live {
    /// Builds the lab and starts its links. `raw` is a folder in the experiment's raw data.
    pub(super) fn prepare(
        run: &Run,
        raw: &str,
        topology: &Topology,
        variation: &Variation,
    ) -> Result<Self> {
        let directory = run.raw(raw)?;
        let lab = topology.build()?;
        let mut emulator = Emulator::start(lab.network(), emulated(&lab, variation)?, run.seed)?;
        emulator.steer(&[lab.source(), lab.ingress(), lab.egress(), lab.viewer()])?;
        Ok(Live {
            lab,
            directory,
            emulator,
        })
    }

    /// Starts a stream that is pulled, and the schedule of the network.
    pub(super) fn stream(&self, run: &Run, source: &Source) -> Result<RunningStream> {
        let stream = Stream::start(&self.lab, &run.hawser, &self.directory, source, &run.stop)?;
        self.emulator.set_origin(ring::now());
        Ok(RunningStream::Pulled(stream))
    }

    /// Starts a stream that is pushed, and the schedule of the network.
    pub(super) fn push(&self, run: &Run, source: &PushSource) -> Result<RunningStream> {
        let places = Places::across(&self.lab);
        let stream = PushedStream::start(&places, &run.hawser, &self.directory, source, &run.stop)?;
        self.emulator.set_origin(ring::now());
        Ok(RunningStream::Pushed(stream))
    }

    /// Waits while the stream runs from one time after its start to another.
    pub(super) fn sleep(
        &self,
        run: &Run,
        stream: &mut RunningStream,
        from: Duration,
        to: Duration,
    ) -> Result<()> {
        if run.stop.sleep(to.saturating_sub(from)) {
            bail!("stopped");
        }
        stream.check_running()
    }

    /// Stops the links after the stream has stopped.
    pub(super) fn finish(self) -> Result<EmulatorReport> {
        let emulation = self.emulator.stop()?;
        write_json(&self.directory.join("emulator.json"), &emulation)?;
        Ok(emulation)
    }
}

/// Returns a source that publishes the talker at a level, or the synthetic performer on a machine
/// without the recording. The recording's description is written to `directory`.
pub(super) fn source(level: &str, directory: &Path) -> Result<Source> {
    Ok(Source {
        recording: recording(RECORDING, directory)?,
        level: level.to_owned(),
        fps: FPS,
        ..Source::default()
    })
}

/// Returns a source that pushes one view of the talker, or the synthetic performer.
pub(super) fn push_source(directory: &Path) -> Result<PushSource> {
    let recording = recording(PUSH_RECORDING, directory)?;
    let codec = if recording == SYNTHETIC {
        "chunks"
    } else {
        "rgbd"
    };
    Ok(PushSource {
        codec: codec.to_owned(),
        recording,
        encodings: 1,
        fps: PUSH_FPS,
        max_rate_mbps: PUSH_RATE_MBPS,
        is_constant: false,
    })
}

/// The name of the synthetic performer.
const SYNTHETIC: &str = "synthetic";

fn recording(talker: &str, directory: &Path) -> Result<String> {
    if !recordings::has_talker() {
        return Ok(SYNTHETIC.to_owned());
    }
    let description = directory.join("talker.toml");
    fs::write(&description, talker)?;
    Ok(description.to_string_lossy().into_owned())
}

/// Returns the viewer's metrics during the variation, and those of the emulator.
pub(super) fn metrics(
    record: &Record,
    emulation: &EmulatorReport,
    variation: &Variation,
) -> Metrics {
    let window = record.window(variation.from(), variation.to());
    let qoe = measure(&record.timeline(), window);
    let health = &emulation.health;
    let or_nan = |value: Option<f64>| value.unwrap_or(f64::NAN);
    let fps_min = qoe.fps.iter().copied().fold(f64::INFINITY, f64::min);
    Metrics::from([
        ("fps_mean", qoe.fps_mean),
        ("fps_min", fps_min),
        ("frame_delay_p50_ms", or_nan(qoe.frame_delay_p50_ms)),
        ("frame_delay_p95_ms", or_nan(qoe.frame_delay_p95_ms)),
        ("throughput_mbps", qoe.throughput_mbps),
        ("stall_ratio", qoe.stall_ratio),
        ("emulator_lateness_p99_us", health.lateness_p99_us),
        ("emulator_lateness_p999_us", health.lateness_p999_us),
        ("emulator_cpu_cores", health.cpu_cores()),
    ])
}

/// Returns the share of frames that were delivered as they were captured.
pub(super) fn identical(record: &Record) -> f64 {
    let identical = record.frames.len() - damaged(record);
    identical as f64 / record.frames.len() as f64
}

/// Creates a case with the parameters that all cases have. `recording` is that of the source.
pub(super) fn case(name: &str, recording: &str, variation: &Variation) -> Case {
    let mut case = Case::new(name);
    let recording = if recording == SYNTHETIC {
        SYNTHETIC
    } else {
        "talker"
    };
    case.set_param("recording", recording);
    case.set_param("seconds", variation.end.as_secs_f64());
    case.set_param("measured_from_s", variation.from().as_secs_f64());
    case.set_param("measured_to_s", variation.to().as_secs_f64());
    case
}

/// Returns the ratio of the bytes of copies to the bytes of packets, sent between two readings of
/// the ingress edge's status. It is 1 for a single path.
pub(super) fn bandwidth_cost(before: &Status, after: &Status) -> f64 {
    let sums = |status: &Status| {
        let copies = status
            .send
            .values()
            .flat_map(|flow| flow.copies.values())
            .map(|copies| copies.bytes)
            .sum::<u64>();
        let packets = status.send.values().map(|flow| flow.bytes).sum::<u64>();
        (copies as f64, packets as f64)
    };
    let ((copies_before, packets_before), (copies_after, packets_after)) =
        (sums(before), sums(after));
    if packets_after > packets_before {
        (copies_after - copies_before) / (packets_after - packets_before)
    } else {
        1.0
    }
}

/// Returns the reasons why the figures are not valid.
pub(super) fn invalid_because(
    fps: f64,
    record: &Record,
    emulation: &EmulatorReport,
    variation: &Variation,
) -> Vec<String> {
    let mut reasons = emulation.health.invalid_because();
    let captured = record.captured_fps(variation.from(), variation.to());
    if captured < fps * 0.99 {
        reasons.push(format!(
            "the publisher captured {captured:.1} frames/s instead of {fps}: the machine was overloaded"
        ));
    }
    let damaged = damaged(record);
    if damaged > 0 {
        reasons.push(format!("{damaged} delivered frames differ from those sent"));
    }
    reasons
}

/// Returns the number of delivered frames that differ from those sent.
fn damaged(record: &Record) -> usize {
    let frames = record.frames.iter();
    frames.filter(|frame| !frame.is_identical).count()
}
