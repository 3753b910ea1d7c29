//! The fault matrix: all kinds of packets over two paths, of which the default one has a fault. No
//! packet may be missing.

mod report;
mod scenario;

use crate::counters;
use crate::emulator::{Emulator, EmulatorReport};
use crate::experiment::{Experiment, Measured, Results, Run, progress, write_json};
use crate::summary::{Case, Metrics, Summary};
use anyhow::{Result, bail};
use hawser_agent::Status;
use hawser_testbed::edges::Edges;
use hawser_testbed::ring;
use hawser_testbed::topology::{Lab, Topology};
use hawser_testbed::traffic::{self, Endpoints, Stream, StreamReport};
pub(super) use scenario::{SCENARIOS, Scenario};
use std::fmt;
use std::time::Duration;

/// Number of packets of each stream: enough to judge duplicates and missing packets.
const PACKETS: u64 = 100_000;

/// Packets per second of each stream. Twelve streams on two paths are 48,000 frames per second,
/// which one core can emulate.
const RATE_PPS: u32 = 2_000;

const PAYLOAD_BYTES: usize = 300;

/// Longer than any delay of any path, so that late copies are counted.
const GRACE: Duration = Duration::from_millis(1_500);

/// A scenario with the streams that are sent at the same time.
pub(crate) struct Batch {
    scenario: &'static Scenario,
    streams: Vec<Stream>,
}

/// The experiment.
pub(crate) struct Faults;

impl Experiment for Faults {
    type Case = Pair;
    type Trial = Batch;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "faults"
    }

    fn about(&self) -> &'static str {
        "all kinds of packets over a path without loss and one that is cut, lossy, reordering, corrupting or skewed; none may be missing"
    }

    fn cases(&self) -> Vec<Pair> {
        pairs(PACKETS)
    }

    fn trials(&self, run: &Run) -> Result<Vec<Batch>> {
        let packets = run.seconds.map_or(PACKETS, |seconds| {
            (seconds * f64::from(RATE_PPS)).ceil() as u64
        });
        let mut batches: Vec<Batch> = Vec::new();
        for Pair { scenario, stream } in run.chosen(pairs(packets))? {
            match batches.last_mut() {
                Some(batch) if batch.scenario == scenario => batch.streams.push(stream),
                _ => batches.push(Batch {
                    scenario,
                    streams: vec![stream],
                }),
            }
        }
        Ok(batches)
    }

    fn measure(&self, batch: &Batch, run: &Run) -> Result<Outcome> {
        run_scenario(run, batch.scenario, &batch.streams)
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let counted = completed.iter().flat_map(|one| {
            let drops = one.outcome.device_drops;
            let reports = one.outcome.reports.iter();
            reports.map(move |report| describe(one.trial.scenario, report, drops))
        });
        let counted: Vec<Counted> = counted.collect();
        summary.cases = counted.iter().map(|one| one.case.clone()).collect();
        report::write(summary, &counted, &run.out)
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scenario.name)
    }
}

/// A stream in a scenario, which is a case of the summary.
pub(crate) struct Pair {
    scenario: &'static Scenario,
    stream: Stream,
}

/// Returns each stream in each scenario.
fn pairs(packets: u64) -> Vec<Pair> {
    let of = |scenario| {
        let streams = Stream::of_every_kind(packets, RATE_PPS, PAYLOAD_BYTES);
        streams
            .into_iter()
            .map(move |stream| Pair { scenario, stream })
    };
    SCENARIOS.iter().flat_map(of).collect()
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.scenario.name, kind(&self.stream))
    }
}

/// Returns the name of a stream in names of cases.
fn kind(stream: &Stream) -> String {
    stream.to_string().replace('/', "-")
}

/// The figures of a stream in a scenario.
struct Counted {
    scenario: &'static Scenario,
    kind: String,
    case: Case,
}

/// The results of the streams of one scenario.
pub(crate) struct Outcome {
    reports: Vec<StreamReport>,
    emulation: EmulatorReport,
    /// Frames that the nodes' devices dropped. A link between two namespaces queues at most 256.
    device_drops: u64,
}

impl Measured for Outcome {
    fn invalid_because(&self) -> Vec<String> {
        let overflow: u64 = self
            .reports
            .iter()
            .map(|report| report.receiver_overflow)
            .sum();
        let mut reasons = self.emulation.health.invalid_because();
        if overflow > 0 {
            reasons.push(format!(
                "{overflow} packets reached the viewer and were dropped at its socket"
            ));
        }
        if self.device_drops > 0 {
            let drops = self.device_drops;
            reasons.push(format!(
                "{drops} frames were dropped by the nodes' devices: the machine was overloaded"
            ));
        }
        reasons
    }
}

/// Sends all streams at the same time.
fn run_scenario(run: &Run, scenario: &Scenario, streams: &[Stream]) -> Result<Outcome> {
    progress(&format!("  {} streams", streams.len()));
    let directory = run.raw(scenario.name)?;
    let lab = Topology::with_paths(2).build()?;
    let emulator = Emulator::start(lab.network(), scenario.paths(&lab)?, run.seed)?;
    scenario.prepare(&lab)?;
    let edges = Edges::<Status>::start(&lab, &run.hawser, &directory, &scenario.replication())?;
    emulator.set_origin(ring::now());
    let drops_before = device_drops(&lab)?;
    let reports = traffic::run(&endpoints(&lab, scenario), streams, GRACE, &run.stop)?;
    let device_drops = device_drops(&lab)? - drops_before;
    let (ingress, egress) = edges.stop()?;
    let emulation = emulator.stop()?;
    let raw = serde_json::json!({
        "streams": reports, "ingress": ingress, "egress": egress, "emulator": emulation, "device_drops": device_drops,
    });
    write_json(&directory.join("outcome.json"), &raw)?;
    if run.stop.requested() {
        bail!("stopped");
    }
    Ok(Outcome {
        reports,
        emulation,
        device_drops,
    })
}

/// Returns the number of frames that the nodes' devices dropped in either direction because a queue
/// was full.
fn device_drops(lab: &Lab) -> Result<u64> {
    let nodes = [lab.source(), lab.ingress(), lab.egress(), lab.viewer()];
    nodes
        .into_iter()
        .map(|node| {
            Ok(counters::of(node)?
                .values()
                .map(|device| device.drops)
                .sum::<u64>())
        })
        .sum()
}

fn endpoints(lab: &Lab, scenario: &Scenario) -> Endpoints {
    let source = if scenario.is_local() {
        lab.ingress()
    } else {
        lab.source()
    };
    Endpoints {
        source: source.clone(),
        ..Endpoints::from(lab)
    }
}

/// Returns the figures of a stream. `device_drops` is the total over all streams of the scenario.
fn describe(scenario: &'static Scenario, report: &StreamReport, device_drops: u64) -> Counted {
    let kind = kind(&report.stream);
    let mut case = Case::new(&format!("{}/{kind}", scenario.name));
    case.set_param("fault", scenario.fault.to_string());
    case.set_param("packets", report.stream.packets);
    case.set_param("rate_pps", report.stream.rate_pps);
    case.set_param("payload_bytes", report.stream.payload_bytes);
    case.set_param("first_missing", report.first_missing.clone());
    if let Some(error) = &report.error {
        case.set_param("ended_early", error.clone());
    }
    case.metrics = metrics(report, device_drops);
    Counted {
        scenario,
        kind,
        case,
    }
}

fn metrics(report: &StreamReport, device_drops: u64) -> Metrics {
    let share = |count: u64| {
        if report.received == 0 {
            0.0
        } else {
            count as f64 / report.received as f64
        }
    };
    // A stream that ended early has not sent all packets. Those not sent count as missing too.
    let missing = report.stream.packets - report.received;
    let mut metrics = Metrics::from([
        ("missing_packets", missing as f64),
        ("duplicates_ratio", share(report.duplicates)),
        ("sent_packets", report.sent as f64),
        ("received_packets", report.received as f64),
        ("duplicates_packets", report.duplicates as f64),
        ("corrupt_packets", report.corrupt as f64),
        ("reordered_ratio", share(report.reordered)),
        ("receiver_overflow_packets", report.receiver_overflow as f64),
        ("device_drops_packets", device_drops as f64),
    ]);
    if let Some(retransmissions) = report.retransmissions {
        metrics.set("retransmissions_packets", retransmissions.into());
    }
    metrics
}
