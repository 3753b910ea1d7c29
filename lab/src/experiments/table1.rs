//! Section IV of Qian et al.: a stream over five disjoint paths, of which the default one starts to
//! vary.

mod report;

use super::five_paths::Variation;
use super::live::{self, LEVELS, Live, Outcome, bandwidth_cost};
use crate::experiment::{Experiment, Run};
use crate::record::Record;
use crate::summary::{Metrics, Provenance, Summary};
use anyhow::{Context, Result, bail};
use hawser_testbed::edges::{Edges, Replication};
use hawser_testbed::topology::Topology;
use hawser_units::PathSet;
use std::time::Duration;

const POLICIES: [&str; 3] = ["single", "redirect", "replicate"];

/// The experiment.
pub struct Table1;

impl Experiment for Table1 {
    fn name(&self) -> &'static str {
        "table1"
    }

    fn about(&self) -> &'static str {
        "a live stream over the five paths of Qian et al. with a varying default path: on a single path, redirected, replicated"
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
            let measured = run.until_valid(
                || run_case(run, name),
                |outcome| outcome.invalid_because.clone(),
            );
            let (mut outcome, attempts) = measured.with_context(|| format!("case {name}"))?;
            outcome
                .case
                .params
                .insert("attempts".into(), attempts.into());
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

fn run_case(run: &Run, name: &str) -> Result<Outcome> {
    let (policy, level) = name.split_once('/').expect("cases are policy/level");
    let variation = Variation::once(run.seconds);
    let live = Live::prepare(
        run,
        &name.replace('/', "-"),
        &Topology::default(),
        &variation,
    )?;
    let source = live::source(level, &live.directory)?;
    let edges = Edges::start(
        &live.lab,
        &run.hawser,
        &live.directory,
        &replication(policy),
    )?;
    let mut stream = live.stream(run, &source)?;
    live.sleep(run, &mut stream, Duration::ZERO, variation.from())?;
    let before = edges.ingress()?;
    live.sleep(run, &mut stream, variation.from(), variation.to())?;
    let after = edges.ingress()?;
    live.sleep(run, &mut stream, variation.to(), variation.end)?;
    let record = Record::read(&stream.stop()?)?;
    edges.stop()?;
    let emulation = live.finish()?;

    let mut case = live::case(name, &source, &variation);
    case.metrics = live::metrics(&record, &emulation, &variation);
    case.metrics
        .set("bandwidth_cost_ratio", bandwidth_cost(&before, &after));
    case.paper = paper(name);
    let invalid_because = live::invalid_because(&source, &record, &emulation, &variation);
    Ok(Outcome {
        case,
        record,
        variation,
        invalid_because,
    })
}

/// Returns the replication of a policy. `redirect` uses the path with the smallest delay during the
/// variation, which is the second.
fn replication(policy: &str) -> Replication {
    let paths = match policy {
        "single" => PathSet::EMPTY,
        "redirect" => PathSet::from_bits(0b0_0010),
        "replicate" => PathSet::from_bits(0b1_1111),
        other => unreachable!("no policy is called {other}"),
    };
    Replication::on(paths)
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
