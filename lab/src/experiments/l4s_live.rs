//! A stream that is pushed through an emulated bottleneck in real time, by the programs themselves,
//! beside TCP flows of the kernel.

mod report;
mod scenario;
mod score;

use super::cross_traffic::ActiveCrossTraffic;
use crate::emulator::{Emulator, EmulatorReport};
use crate::experiment::{Experiment, Measured, Results, Run, write_json};
use crate::programs::push::{Places, PushLogs, PushedStream};
use crate::programs::tunnel::{self, TunnelProcesses};
use crate::summary::{Case, Summary};
use anyhow::{Result, bail};
use hawser_testbed::edges::{Edges, Replication};
use hawser_testbed::ring;
use hawser_testbed::topology::{Lab, Topology};
use scenario::{MAX_RATE_MBPS, Scenario};
use score::Score;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// The time for which the stream runs alone.
const ALONE: Duration = Duration::from_secs(5);

/// The time after the start of the cross traffic that is not measured.
const WARM_UP: Duration = Duration::from_secs(10);

/// Default duration of the measurement in seconds.
const MEASURED_S: f64 = 30.0;

/// The experiment.
pub(crate) struct L4sLive;

impl Experiment for L4sLive {
    type Case = Scenario;
    type Trial = Scenario;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "l4s-live"
    }

    fn about(&self) -> &'static str {
        "a volumetric stream pushed in real time through DualPI2: alone, beside the kernel's TCP Cubic, with steps, with loss, replicated, both ways, in the tunnel"
    }

    fn cases(&self) -> Vec<Scenario> {
        Scenario::ALL.to_vec()
    }

    fn trials(&self, run: &Run) -> Result<Vec<Scenario>> {
        run.chosen(Scenario::ALL.to_vec())
    }

    fn measure(&self, scenario: &Scenario, run: &Run) -> Result<Outcome> {
        measure(*scenario, run)
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let cases = completed.iter().map(|one| {
            let mut case: Case = one.outcome.case.clone();
            case.set_param("attempts", one.attempts);
            case
        });
        summary.cases = cases.collect();
        report::write(summary, &completed, &run.out)
    }
}

/// The result of one run.
pub(crate) struct Outcome {
    case: Case,
    score: Score,
    invalid_because: Vec<String>,
}

impl Measured for Outcome {
    fn invalid_because(&self) -> Vec<String> {
        self.invalid_because.clone()
    }
}

/// The times of a measurement, nanoseconds since 1970, and what competed meanwhile.
#[derive(Debug, Clone, Copy)]
struct Window {
    from_ns: u64,
    to_ns: u64,
    competitors_mbps: Option<f64>,
}

fn measure(scenario: Scenario, run: &Run) -> Result<Outcome> {
    let directory = run.raw(&scenario.folder())?;
    let lab = Topology::with_paths(scenario.paths()).build()?;
    let measured = Duration::from_secs_f64(run.seconds.unwrap_or(MEASURED_S));
    let links = scenario.links(&lab, ALONE + WARM_UP, measured)?;
    let mut emulator = Emulator::start(lab.network(), links, run.seed)?;
    emulator.steer(&[lab.source(), lab.ingress(), lab.egress(), lab.viewer()])?;
    let carrier = Carrier::start(scenario, &lab, &run.hawser, &directory)?;
    let source = scenario.source(&directory)?;
    let start = |places: &Places<'_>, directory: &Path| {
        PushedStream::start(places, &run.hawser, directory, &source, &run.stop)
    };
    let streams = Streams {
        there: start(&carrier.places(&lab), &directory)?,
        back: match scenario {
            Scenario::BothWays => Some(start(&Places::back(&lab), &directory.join("back"))?),
            _ => None,
        },
    };
    emulator.set_origin(ring::now());
    let (logs, window) = observe(scenario, run, &lab, streams, measured)?;
    carrier.stop()?;
    let emulation = emulator.stop()?;
    write_json(&directory.join("emulator.json"), &emulation)?;
    let score = Score::read(&logs.there, window)?;
    let invalid_because = invalid_because(&score, &emulation, source.fps);
    let mut case = score.case(&scenario.to_string());
    if let Some(back) = &logs.back {
        Score::read(back, window)?.add_as_other_direction(&mut case.metrics);
    }
    case.set_param("codec", source.codec);
    case.set_param("max_rate_mbps", MAX_RATE_MBPS);
    case.set_param("seconds", measured.as_secs_f64());
    case.metrics
        .set("emulator_lateness_p99_us", emulation.health.lateness_p99_us);
    Ok(Outcome {
        case,
        score,
        invalid_because,
    })
}

/// The way of the stream over the network of the lab.
enum Carrier {
    /// Agents at both edges.
    Edges(Edges<hawser_agent::Status>),
    /// The tunnel.
    Tunnel {
        ends: TunnelProcesses,
        /// The client's inner address.
        client: IpAddr,
    },
}

impl Carrier {
    fn start(scenario: Scenario, lab: &Lab, hawser: &Path, directory: &Path) -> Result<Self> {
        if !scenario.is_in_tunnel() {
            let replication = Replication::on(scenario.replicated_paths());
            let edges = Edges::start(lab, hawser, directory, &replication)?;
            return Ok(Carrier::Edges(edges));
        }
        tunnel::route_to_server(lab)?;
        let (client, server) = (lab.ingress(), lab.egress());
        let ends = TunnelProcesses::start(hawser, client, server, directory, "path*", "")?;
        let address = ends.client_address(scenario.paths())?;
        tunnel::wait_for_route(client, tunnel::INNER, tunnel::DEVICE)?;
        Ok(Carrier::Tunnel {
            ends,
            client: address,
        })
    }

    fn places<'a>(&self, lab: &'a Lab) -> Places<'a> {
        match self {
            Carrier::Edges(_) => Places::across(lab),
            Carrier::Tunnel { client, .. } => Places::in_tunnel(lab, *client),
        }
    }

    fn stop(self) -> Result<()> {
        match self {
            Carrier::Edges(edges) => edges.stop().map(drop),
            Carrier::Tunnel { ends, .. } => {
                drop(ends);
                Ok(())
            }
        }
    }
}

/// The stream, and that of the other direction if there is one.
struct Streams {
    there: PushedStream,
    back: Option<PushedStream>,
}

/// The logs of both directions.
struct Logs {
    there: PushLogs,
    back: Option<PushLogs>,
}

impl Streams {
    fn check_running(&mut self) -> Result<()> {
        self.there.check_running()?;
        self.back
            .as_mut()
            .map_or(Ok(()), PushedStream::check_running)
    }

    fn stop(self) -> Result<Logs> {
        Ok(Logs {
            there: self.there.stop()?,
            back: self.back.map(PushedStream::stop).transpose()?,
        })
    }
}

/// Runs the streams and their competitors. Returns the logs, and what was measured when.
fn observe(
    scenario: Scenario,
    run: &Run,
    lab: &Lab,
    mut streams: Streams,
    measured: Duration,
) -> Result<(Logs, Window)> {
    let pause = |streams: &mut Streams, duration| {
        if run.stop.sleep(duration) {
            bail!("stopped");
        }
        streams.check_running()
    };
    pause(&mut streams, ALONE)?;
    let (from, to) = (lab.source(), lab.viewer());
    let competitors = scenario.competitors();
    let address = lab.viewer_v4().into();
    let active = ActiveCrossTraffic::start(&competitors, from, to, address, run.seed)?;
    pause(&mut streams, WARM_UP)?;
    let (from_ns, before) = (hawser_io::clock::unix_ns(), active.received_bytes());
    pause(&mut streams, measured)?;
    let (to_ns, after) = (hawser_io::clock::unix_ns(), active.received_bytes());
    let logs = streams.stop()?;
    active.stop()?;
    let mbps = (after - before) as f64 * 8e3 / (to_ns - from_ns) as f64;
    let window = Window {
        from_ns,
        to_ns,
        competitors_mbps: (!competitors.is_none()).then_some(mbps),
    };
    Ok((logs, window))
}

/// Returns the reasons why the figures are not valid.
fn invalid_because(score: &Score, emulation: &EmulatorReport, fps: f64) -> Vec<String> {
    let mut reasons = emulation.health.invalid_because();
    let encoded = score.encoded_fps();
    if encoded < fps * 0.99 {
        reasons.push(format!(
            "the publisher encoded {encoded:.1} frames/s instead of {fps}: the machine was overloaded"
        ));
    }
    reasons
}
