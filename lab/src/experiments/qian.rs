//! Qian et al. end to end: the trigger starts replication, the controller decides, and paths that
//! do not help are pruned.

mod faults;
mod report;
mod scene;
mod stream;

use super::faults::Scenario;
use crate::experiment::{Experiment, Measured, Results, Run};
use crate::summary::{Case, Metrics, Summary};
use anyhow::Result;
use scene::Scene;
use std::fmt;
use stream::StreamOutcome;

/// Number of seeds with which each case is run. A run of a shortened duration uses one.
const SEEDS: u64 = 3;

/// A case of the summary.
#[derive(Clone)]
pub(crate) enum Subject {
    Stream(Scene),
    Fault(&'static Scenario),
}

/// A case with one seed.
pub(crate) struct Trial {
    subject: Subject,
    seed: u64,
}

/// The results of a case with one seed.
pub(crate) enum Outcome {
    Stream(StreamOutcome),
    Fault(faults::Outcome),
}

/// The experiment.
pub(crate) struct Qian;

impl Experiment for Qian {
    type Case = Subject;
    type Trial = Trial;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "qian"
    }

    fn about(&self) -> &'static str {
        "every figure of Qian et al. with replication started by the trigger, faulty paths under control, and MPTCP for comparison; three seeds each"
    }

    fn cases(&self) -> Vec<Subject> {
        subjects()
    }

    fn trials(&self, run: &Run) -> Result<Vec<Trial>> {
        let count = if run.seconds.is_some() { 1 } else { SEEDS };
        let seeds = || (run.seed..).take(count as usize);
        let chosen = run.chosen(self.cases())?;
        Ok(chosen
            .into_iter()
            .flat_map(|subject| {
                seeds().map(move |seed| Trial {
                    subject: subject.clone(),
                    seed,
                })
            })
            .collect())
    }

    fn measure(&self, trial: &Trial, run: &Run) -> Result<Outcome> {
        let run = Run {
            seed: trial.seed,
            ..run.clone()
        };
        Ok(match &trial.subject {
            Subject::Stream(scene) => Outcome::Stream(stream::run(&run, scene)?),
            Subject::Fault(scenario) => Outcome::Fault(faults::run(&run, scenario)?),
        })
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let (mut names, mut trials, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for one in completed {
            names.push(one.trial.subject.to_string());
            match one.outcome {
                Outcome::Stream(mut trial) => {
                    trial.outcome.case.set_param("attempts", one.attempts);
                    trials.push(trial);
                }
                Outcome::Fault(outcome) => faults.push((one.trial.seed, outcome)),
            }
        }
        // The seeds of a case follow each other.
        names.dedup();
        stream::compare(&mut trials);
        summary.cases = names
            .iter()
            .filter_map(|name| case(name, &trials, &faults))
            .collect();
        report::write(summary, &trials, &faults, &run.out)
    }
}

/// Returns the subjects of all cases, in the order in which they run.
fn subjects() -> Vec<Subject> {
    let streams = Scene::all().into_iter().map(Subject::Stream);
    streams
        .chain(faults::scenarios().map(Subject::Fault))
        .collect()
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Stream(scene) => scene.fmt(f),
            Subject::Fault(scenario) => f.write_str(&faults::name(scenario)),
        }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, seed {}", self.subject, self.seed)
    }
}

impl Measured for Outcome {
    fn invalid_because(&self) -> Vec<String> {
        match self {
            Outcome::Stream(trial) => trial.outcome.invalid_because.clone(),
            Outcome::Fault(outcome) => outcome.invalid_because.clone(),
        }
    }
}

/// Returns the results of all seeds of a case, with the paper's figures.
fn case(name: &str, trials: &[StreamOutcome], faults: &[(u64, faults::Outcome)]) -> Option<Case> {
    let trials = trials.iter().map(|trial| (trial.seed, &trial.outcome.case));
    let faults = faults.iter().map(|(seed, outcome)| (*seed, &outcome.case));
    let mut case = stream::summarise(trials.chain(faults).filter(|(_, case)| case.name == name))?;
    case.paper = paper(name);
    Some(case)
}

/// Returns the figures that the paper's text gives for a case. Its other figures are curves and
/// bars without numbers.
fn paper(case: &str) -> Metrics {
    match case {
        "single/fhd" => Metrics::from([("fps_min", 3.0)]),
        "successive/nfov" | "evidence/nfov" => Metrics::from([("bandwidth_cost_ratio", 1.8)]),
        "successive/fhd" | "evidence/fhd" => Metrics::from([
            ("bandwidth_cost_ratio", 2.4),
            ("throughput_gain_ratio", 7.0),
        ]),
        _ => Metrics::default(),
    }
}
