//! Qian et al. end to end: the trigger starts replication, the controller decides, and paths that
//! do not help are pruned.

mod faults;
mod history;
mod report;
mod scene;
mod trial;

use crate::experiment::{Entry, Run};
use crate::summary::{Case, Metrics, Provenance, Summary};
use anyhow::{Result, bail};
use scene::Scene;
use trial::Trial;

/// Number of seeds with which each case is run. A run of a shortened duration uses one.
const SEEDS: u64 = 3;

/// The experiment.
pub(crate) struct Qian;

impl Entry for Qian {
    fn name(&self) -> &'static str {
        "qian"
    }

    fn about(&self) -> &'static str {
        "every figure of Qian et al. with replication started by the trigger, faulty paths under control, and MPTCP for comparison; three seeds each"
    }

    fn cases(&self) -> Vec<String> {
        Scene::names().into_iter().chain(faults::names()).collect()
    }

    fn run(&self, run: &Run) -> Result<Summary> {
        let chosen = run.chosen(self.cases())?;
        let seeds = if run.seconds.is_some() { 1 } else { SEEDS };
        let mut summary = Summary::new(self.name(), Provenance::gather(run.seed));
        let (mut trials, mut faults) = (Vec::new(), Vec::new());
        for (index, name) in chosen.iter().enumerate() {
            for seed in (run.seed..).take(seeds as usize) {
                println!("[{}/{}] {name}, seed {seed}", index + 1, chosen.len());
                let run = Run {
                    seed,
                    ..run.clone()
                };
                let measured = measure(&run, name, &mut summary, &mut trials, &mut faults);
                if run.stop.requested() {
                    bail!("stopped");
                }
                // A failed case does not discard the results of the others.
                if let Err(error) = measured {
                    println!("  failed: {error:#}");
                    summary.invalidate(format!("{name}, seed {seed}: {error:#}"));
                }
            }
        }
        trial::compare(&mut trials);
        summary.cases = chosen
            .iter()
            .filter_map(|name| case(name, &trials, &faults))
            .collect();
        report::write(&summary, &trials, &faults, &run.out)?;
        Ok(summary)
    }
}

/// Runs a case with one seed, and repeats it if it is not valid.
fn measure(
    run: &Run,
    name: &str,
    summary: &mut Summary,
    trials: &mut Vec<Trial>,
    faults: &mut Vec<(u64, faults::Outcome)>,
) -> Result<()> {
    let mut invalidate = |reasons: &[String]| {
        reasons
            .iter()
            .for_each(|reason| summary.invalidate(format!("{name}, seed {}: {reason}", run.seed)));
    };
    if let Some(scene) = Scene::of(name) {
        let reasons = |trial: &Trial| trial.outcome.invalid_because.clone();
        let (mut trial, attempts) = run.until_valid(|| trial::run(run, name, &scene), reasons)?;
        trial
            .outcome
            .case
            .params
            .insert("attempts".into(), attempts.into());
        invalidate(&trial.outcome.invalid_because);
        trials.push(trial);
    } else {
        let reasons = |outcome: &faults::Outcome| outcome.invalid_because.clone();
        let (outcome, _) = run.until_valid(|| faults::run(run, name), reasons)?;
        invalidate(&outcome.invalid_because);
        faults.push((run.seed, outcome));
    }
    Ok(())
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
