use super::scene::{self, FLOW};
use crate::emulator::{Emulator, EmulatorReport};
use crate::experiment::{Run, write_json};
use crate::experiments::faults::{SCENARIOS, Scenario};
use crate::experiments::history::History;
use crate::summary::{Case, Metrics};
use anyhow::Result;
use hawser_agent::Status;
use hawser_io::clock::unix_ns;
use hawser_testbed::edges::Edges;
use hawser_testbed::ring;
use hawser_testbed::topology::{Lab, Topology};
use hawser_testbed::traffic::{self, Endpoints, Family, Kind, Stream, StreamReport};
use hawser_testing::Control;
use std::path::Path;
use std::time::Duration;

/// The faults of path 1. None of them affects path 2.
const SCENARIO_NAMES: [&str; 6] = [
    "clean",
    "cut",
    "flapping",
    "lossy-20",
    "lossy-80",
    "reordering-20",
];

/// The time for which packets are sent.
const SECONDS: f64 = 20.0;

const RATE_PPS: u32 = 2_000;
const PAYLOAD_BYTES: usize = 300;

/// Longer than any delay of any path, so that late copies are counted.
const GRACE: Duration = Duration::from_millis(1_500);

/// Path 2, which loses no packets.
const LOSSLESS_PATH: u8 = 0b10;

/// The results of a scenario under control.
pub(crate) struct Outcome {
    pub(super) scenario: &'static Scenario,
    pub(super) case: Case,
    pub(super) history: History,
    pub(super) end: Duration,
    pub(super) invalid_because: Vec<String>,
}

/// Returns the scenarios of all cases with a fault.
pub(super) fn scenarios() -> impl Iterator<Item = &'static Scenario> {
    let known = |name| SCENARIOS.iter().find(|scenario| scenario.name == name);
    SCENARIO_NAMES.into_iter().filter_map(known)
}

/// Returns the name of the case of a scenario.
pub(super) fn name(scenario: &Scenario) -> String {
    format!("faults/{}", scenario.name)
}

/// Sends packets over two paths of which the first is faulty. The flow has mode evidence and no
/// trigger.
pub(super) fn run(run: &Run, scenario: &'static Scenario) -> Result<Outcome> {
    let seconds = run.seconds.map_or(SECONDS, |seconds| seconds.min(SECONDS));
    let directory = run.raw(&format!("faults-{}-{}", scenario.name, run.seed))?;
    let lab = Topology {
        control: true,
        ..Topology::with_paths(2)
    }
    .build()?;
    let emulator = Emulator::start(lab.network(), scenario.paths(&lab)?, run.seed)?;
    let mut control = Control::start(&lab, &run.hawser, &directory)?;
    let edges = replicating(run, &lab, &directory, &mut control)?;
    emulator.set_origin(ring::now());
    let began_ns = unix_ns();
    let streams = [stream(seconds)];
    let reports = traffic::run(&Endpoints::from(&lab), &streams, GRACE, &run.stop)?;
    write_json(&directory.join("events.json"), &control.events()?)?;
    let (ingress, egress) = edges.stop()?;
    control.stop()?;
    let emulation = emulator.stop()?;
    let raw = serde_json::json!({
        "streams": reports, "ingress": ingress, "egress": egress, "emulator": emulation,
    });
    write_json(&directory.join("outcome.json"), &raw)?;
    let history = History::read(&directory, FLOW, began_ns)?;
    let end = Duration::from_secs_f64(seconds);
    let case = describe(scenario, &reports[0], &history, end);
    Ok(Outcome {
        scenario,
        case,
        history,
        end,
        invalid_because: invalid_because(&reports[0], &emulation),
    })
}

/// Starts the agents and waits until the flow is replicated.
fn replicating(
    run: &Run,
    lab: &Lab,
    directory: &Path,
    control: &mut Control,
) -> Result<Edges<Status>> {
    let mut edges = Edges::<Status>::start_controlled(lab, &run.hawser, directory, control)?;
    control.create_flow(&scene::flow(lab))?;
    edges
        .ingress_agent
        .wait_until("replicated on both paths", |status| {
            status.send.values().any(|flow| flow.policy == 0b11)
        })?;
    Ok(edges)
}

fn stream(seconds: f64) -> Stream {
    Stream {
        kind: Kind::UdpConnected,
        family: Family::Ipv4,
        packets: (seconds * f64::from(RATE_PPS)).ceil() as u64,
        rate_pps: RATE_PPS,
        payload_bytes: PAYLOAD_BYTES,
    }
}

fn describe(scenario: &Scenario, report: &StreamReport, history: &History, end: Duration) -> Case {
    let mut case = Case::new(&name(scenario));
    case.set_param("fault", scenario.fault.to_string());
    case.set_param("packets", report.stream.packets);
    case.set_param("rate_pps", RATE_PPS);
    case.set_param("first_missing", report.first_missing.clone());
    case.metrics = Metrics::from([
        (
            "missing_packets",
            (report.stream.packets - report.received) as f64,
        ),
        ("duplicates_packets", report.duplicates as f64),
        (
            "without_whole_path_s",
            history.seconds_without(LOSSLESS_PATH, Duration::ZERO, end),
        ),
        ("paths_mean", history.paths_mean(Duration::ZERO, end)),
    ]);
    case
}

fn invalid_because(report: &StreamReport, emulation: &EmulatorReport) -> Vec<String> {
    let mut reasons = emulation.health.invalid_because();
    if report.receiver_overflow > 0 {
        let overflow = report.receiver_overflow;
        reasons.push(format!(
            "{overflow} packets reached the viewer and were dropped at its socket"
        ));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_one_of_the_fault_matrix() {
        assert_eq!(scenarios().count(), SCENARIO_NAMES.len());
    }
}
