//! All parts at once: a stream is pushed through agents over four paths to an edge, behind which relays
//! distribute it to viewers. A controller decides which paths it takes.

mod coded;
mod crowd;
mod kill;
mod network;
mod report;
mod scene;
mod score;
mod venue;

use super::cellfusion::{Drive, drives};
use super::cross_traffic::{ActiveCrossTraffic, CrossTraffic};
use super::history::History;
use crate::counters;
use crate::emulator::{EmulatedPath, Emulator, EmulatorReport};
use crate::experiment::{Experiment, Measured, Results, Run, write_json};
use crate::programs::broadcast::{Broadcast, Needs};
use crate::programs::push::{Places, PushSource};
use crate::summary::{Case, Summary};
use anyhow::{Context, Result, bail};
use coded::CodedPath;
use crowd::Crowd;
use hawser_agent::Status;
use hawser_io::clock::unix_ns;
use hawser_testbed::edges::Edges;
use hawser_testbed::topology::{Lab, Topology};
use hawser_testing::Control;
use hawser_units::Bitrate;
use kill::{Program, Running};
use network::{Condition, PATHS, Phase};
use scene::{Scene, Treatment};
use score::{Kill, Score, Tables};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use venue::{NEIGHBOUR_DEVICE, Venue};

/// The rate of the stream while the paths are calm, rounded.
const STREAM_MBPS: f64 = 6.0;

/// Viewers: one decodes at the first relay, one behind a slow path, and one at the second relay. The others verify and
/// do not decode.
const VIEWERS: usize = 20;
const DECODING: usize = 3;

/// The part of the stream's rate that the path of the slow viewer bears.
const SLOW_RATIO: f64 = 0.1;

/// The time for which the stream runs before the network changes for the first time.
const CALM: Duration = Duration::from_secs(5);

/// The time that the last frames may take.
const LAST_FRAMES: Duration = Duration::from_millis(500);

/// The experiment.
pub(crate) struct Whole;

/// The results of a case.
pub(crate) struct Outcome {
    case: Case,
    score: Score,
    /// The paths of the stream over time.
    paths: Vec<(f64, f64)>,
    phases: Vec<Phase>,
    invalid_because: Vec<String>,
}

impl Measured for Outcome {
    fn invalid_because(&self) -> Vec<String> {
        self.invalid_because.clone()
    }
}

impl Experiment for Whole {
    type Case = Scene;
    type Trial = Scene;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "whole"
    }

    fn about(&self) -> &'static str {
        "all parts at once: a stream pushed over four faulty paths, under a controller, to relays and 20 viewers"
    }

    fn cases(&self) -> Vec<Scene> {
        Scene::all()
    }

    fn trials(&self, run: &Run) -> Result<Vec<Scene>> {
        run.chosen(Scene::all())
    }

    fn measure(&self, scene: &Scene, run: &Run) -> Result<Outcome> {
        measure(scene, run)
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let cases = completed.iter().map(|one| {
            let mut case = one.outcome.case.clone();
            case.set_param("attempts", one.attempts);
            case
        });
        summary.cases = cases.collect();
        for one in completed.iter().filter(|one| one.trial.twist.is_none()) {
            add_gap_to_best_fixed(one.trial, summary);
        }
        report::write(summary, &completed, &run.out)
    }
}

/// Adds to a case of the mode `auto` how much longer its stream stalls than in the best of the other modes that ran.
fn add_gap_to_best_fixed(scene: Scene, summary: &mut Summary) {
    if scene.treatment != Treatment::Auto {
        return;
    }
    let stalled = |scene: Scene| summary.case(&scene.to_string())?.metrics.get("stall_ratio");
    let fixed = Treatment::FIXED.map(|fixed| stalled(scene.treated(fixed)));
    let best = fixed.into_iter().flatten().reduce(f64::min);
    if let (Some(ours), Some(best)) = (stalled(scene), best)
        && let Some(case) = summary
            .cases
            .iter_mut()
            .find(|case| case.name == scene.to_string())
    {
        case.metrics.set("stall_gap_to_best_fixed", ours - best);
    }
}

fn measure(scene: &Scene, run: &Run) -> Result<Outcome> {
    let mut stage = Stage::set(scene, run)?;
    let played = stage.play(run)?;
    let ended = stage.end()?;

    let directory = &ended.directory;
    write_json(&directory.join("emulator.json"), &ended.emulation)?;
    let history = History::read(directory, scene::FLOW, played.from_ns)?;
    let end = ended.phases.last().map(Phase::to).unwrap_or_default();
    let mut case = Case::new(&scene.to_string());
    ended.describe(end, &mut case);
    case.metrics = played.score.metrics();
    let mut set = |name, figure| case.metrics.set(name, figure);
    set("bandwidth_cost_ratio", played.cost);
    set("paths_mean", history.paths_mean(Duration::ZERO, end));
    set("decision_s", decision_s(&history, &ended.phases));
    set(
        "policy_changes",
        history.changes(Duration::ZERO, end) as f64,
    );
    let health = &ended.emulation.health;
    set("emulator_lateness_p99_us", health.lateness_p99_us);
    set("emulator_cpu_cores", health.cpu_cores());
    Ok(Outcome {
        case,
        invalid_because: invalid_because(&played, &ended),
        score: played.score,
        paths: history.steps(end),
        phases: ended.phases,
    })
}

/// The network with controller and agents.
struct Stage {
    directory: PathBuf,
    drive: Drive,
    phases: Vec<Phase>,
    source: PushSource,
    edges: Edges<Status>,
    /// The coded tunnel, if the stream may take it.
    coded: Option<CodedPath>,
    control: Control,
    killed: Option<Program>,
    emulator: Emulator,
    venue: Venue,
    lab: Lab,
}

/// The rest of a stage that has ended.
struct Ended {
    directory: PathBuf,
    drive: String,
    phases: Vec<Phase>,
    source: PushSource,
    emulation: EmulatorReport,
}

/// The measurements of a stream.
struct Played {
    score: Score,
    /// The time at which the network changed for the first time, nanoseconds since 1970.
    from_ns: u64,
    /// The ratio of the bytes on the paths to those of the stream.
    cost: f64,
    /// The reasons why what competes was not as it should be.
    beside_invalid: Vec<String>,
}

impl Stage {
    /// Sets up the network, and starts controller and agents.
    fn set(scene: &Scene, run: &Run) -> Result<Self> {
        let directory = run.raw(&scene.folder())?;
        let phases = scene.network.phases(run.seconds);
        let drive = drive(run.seed)?;
        let lab = Topology {
            control: true,
            ..Topology::with_paths(PATHS)
        }
        .build()?;
        let venue = Venue::create(&lab)?;
        let links = links(&lab, Condition::Calm, CALM, &drive)?;
        let mut emulator = Emulator::start(lab.network(), links, run.seed)?;
        emulator.steer(&[
            lab.source(),
            lab.ingress(),
            lab.egress(),
            lab.viewer(),
            &venue.relay,
            &venue.audience,
            &venue.slow,
            &venue.neighbour,
        ])?;
        let mut control = Control::start(&lab, &run.hawser, &directory)?;
        let coded = scene.has_tunnel();
        let coded = coded.then(|| CodedPath::start(&lab, &run.hawser, &directory));
        let coded = coded.transpose()?;
        let edges =
            Edges::start_controlled_both_ways(&lab, &run.hawser, &directory, &control, |edge| {
                match coded {
                    Some(_) => CodedPath::section(edge),
                    None => String::new(),
                }
            })?;
        for flow in scene.flows(&lab) {
            control.create_flow(&flow)?;
        }
        Ok(Stage {
            source: scene.source(&directory)?,
            directory,
            drive,
            phases,
            edges,
            coded,
            control,
            killed: scene.killed(),
            emulator,
            venue,
            lab,
        })
    }

    /// Plays the stream to all viewers while the network changes.
    fn play(&mut self, run: &Run) -> Result<Played> {
        let (lab, venue) = (&self.lab, &self.venue);
        let places = Places::across(lab);
        let mut broadcast = Broadcast::start(&places, &run.hawser, &self.directory, &self.source)?;
        let [first, second] = [0, 1].map(Venue::relay_address);
        let publisher = broadcast.address().to_owned();
        broadcast.add_relay("relay-1", lab.viewer(), &publisher, first)?;
        broadcast.add_relay("relay-2", &venue.relay, &first.to_string(), second)?;
        let tables = [
            broadcast.add_viewer("viewer", &venue.audience, first, Needs::Frames)?,
            broadcast.add_viewer("slow-viewer", &venue.slow, first, Needs::Nothing)?,
            broadcast.add_viewer("viewer-of-relay-2", &venue.audience, second, Needs::Frames)?,
        ];
        let others = VIEWERS - DECODING;
        let crowd = Crowd::start(&venue.audience, first, &broadcast.key(), others)?;
        broadcast.await_frames(&run.stop)?;
        pause(run, &mut broadcast, CALM)?;

        let (from_ns, before) = (unix_ns(), Sent::read(&self.lab)?);
        let (mut beside_invalid, mut kills) = (Vec::new(), Vec::new());
        for phase in self.phases.clone() {
            let end = Instant::now() + phase.length;
            let links = links(&self.lab, phase.condition, phase.length, &self.drive)?;
            self.emulator.change(links);
            let beside = self.cross_traffic(phase.condition, run)?;
            if let Some(program) = self.killed {
                let due = program.is_due_after(phase.length);
                pause(run, &mut broadcast, due)?;
                kills.push(Kill::at(unix_ns(), phase.condition.name()));
                self.kill(program, &mut broadcast, run)?;
            }
            let rest = end.saturating_duration_since(Instant::now());
            pause(run, &mut broadcast, rest)?;
            beside_invalid.extend(beside.stop()?.invalid_because);
        }
        let (to_ns, after) = (unix_ns(), Sent::read(&self.lab)?);
        pause(run, &mut broadcast, LAST_FRAMES)?;
        let crowd = crowd.stop()?;
        let encoded = broadcast.encoded();
        broadcast.stop()?;
        write_json(&self.directory.join("events.json"), &self.control.events()?)?;
        let tables = Tables {
            encoded: &encoded,
            viewers: tables.each_ref().map(PathBuf::as_path),
        };
        Ok(Played {
            score: Score::read(&tables, crowd, (from_ns, to_ns), kills, self.source.fps)?,
            from_ns,
            cost: before.cost_until(&after),
            beside_invalid,
        })
    }

    /// Kills a program, and starts it again after the time that systemd waits.
    fn kill(&mut self, program: Program, broadcast: &mut Broadcast, run: &Run) -> Result<()> {
        let mut running = Running {
            control: &mut self.control,
            edges: &mut self.edges,
            coded: self.coded.as_mut(),
            broadcast,
            directory: &self.directory,
        };
        running.kill(program)?;
        if run.stop.sleep(program.is_restarted_after()) {
            bail!("stopped");
        }
        running.start_again(program)
    }

    /// Starts the traffic that competes with the stream on the default path.
    fn cross_traffic(&self, condition: Condition, run: &Run) -> Result<ActiveCrossTraffic> {
        let traffic = match condition {
            Condition::L4s => CrossTraffic::cubic(1),
            _ => CrossTraffic::NONE,
        };
        let (from, to) = (&self.venue.neighbour, self.lab.viewer());
        let address = self.lab.viewer_v4().into();
        ActiveCrossTraffic::start(&traffic, from, to, address, run.seed)
    }

    /// Stops agents, controller and links.
    fn end(self) -> Result<Ended> {
        self.edges.stop()?;
        drop(self.coded);
        self.control.stop()?;
        Ok(Ended {
            emulation: self.emulator.stop()?,
            directory: self.directory,
            drive: self.drive.name,
            phases: self.phases,
            source: self.source,
        })
    }
}

fn pause(run: &Run, broadcast: &mut Broadcast, duration: Duration) -> Result<()> {
    if run.stop.sleep(duration) {
        bail!("stopped");
    }
    broadcast.check_running()
}

impl Ended {
    fn describe(&self, end: Duration, case: &mut Case) {
        case.set_param("codec", self.source.codec.clone());
        case.set_param("fps", self.source.fps);
        case.set_param("max_rate_mbps", self.source.max_rate_mbps);
        case.set_param("seconds", end.as_secs_f64());
        case.set_param("viewers", VIEWERS);
        case.set_param("decoding_viewers", DECODING);
        case.set_param("slow_path_mbps", SLOW_RATIO * STREAM_MBPS);
        let mut conditions = self.phases.iter().map(|phase| phase.condition);
        if conditions.any(|condition| condition == Condition::Cellular) {
            case.set_param("drive", self.drive.clone());
        }
    }
}

/// Returns the drive of a seed, which has a link for each path.
fn drive(seed: u64) -> Result<Drive> {
    let mut drives = drives()?;
    drives.retain(|drive| drive.paths() == PATHS);
    let count = drives.len().max(1) as u64;
    let chosen = drives.into_iter().nth((seed % count) as usize);
    Ok(chosen.unwrap_or_else(|| Drive::generated(seed, false)))
}

/// Returns all links: those of the paths, and that of the slow viewer.
fn links(
    lab: &Lab,
    condition: Condition,
    length: Duration,
    drive: &Drive,
) -> Result<Vec<EmulatedPath>> {
    let mut links = condition.links(lab, length, drive)?;
    let slow = Bitrate::from_mbps(SLOW_RATIO * STREAM_MBPS);
    links.push(Venue::slow_path(slow));
    Ok(links)
}

/// The bytes that were sent until some time, with all headers.
struct Sent {
    by_source: u64,
    /// On all paths, without those of what competes.
    on_paths: u64,
}

impl Sent {
    fn read(lab: &Lab) -> Result<Self> {
        let source = &lab.addressing().source.near.device;
        let of_ingress = counters::of(lab.ingress())?;
        let device = |name: &str| {
            let counters = of_ingress.get(name).copied();
            counters.with_context(|| format!("the ingress has no device {name}"))
        };
        let paths = lab.paths().map(|path| device(&lab.path(path).near.device));
        let on_paths = paths.map(|counters| Ok(counters?.sent_bytes));
        let competing = device(NEIGHBOUR_DEVICE)?.received_bytes;
        Ok(Sent {
            by_source: counters::of_device(lab.source(), source)?.sent_bytes,
            on_paths: on_paths.sum::<Result<u64>>()?.saturating_sub(competing),
        })
    }

    fn cost_until(&self, after: &Sent) -> f64 {
        (after.on_paths - self.on_paths) as f64 / (after.by_source - self.by_source) as f64
    }
}

/// Returns the longest time in seconds from a change of the network to the last change of the policy before the
/// network changes again.
fn decision_s(history: &History, phases: &[Phase]) -> f64 {
    let end = phases.last().map(Phase::to).unwrap_or_default();
    let changes = phases.iter().flat_map(Phase::changes);
    let changes: Vec<Duration> = changes.chain([end]).collect();
    let settled = changes
        .windows(2)
        .map(|pair| history.settled_after(pair[0], pair[1]));
    settled.fold(0.0, f64::max)
}

/// Returns the reasons why the figures are not valid.
fn invalid_because(played: &Played, ended: &Ended) -> Vec<String> {
    let mut reasons = ended.emulation.health.invalid_because();
    reasons.extend_from_slice(&played.beside_invalid);
    let score = &played.score;
    let (captured, fps) = (score.captured_fps(), ended.source.fps);
    if captured < fps * 0.99 {
        reasons.push(format!(
            "the publisher captured {captured:.1} frames/s instead of {fps}: the machine was overloaded"
        ));
    }
    let overflow = score.overflow();
    if overflow > 0 {
        reasons.push(format!(
            "{overflow} packets reached viewers and were dropped at their sockets: the machine was overloaded"
        ));
    }
    reasons
}
