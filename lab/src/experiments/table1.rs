//! Section IV of Qian et al.: a stream over five disjoint paths, of which the default one starts to
//! vary.

mod report;

use super::five_paths::Variation;
use super::live::{self, LEVELS, Live, Outcome, PUSH, RunningStream, bandwidth_cost};
use crate::experiment::{Completed, Experiment, Results, Run};
use crate::programs::push::{PICTURE, PushSource};
use crate::programs::stream::Source;
use crate::record::Record;
use crate::summary::{Case, Metrics, Summary};
use anyhow::Result;
use hawser_testbed::edges::{Edges, Replication};
use hawser_testbed::topology::Topology;
use hawser_units::PathSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The treatment of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// The stream stays on the default path.
    Single,
    /// The stream takes the path with the smallest delay during the variation, the second.
    Redirect,
    /// The stream is replicated on all paths.
    Replicate,
}

/// A treatment of a stream of a resolution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scene {
    policy: Policy,
    level: &'static str,
}

/// The experiment.
pub(crate) struct Table1;

impl Experiment for Table1 {
    type Case = Scene;
    type Trial = Scene;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "table1"
    }

    fn about(&self) -> &'static str {
        "a live stream over the five paths of Qian et al. with a varying default path: on a single path, redirected, replicated"
    }

    fn cases(&self) -> Vec<Scene> {
        scenes()
    }

    fn trials(&self, run: &Run) -> Result<Vec<Scene>> {
        run.chosen(scenes())
    }

    fn measure(&self, scene: &Scene, run: &Run) -> Result<Outcome> {
        let variation = Variation::once(run.seconds);
        let live = Live::prepare(run, &scene.folder(), &Topology::default(), &variation)?;
        let played = Played::prepare(scene.level, &live.directory)?;
        let seen = scene.stream(run, &live, &played, &variation)?;
        let emulation = live.finish()?;

        let name = scene.to_string();
        let mut case = live::case(&name, played.recording(), &variation);
        played.describe(&mut case);
        case.metrics = live::metrics(&seen.record, &emulation, &variation);
        if matches!(played, Played::Pull(_)) {
            let identical = live::identical(&seen.record);
            case.metrics.set("identical_frames_ratio", identical);
        }
        case.metrics.set("bandwidth_cost_ratio", seen.cost);
        case.paper = paper(&name);
        let invalid_because =
            live::invalid_because(played.fps(), &seen.record, &emulation, &variation);
        Ok(Outcome {
            policy: scene.policy.name(),
            level: scene.level,
            case,
            record: seen.record,
            variation,
            invalid_because,
            picture: seen.picture,
        })
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let with_attempts = |one: Completed<Scene, Outcome>| {
            let mut outcome = one.outcome;
            outcome.case.set_param("attempts", one.attempts);
            outcome
        };
        let outcomes: Vec<Outcome> = completed.into_iter().map(with_attempts).collect();
        summary.cases = outcomes
            .iter()
            .map(|outcome| outcome.case.clone())
            .collect();
        report::write(summary, &outcomes, &run.out)
    }
}

fn scenes() -> Vec<Scene> {
    let of_level = |level| Policy::ALL.map(|policy| Scene { policy, level });
    let levels = LEVELS.into_iter().chain([PUSH]);
    levels.flat_map(of_level).collect()
}

/// The source of a case, by the way in which it is streamed.
enum Played {
    Pull(Source),
    Push(PushSource),
}

impl Played {
    fn prepare(level: &str, directory: &Path) -> Result<Self> {
        Ok(match level {
            PUSH => Played::Push(live::push_source(directory)?),
            _ => Played::Pull(live::source(level, directory)?),
        })
    }

    fn recording(&self) -> &str {
        match self {
            Played::Pull(source) => &source.recording,
            Played::Push(source) => &source.recording,
        }
    }

    fn fps(&self) -> f64 {
        match self {
            Played::Pull(source) => source.fps,
            Played::Push(source) => source.fps,
        }
    }

    fn describe(&self, case: &mut Case) {
        match self {
            Played::Pull(source) => case.set_param("congestion", source.congestion.clone()),
            Played::Push(source) => {
                case.set_param("codec", source.codec.clone());
                case.set_param("max_rate_mbps", source.max_rate_mbps);
            }
        }
    }

    fn start(&self, run: &Run, live: &Live) -> Result<RunningStream> {
        match self {
            Played::Pull(source) => live.stream(run, source),
            Played::Push(source) => live.push(run, source),
        }
    }
}

/// The results of a stream.
struct Seen {
    record: Record,
    /// The bandwidth cost during the variation.
    cost: f64,
    /// The picture at the end of the variation, of a stream that is pushed.
    picture: Option<Vec<u8>>,
}

impl Scene {
    /// The folder of the raw data.
    fn folder(&self) -> String {
        format!("{}-{}", self.policy.name(), self.level)
    }

    fn stream(
        &self,
        run: &Run,
        live: &Live,
        played: &Played,
        variation: &Variation,
    ) -> Result<Seen> {
        let replication = Replication::on(self.policy.paths());
        let edges = Edges::start(&live.lab, &run.hawser, &live.directory, &replication)?;
        let mut stream = played.start(run, live)?;
        live.sleep(run, &mut stream, Duration::ZERO, variation.from())?;
        let before = edges.ingress()?;
        live.sleep(run, &mut stream, variation.from(), variation.to())?;
        let after = edges.ingress()?;
        let picture = match played {
            Played::Pull(_) => None,
            Played::Push(_) => Some(fs::read(live.directory.join(PICTURE))?),
        };
        live.sleep(run, &mut stream, variation.to(), variation.end)?;
        let record = stream.stop()?;
        edges.stop()?;
        Ok(Seen {
            record,
            cost: bandwidth_cost(&before, &after),
            picture,
        })
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.policy.name(), self.level)
    }
}

impl Policy {
    const ALL: [Policy; 3] = [Policy::Single, Policy::Redirect, Policy::Replicate];

    fn name(self) -> &'static str {
        match self {
            Policy::Single => "single",
            Policy::Redirect => "redirect",
            Policy::Replicate => "replicate",
        }
    }

    fn paths(self) -> PathSet {
        match self {
            Policy::Single => PathSet::EMPTY,
            Policy::Redirect => PathSet::from_bits(0b0_0010),
            Policy::Replicate => PathSet::from_bits(0b1_1111),
        }
    }
}

/// Returns the figures that the paper's text gives for a case. Its other figures are curves without
/// numbers.
fn paper(case: &str) -> Metrics {
    match case {
        "single/fhd" => Metrics::from([("fps_min", 3.0)]),
        "replicate/nfov" => Metrics::from([("bandwidth_cost_ratio", 1.8)]),
        "replicate/fhd" => Metrics::from([("bandwidth_cost_ratio", 2.4)]),
        _ => Metrics::default(),
    }
}
