//! The relay in the kernel against others: CPU time, added delay and system calls for each packet that is
//! delivered.

mod live;
mod report;
mod scenario;
mod stage;

use crate::bench::{median, median_ratio};
use crate::experiment::{Completed, Experiment, Measured, Run};
use crate::summary::{Case, Summary};
use anyhow::Result;
use live::Live;
use scenario::{Load, Trial, Way};
use stage::Slice;
use std::fmt;
use std::time::Duration;

/// Rounds in which each way to relay is measured once.
const ROUNDS: usize = 6;

/// Default duration of the measurement of a way, in seconds.
const MEASURED_S: f64 = 6.0;

/// The experiment.
pub(crate) struct Relay;

/// What is measured together.
pub(crate) enum Together {
    /// Ways to relay a load.
    Trial(Trial),
    /// The relay with real sessions.
    Live(Live),
}

impl fmt::Display for Together {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Together::Trial(trial) => trial.fmt(f),
            Together::Live(live) => live.fmt(f),
        }
    }
}

impl Experiment for Relay {
    type Case = Together;
    type Measured = Outcome;

    fn name(&self) -> &'static str {
        "relay"
    }

    fn about(&self) -> &'static str {
        "one publisher, up to 1,000 subscribers: the relay in the kernel, relays in user space, and one that rewrites every packet"
    }

    fn names(&self) -> Vec<String> {
        let loads = Load::all().into_iter();
        let names = loads.flat_map(|load| load.ways().map(move |way| load.name(way)));
        let live = Live::ALL.iter().map(Live::to_string);
        names.chain(live).collect()
    }

    fn cases(&self, run: &Run) -> Result<Vec<Together>> {
        let names = run.chosen(self.names())?;
        let trials = Load::all().into_iter().map(|load| {
            let is_chosen = |way: &Way| names.contains(&load.name(*way));
            let ways = load.ways().filter(is_chosen).collect();
            Trial { load, ways }
        });
        let trials = trials.filter(|trial| !trial.ways.is_empty());
        let live = Live::ALL.into_iter();
        let live = live.filter(|live| names.contains(&live.to_string()));
        Ok(trials
            .map(Together::Trial)
            .chain(live.map(Together::Live))
            .collect())
    }

    fn measure(&self, together: &Together, run: &Run) -> Result<Outcome> {
        match together {
            Together::Trial(trial) => {
                let slices = stage::measure(trial, run)?;
                Ok(Outcome {
                    invalid_because: undelivered(trial, &slices),
                    cases: cases(trial, &slices),
                })
            }
            Together::Live(live) => Ok(Outcome {
                invalid_because: Vec::new(),
                cases: vec![live.measure(run)?],
            }),
        }
    }

    fn summarise(
        &self,
        completed: Vec<Completed<Together, Outcome>>,
        summary: &mut Summary,
        run: &Run,
    ) -> Result<()> {
        let cases = completed.iter().flat_map(|one| one.measured.cases.clone());
        summary.cases = cases.collect();
        report::write(summary, &run.out)
    }
}

/// The results of what was measured together.
pub(crate) struct Outcome {
    cases: Vec<Case>,
    invalid_because: Vec<String>,
}

impl Measured for Outcome {
    fn invalid_because(&self) -> Vec<String> {
        self.invalid_because.clone()
    }
}

/// Returns the slices whose figures are not valid, because packets are missing.
fn undelivered(trial: &Trial, slices: &[Vec<Slice>]) -> Vec<String> {
    let mut reasons = Vec::new();
    for (round, slices) in slices.iter().enumerate() {
        for (way, slice) in trial.ways.iter().zip(slices) {
            let (expected, delivered) = (slice.expected, slice.delays.packets());
            if expected != delivered {
                reasons.push(format!(
                    "of {expected} packets in round {round}, {delivered} were delivered by {}",
                    way.name()
                ));
            }
        }
    }
    reasons
}

/// A figure of a slice.
type Figure = fn(&Slice) -> f64;

/// Returns the case of each way. `slices` has one of each way, in its order, for each round.
fn cases(trial: &Trial, slices: &[Vec<Slice>]) -> Vec<Case> {
    let ways = trial.ways.iter().enumerate();
    ways.map(|(index, way)| case(trial, slices, index, *way))
        .collect()
}

fn case(trial: &Trial, slices: &[Vec<Slice>], index: usize, way: Way) -> Case {
    let of = |way| trial.ways.iter().position(|other| *other == way);
    let figures = |index: usize, figure: Figure| -> Vec<f64> {
        slices.iter().map(|round| figure(&round[index])).collect()
    };
    let cpu = |index| figures(index, Slice::cpu_us_per_delivered_packet);
    let mut case = Case::new(&trial.load.name(way));
    trial.load.describe(&mut case);
    let mut set = |name: &str, figure: f64| case.metrics.set(name, figure);
    set("cpu_us_per_delivered_packets", median(cpu(index)));
    if let Some(gso) = of(Way::Gso) {
        set("cpu_ratio_to_gso", median_ratio(&cpu(index), &cpu(gso)));
    }
    let delays: [(&str, Figure); 3] = [
        ("p50", |slice| slice.delay_us(0.5)),
        ("p99", |slice| slice.delay_us(0.99)),
        ("stddev", Slice::delay_deviation_us),
    ];
    for (name, figure) in delays {
        set(
            &format!("added_delay_{name}_us"),
            median(figures(index, figure)),
        );
    }
    if let [Some(gso), Some(sendmmsg)] = [Way::Gso, Way::Sendmmsg].map(of) {
        for (name, figure) in &delays[..2] {
            let rivals = figures(gso, *figure)
                .into_iter()
                .zip(figures(sendmmsg, *figure));
            let gains = figures(index, *figure).into_iter().zip(rivals);
            let gains = gains.map(|(ours, (gso, sendmmsg))| gso.min(sendmmsg) - ours);
            set(
                &format!("added_delay_{name}_gain_us"),
                median(gains.collect()),
            );
        }
    }
    set(
        "syscalls_per_delivered_packets",
        median(figures(index, Slice::syscalls_per_delivered_packet)),
    );
    case
}

/// Returns a delay in microseconds; NaN if nothing was measured.
fn us(delay: Option<Duration>) -> f64 {
    delay.map_or(f64::NAN, |delay| delay.as_secs_f64() * 1e6)
}
