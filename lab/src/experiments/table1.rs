//! Section IV of Qian et al.: a stream over five disjoint paths of which the default one starts to vary.

mod paths;
mod report;

use crate::edges::{Edges, Replication};
use crate::emulator::{Emulator, EmulatorReport};
use crate::experiment::{Experiment, Run};
use crate::stream::{Record, Source, Stream};
use crate::summary::{Case, Metrics, Provenance, Summary};
use crate::topology::Topology;
use anyhow::{Context, Result, bail};
use hawser_agent::Status;
use hawser_io::media::data_dir;
use hawser_io::ring;
use hawser_qoe::{Qoe, measure};
use hawser_units::PathSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

const POLICIES: [&str; 3] = ["single", "redirect", "replicate"];
const LEVELS: [&str; 3] = ["nfov", "hd", "fhd"];
const FPS: f64 = 30.0;

/// The length of the paper's runs.
const SECONDS: f64 = 60.0;

/// The talker, the recording of the figures.
const RECORDING: &str = include_str!("../../recordings/talker.toml");

/// The experiment.
pub struct Table1;

impl Experiment for Table1 {
    fn name(&self) -> &'static str {
        "table1"
    }

    fn about(&self) -> &'static str {
        "a live stream over the five paths of Qian et al., the default path varying: one path, redirected, replicated"
    }

    fn cases(&self) -> Vec<String> {
        let of_level = |level| POLICIES.map(|policy| format!("{policy}/{level}"));
        LEVELS.into_iter().flat_map(of_level).collect()
    }

    fn run(&self, run: &Run) -> Result<Summary> {
        let chosen = run.chosen(self.cases())?;
        let mut summary = Summary::new(self.name(), Provenance::gather(run.seed));
        let mut outcomes = Vec::new();
        for (index, name) in chosen.iter().enumerate() {
            println!("[{}/{}] {name}", index + 1, chosen.len());
            let measured = run.until_valid(|| run_case(run, name), |outcome| outcome.invalid_because.clone());
            let (mut outcome, attempts) = measured.with_context(|| format!("case {name}"))?;
            outcome.case.params.insert("attempts".into(), attempts.into());
            for reason in &outcome.invalid_because {
                summary.invalidate(format!("{name}: {reason}"));
            }
            summary.cases.push(outcome.case.clone());
            outcomes.push(outcome);
            if run.stop.requested() {
                bail!("stopped");
            }
        }
        report::write(&summary, &outcomes, &run.out)?;
        Ok(summary)
    }
}

/// One case, measured.
struct Outcome {
    case: Case,
    record: Record,
    variation: Variation,
    invalid_because: Vec<String>,
}

/// When the network varies: from second 10 to 50 of 60, and the same parts of a shorter run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Variation {
    from: Duration,
    to: Duration,
    end: Duration,
}

impl Variation {
    fn of(seconds: f64) -> Self {
        let part = |share: f64| Duration::from_secs_f64(seconds * share);
        Variation { from: part(1.0 / 6.0), to: part(5.0 / 6.0), end: part(1.0) }
    }
}

fn run_case(run: &Run, name: &str) -> Result<Outcome> {
    let (policy, level) = name.split_once('/').expect("cases are policy/level");
    let variation = Variation::of(run.seconds.unwrap_or(SECONDS));
    let directory = std::path::absolute(run.out.join("raw").join(name.replace('/', "-")))?;
    if directory.exists() {
        fs::remove_dir_all(&directory).with_context(|| format!("cannot empty {}", directory.display()))?;
    }
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let source = source(level, &directory)?;

    let lab = Topology::default().build()?;
    let mut emulator = Emulator::start(lab.network(), paths::emulated(&lab, variation)?, run.seed)?;
    emulator.steer(&[lab.source(), lab.ingress(), lab.egress(), lab.viewer()])?;
    let edges = Edges::start(&lab, &run.binary, &directory, &replication(policy))?;
    let mut stream = Stream::start(&lab, &run.binary, &directory, &source, &run.stop)?;
    emulator.set_origin(ring::now());
    let before = sleep_until(&mut stream, &edges, run, variation.from, Duration::ZERO)?;
    let after = sleep_until(&mut stream, &edges, run, variation.to, variation.from)?;
    sleep_until(&mut stream, &edges, run, variation.end, variation.to)?;
    let record = stream.stop()?;
    edges.stop()?;
    let emulation = emulator.stop()?;
    fs::write(directory.join("emulator.json"), serde_json::to_vec_pretty(&emulation)?)?;

    let qoe = measure(&record.timeline(), record.window(variation.from, variation.to));
    let invalid_because = invalid_because(&record, &emulation, variation);
    let case = describe(name, &source, &qoe, bandwidth_cost(&before, &after), &emulation, &record, variation);
    Ok(Outcome { case, record, variation, invalid_because })
}

/// Lets the stream run from one time after its beginning to another; returns what the ingress edge says then.
fn sleep_until(
    stream: &mut Stream,
    edges: &Edges,
    run: &Run,
    until: Duration,
    from: Duration,
) -> Result<Status> {
    if run.stop.sleep(until - from) {
        bail!("stopped");
    }
    stream.check_running()?;
    edges.ingress()
}

fn source(level: &str, directory: &Path) -> Result<Source> {
    let talker = data_dir().join("volumetric/talker");
    let recording = if talker.exists() {
        let description = directory.join("talker.toml");
        fs::write(&description, RECORDING)?;
        description.to_string_lossy().into_owned()
    } else {
        "synthetic".to_owned()
    };
    Ok(Source { recording, level: level.to_owned(), fps: FPS, congestion: "bbr".to_owned() })
}

/// `redirect` takes the path with the smallest delay under variation, which is the second.
fn replication(policy: &str) -> Replication {
    let paths = match policy {
        "single" => PathSet::EMPTY,
        "redirect" => PathSet::from_bits(0b0_0010),
        "replicate" => PathSet::from_bits(0b1_1111),
        other => unreachable!("no policy is called {other}"),
    };
    Replication::on(paths)
}

/// Copies sent over packets, by bytes, between two looks at the ingress edge. One path costs one.
fn bandwidth_cost(before: &Status, after: &Status) -> f64 {
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
    let ((copies_before, packets_before), (copies_after, packets_after)) = (sums(before), sums(after));
    if packets_after > packets_before {
        (copies_after - copies_before) / (packets_after - packets_before)
    } else {
        1.0
    }
}

fn invalid_because(record: &Record, emulation: &EmulatorReport, variation: Variation) -> Vec<String> {
    let mut reasons = emulation.health.invalid_because();
    let captured = record.captured_fps(variation.from, variation.to);
    if captured < FPS * 0.99 {
        reasons.push(format!(
            "the publisher captured {captured:.1} frames/s instead of {FPS}: the machine was overloaded"
        ));
    }
    let damaged = record.frames.iter().filter(|frame| !frame.is_identical).count();
    if damaged > 0 {
        reasons.push(format!("{damaged} delivered frames differ from the sent ones"));
    }
    reasons
}

fn describe(
    name: &str,
    source: &Source,
    qoe: &Qoe,
    bandwidth_cost: f64,
    emulation: &EmulatorReport,
    record: &Record,
    variation: Variation,
) -> Case {
    let mut case = Case::new(name);
    let recording = if source.recording == "synthetic" { "synthetic" } else { "talker" };
    case.params.insert("recording".into(), recording.into());
    case.params.insert("congestion".into(), source.congestion.clone().into());
    case.params.insert("seconds".into(), variation.end.as_secs_f64().into());
    case.params.insert("measured_from_s".into(), variation.from.as_secs_f64().into());
    case.params.insert("measured_to_s".into(), variation.to.as_secs_f64().into());
    let health = &emulation.health;
    let or_nan = |value: Option<f64>| value.unwrap_or(f64::NAN);
    case.metrics = Metrics::from([
        ("fps_mean", qoe.fps_mean),
        ("fps_min", qoe.fps.iter().copied().fold(f64::INFINITY, f64::min)),
        ("frame_delay_p50_ms", or_nan(qoe.frame_delay_p50_ms)),
        ("frame_delay_p95_ms", or_nan(qoe.frame_delay_p95_ms)),
        ("throughput_mbps", qoe.throughput_mbps),
        ("stall_ratio", qoe.stall_ratio),
        ("bandwidth_cost_ratio", bandwidth_cost),
        ("identical_frames_ratio", identical_ratio(record)),
        ("emulator_lateness_p99_us", health.lateness_p99_us),
        ("emulator_lateness_p999_us", health.lateness_p999_us),
        ("emulator_cpu_cores", health.cpu_cores()),
    ]);
    case.paper = paths::paper(name);
    case
}

fn identical_ratio(record: &Record) -> f64 {
    let identical = record.frames.iter().filter(|frame| frame.is_identical).count();
    identical as f64 / record.frames.len() as f64
}
