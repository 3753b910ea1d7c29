//! Qian et al. end to end: the trigger starts replication, the controller decides, and paths that
//! do not help are pruned.

mod faults;
mod history;
mod report;
mod scene;
mod trial;

use super::faults::Scenario;
use crate::experiment::{Completed, Experiment, Measured, Run};
use crate::summary::{Case, Metrics, Summary};
use anyhow::Result;
use scene::Scene;
use std::fmt;
use trial::Trial;

/// Number of seeds with which each case is run. A run of a shortened duration uses one.
const SEEDS: u64 = 3;

/// A case of the summary.
#[derive(Clone)]
enum Subject {
    Stream(Scene),
    Fault(&'static Scenario),
}

/// A case with one seed.
pub(crate) struct Seeded {
    subject: Subject,
    seed: u64,
}

/// The results of a case with one seed.
pub(crate) enum Results {
    Stream(Trial),
    Fault(faults::Outcome),
}

/// The experiment.
pub(crate) struct Qian;

impl Experiment for Qian {
    type Case = Seeded;
    type Measured = Results;

    fn name(&self) -> &'static str {
        "qian"
    }

    fn about(&self) -> &'static str {
        "every figure of Qian et al. with replication started by the trigger, faulty paths under control, and MPTCP for comparison; three seeds each"
    }

    fn names(&self) -> Vec<String> {
        subjects().iter().map(Subject::to_string).collect()
    }

    fn cases(&self, run: &Run) -> Result<Vec<Seeded>> {
        let count = if run.seconds.is_some() { 1 } else { SEEDS };
        let seeds = || (run.seed..).take(count as usize);
        let chosen = run.chosen(subjects())?;
        Ok(chosen
            .into_iter()
            .flat_map(|subject| {
                seeds().map(move |seed| Seeded {
                    subject: subject.clone(),
                    seed,
                })
            })
            .collect())
    }

    fn measure(&self, case: &Seeded, run: &Run) -> Result<Results> {
        let run = Run {
            seed: case.seed,
            ..run.clone()
        };
        Ok(match &case.subject {
            Subject::Stream(scene) => Results::Stream(trial::run(&run, scene)?),
            Subject::Fault(scenario) => Results::Fault(faults::run(&run, scenario)?),
        })
    }

    fn summarise(
        &self,
        completed: Vec<Completed<Seeded, Results>>,
        summary: &mut Summary,
        run: &Run,
    ) -> Result<()> {
        let (mut names, mut trials, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for Completed {
            case,
            measured,
            attempts,
        } in completed
        {
            names.push(case.subject.to_string());
            match measured {
                Results::Stream(mut trial) => {
                    let params = &mut trial.outcome.case.params;
                    params.insert("attempts".into(), attempts.into());
                    trials.push(trial);
                }
                Results::Fault(outcome) => faults.push((case.seed, outcome)),
            }
        }
        // The seeds of a case follow each other.
        names.dedup();
        trial::compare(&mut trials);
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

impl fmt::Display for Seeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, seed {}", self.subject, self.seed)
    }
}

impl Measured for Results {
    fn invalid_because(&self) -> Vec<String> {
        match self {
            Results::Stream(trial) => trial.outcome.invalid_because.clone(),
            Results::Fault(outcome) => outcome.invalid_because.clone(),
        }
    }
}

/// Returns the results of all seeds of a case, with the paper's figures.
fn case(name: &str, trials: &[Trial], faults: &[(u64, faults::Outcome)]) -> Option<Case> {
    let trials = trials.iter().map(|trial| (trial.seed, &trial.outcome.case));
    let faults = faults.iter().map(|(seed, outcome)| (*seed, &outcome.case));
    let mut case = trial::summarise(trials.chain(faults).filter(|(_, case)| case.name == name))?;
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
