//! The relay in the kernel against others: CPU time, added delay and system calls for each packet that is
//! delivered.

mod calls;
mod live;
mod report;
mod rivals;
mod scenario;
mod stage;

use crate::bench::{median, median_ratio};
use crate::experiment::{Experiment, Measured, Results, Run, progress};
use crate::relays::{HOW_TO_INSTALL, MoqRelay};
use crate::summary::{Case, Summary};
use anyhow::{Result, ensure};
use live::Live;
use rivals::Rival;
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

/// A case.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject {
    /// A way to relay a load.
    Load(Load, Way),
    /// Viewers of a live video.
    Live(Live),
    /// The thesis' set-up with a relay in user space.
    Rival(Rival),
}

impl Subject {
    fn needs_moq_relay(self) -> bool {
        match self {
            Subject::Load(_, way) | Subject::Rival(Rival(way)) => way == Way::MoqRelay,
            Subject::Live(_) => false,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Load(load, way) => f.write_str(&load.name(*way)),
            Subject::Live(live) => live.fmt(f),
            Subject::Rival(rival) => rival.fmt(f),
        }
    }
}

/// The cases that are measured together.
pub(crate) enum Together {
    /// Ways to relay a load.
    Trial(Trial),
    /// The relay with real sessions.
    Live(Live),
    /// The thesis' set-up with a relay in user space.
    Rival(Rival),
}

impl fmt::Display for Together {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Together::Trial(trial) => trial.fmt(f),
            Together::Live(live) => live.fmt(f),
            Together::Rival(rival) => rival.fmt(f),
        }
    }
}

impl Experiment for Relay {
    type Case = Subject;
    type Trial = Together;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "relay"
    }

    fn about(&self) -> &'static str {
        "one publisher, up to 1,000 subscribers: the relay in the kernel, relays in user space, one that rewrites every packet, and moq-relay"
    }

    fn cases(&self) -> Vec<Subject> {
        let loads = Load::all().into_iter();
        let loads = loads.flat_map(|load| load.ways().map(move |way| Subject::Load(load, way)));
        let live = Live::ALL.into_iter().map(Subject::Live);
        let rivals = Rival::ALL.into_iter().map(Subject::Rival);
        loads.chain(live).chain(rivals).collect()
    }

    fn trials(&self, run: &Run) -> Result<Vec<Together>> {
        let mut chosen = run.chosen(self.cases())?;
        if chosen.iter().any(|case| case.needs_moq_relay()) && MoqRelay::find()?.is_none() {
            progress(&format!(
                "cases with moq-relay are left out, because it is not installed: {HOW_TO_INSTALL}"
            ));
            chosen.retain(|case| !case.needs_moq_relay());
            ensure!(
                !chosen.is_empty(),
                "there is no moq-relay: {HOW_TO_INSTALL}"
            );
        }
        let mut trials: Vec<Together> = Vec::new();
        for case in chosen {
            match (case, trials.last_mut()) {
                (Subject::Load(load, way), Some(Together::Trial(trial))) if trial.load == load => {
                    trial.ways.push(way);
                }
                (Subject::Load(load, way), _) => trials.push(Together::Trial(Trial {
                    load,
                    ways: vec![way],
                })),
                (Subject::Live(live), _) => trials.push(Together::Live(live)),
                (Subject::Rival(rival), _) => trials.push(Together::Rival(rival)),
            }
        }
        Ok(trials)
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
            Together::Live(live) => Ok(Outcome::of(live.measure(run)?)),
            Together::Rival(rival) => Ok(Outcome::of(rival.measure(run)?)),
        }
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let cases = completed.iter().flat_map(|one| one.outcome.cases.clone());
        summary.cases = cases.collect();
        report::write(summary, &run.out)
    }
}

/// The results of what was measured together.
pub(crate) struct Outcome {
    cases: Vec<Case>,
    invalid_because: Vec<String>,
}

impl Outcome {
    fn of(case: Case) -> Self {
        Outcome {
            cases: vec![case],
            invalid_because: Vec::new(),
        }
    }
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
            let (expected, delivered) = (slice.expected, slice.delivered);
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
    trial.load.describe(way, &mut case);
    let programs = slices.first().map(|round| &round[index].program);
    if let Some(program) = programs.and_then(Option::as_deref) {
        case.set_param("program", program);
    }
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
    if let Some(rival) = of(Way::MoqRelay) {
        for (name, figure) in &delays[..2] {
            let ratio = median_ratio(&figures(index, *figure), &figures(rival, *figure));
            set(&format!("added_delay_{name}_ratio_to_moq_relay"), ratio);
        }
    }
    set(
        "syscalls_per_delivered_packets",
        median(figures(index, Slice::syscalls_per_delivered_packet)),
    );
    if way == Way::MoqRelay {
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            let delays = slices
                .iter()
                .map(|round| round[index].object_delay_us(share));
            set(&format!("object_delay_{name}_us"), median(delays.collect()));
        }
        let matched = figures(index, Slice::matched_ratio);
        set("matched_packets_ratio", median(matched));
    }
    case
}

/// Returns a delay in microseconds; NaN if nothing was measured.
fn us(delay: Option<Duration>) -> f64 {
    delay.map_or(f64::NAN, |delay| delay.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_with_moq_relay_need_it() {
        let cases = Relay.cases().into_iter();
        let with_it = cases.filter(|case| case.needs_moq_relay());
        let names: Vec<String> = with_it.map(|case| case.to_string()).collect();
        assert!(names.iter().all(|name| name.contains("moq-relay")));
        assert_eq!(names.first().unwrap(), "moq-relay/1/1");
        assert_eq!(names.last().unwrap(), "thesis/moq-relay");
    }
}
