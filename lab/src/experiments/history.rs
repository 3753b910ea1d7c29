//! The judgements and decisions of controller and agents during a stream, from the traces of the agents.

use super::five_paths::Variation;
use anyhow::{Context, Result};
use hawser_testbed::topology::Edge;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// Judgements and decisions during a stream, from the traces of both agents. Times are seconds
/// since the start of the stream.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    /// The changes of the policy: time, and the paths from then on. Bit i is path i+1, 0 is the
    /// default route. The first entry is the policy before the stream.
    pub(super) policies: Vec<(f64, u8)>,
    /// The windows of packets of each path, at the egress.
    pub(super) windows: Vec<Window>,
    /// The times at which the trigger fired.
    pub(super) degradations: Vec<Degradation>,
    /// The times of the first copy on a new path.
    pub(super) first_copies: Vec<f64>,
}

/// An activation of the trigger: the time of it, and the time at which the last of the late
/// requests was due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Degradation {
    pub(super) at: f64,
    pub(super) due: f64,
}

/// A window of packets on a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Window {
    pub(super) at: f64,
    /// The path's number, from 1.
    pub(super) path: u8,
    /// Number of copies that arrived within the tolerance.
    pub(super) rewards: u32,
}

/// A row of an agent's trace.
#[derive(Debug, Deserialize)]
struct Row {
    monotonic_ns: u64,
    unix_ns: u64,
    flow: String,
    event: String,
    code: Option<u8>,
    path: Option<u8>,
    rewards: Option<u32>,
    detail: String,
}

impl History {
    /// Reads what the traces of the agents in `directory` say of a flow. `began_ns` is the start of the stream in
    /// nanoseconds since 1970.
    pub(super) fn read(directory: &Path, flow: &str, began_ns: u64) -> Result<Self> {
        let mut history = History {
            policies: vec![(f64::NEG_INFINITY, 0)],
            ..History::default()
        };
        for (at, row) in rows(directory, Edge::Ingress, flow, began_ns)? {
            match (row.event.as_str(), row.code) {
                ("policy", Some(code)) => history.policies.push((at, code)),
                ("first_replica", _) => history.first_copies.push(at),
                _ => {}
            }
        }
        for (at, row) in rows(directory, Edge::Egress, flow, began_ns)? {
            match (row.event.as_str(), row.path, row.rewards) {
                ("window", Some(path), Some(rewards)) => {
                    history.windows.push(Window { at, path, rewards })
                }
                ("degraded", ..) => {
                    let due = at - since_due_us(&row.detail)? / 1e6;
                    history.degradations.push(Degradation { at, due });
                }
                _ => {}
            }
        }
        Ok(history)
    }

    /// Returns the mean number of paths between two times of the stream. The default route counts
    /// as one.
    pub(super) fn paths_mean(&self, from: Duration, to: Duration) -> f64 {
        self.mean(from, to, |code| f64::from(paths(code)))
    }

    /// Returns how often the paths of the policy changed between two times of the stream.
    pub(super) fn changes(&self, from: Duration, to: Duration) -> usize {
        let within = from.as_secs_f64()..to.as_secs_f64();
        let pairs = self.policies.windows(2);
        let changes = pairs.filter(|pair| pair[0].1 != pair[1].1 && within.contains(&pair[1].0));
        changes.count()
    }

    /// Returns the time in seconds for which the policy contains none of the given paths.
    pub(super) fn seconds_without(&self, wanted: u8, from: Duration, to: Duration) -> f64 {
        self.mean(from, to, |code| f64::from(u8::from(code & wanted == 0)))
            * (to - from).as_secs_f64()
    }

    /// Returns the time at which the trigger first fired in the variation.
    pub(super) fn triggered_in(&self, variation: &Variation) -> Option<f64> {
        let within = variation.from().as_secs_f64()..variation.to().as_secs_f64();
        self.degradations
            .iter()
            .map(|degradation| degradation.at)
            .find(|at| within.contains(at))
    }

    /// Returns the time in seconds between two events: the due time of the late request that made
    /// the trigger fire for the first time, and the first copy on a new path.
    pub(super) fn trigger_to_first_copy(&self) -> Option<f64> {
        let Degradation { due, .. } = *self.degradations.first()?;
        self.first_copies
            .iter()
            .find(|at| **at >= due)
            .map(|at| at - due)
    }

    /// Returns the time in seconds from a change of the network to the last change of the policy before `until`; 0 if
    /// there is none.
    pub(super) fn settled_after(&self, change: Duration, until: Duration) -> f64 {
        let (change, until) = (change.as_secs_f64(), until.as_secs_f64());
        let mut latest_first = self.policies.iter().rev().map(|(at, _)| *at);
        let last = latest_first.find(|at| (change..until).contains(at));
        last.map_or(0.0, |at| at - change)
    }

    /// Returns the first time, at or after a given time, at which the number of paths meets a
    /// condition.
    pub(super) fn first(&self, after: Duration, wanted: impl Fn(u32) -> bool) -> Option<f64> {
        let after = after.as_secs_f64();
        let ends = self
            .policies
            .iter()
            .skip(1)
            .map(|(at, _)| *at)
            .chain([f64::INFINITY]);
        let stretch = self
            .policies
            .iter()
            .zip(ends)
            .find(|((_, code), end)| *end > after && wanted(paths(*code)));
        stretch.map(|((at, _), _)| at.max(after))
    }

    /// Returns the number of paths over time as points of a step function.
    pub(super) fn steps(&self, end: Duration) -> Vec<(f64, f64)> {
        let last = self.policies.last().map_or(0, |(_, code)| *code);
        let changes = self.policies.iter().map(|&(at, code)| (at.max(0.0), code));
        changes
            .chain([(end.as_secs_f64(), last)])
            .map(|(at, code)| (at, f64::from(paths(code))))
            .collect()
    }

    fn mean(&self, from: Duration, to: Duration, figure: impl Fn(u8) -> f64) -> f64 {
        let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
        let ends = self.policies.iter().skip(1).map(|(at, _)| *at).chain([to]);
        let stretch = |((at, code), end): (&(f64, u8), f64)| {
            (end.clamp(from, to) - at.clamp(from, to)) * figure(*code)
        };
        self.policies.iter().zip(ends).map(stretch).sum::<f64>() / (to - from)
    }
}

/// Returns the number of paths of a policy. The default route counts as one.
fn paths(code: u8) -> u32 {
    code.count_ones().max(1)
}

/// Returns the rows of a flow in an edge's trace with their times. The wall clock is read when a row is
/// written, which is slightly later than the event. The minimum difference of the two clocks is
/// therefore the best estimate of their offset. The traces of agents that were killed are `EDGE.1.csv` and so on.
fn rows(directory: &Path, edge: Edge, flow: &str, began_ns: u64) -> Result<Vec<(f64, Row)>> {
    let edge = edge.name();
    let killed = (1..).map(|number| directory.join(format!("{edge}.{number}.csv")));
    let killed = killed.take_while(|path| path.exists());
    let mut rows: Vec<Row> = Vec::new();
    for path in killed.chain([directory.join(format!("{edge}.csv"))]) {
        let read: Result<Vec<Row>, _> = csv::Reader::from_path(&path)?.deserialize().collect();
        rows.extend(read.with_context(|| format!("cannot read {}", path.display()))?);
    }
    let offset = rows
        .iter()
        .map(|row| row.unix_ns.saturating_sub(row.monotonic_ns))
        .min()
        .unwrap_or(0);
    let at = |row: &Row| ((row.monotonic_ns + offset) as f64 - began_ns as f64) / 1e9;
    let rows = rows.into_iter().filter(|row| row.flow == flow);
    Ok(rows.map(|row| (at(&row), row)).collect())
}

/// Parses the first number of "1200 us since due; 451200 us of silence".
fn since_due_us(detail: &str) -> Result<f64> {
    let number = detail.split(' ').next().unwrap_or_default();
    number
        .parse()
        .with_context(|| format!("cannot parse the detail of a degradation: {detail:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn history() -> History {
        let policies = vec![
            (f64::NEG_INFINITY, 0),
            (1.0, 0b11111),
            (2.0, 0b11),
            (6.0, 0b10),
        ];
        History {
            policies,
            ..History::default()
        }
    }

    #[test]
    fn paths_count_by_the_time_that_they_were_taken() {
        assert_eq!(history().paths_mean(SECOND, 2 * SECOND), 5.0);
        assert_eq!(
            history().paths_mean(Duration::ZERO, 8 * SECOND),
            (1.0 + 5.0 + 8.0 + 2.0) / 8.0
        );
        assert_eq!(history().paths_mean(7 * SECOND, 8 * SECOND), 1.0);
        assert_eq!(
            history().seconds_without(0b1, Duration::ZERO, 8 * SECOND),
            3.0
        );
    }

    #[test]
    fn a_change_is_found_from_a_time_on() {
        assert_eq!(
            history().first(Duration::ZERO, |paths| paths > 1),
            Some(1.0)
        );
        assert_eq!(history().first(3 * SECOND, |paths| paths > 1), Some(3.0));
        assert_eq!(history().first(3 * SECOND, |paths| paths == 1), Some(6.0));
        assert_eq!(history().first(7 * SECOND, |paths| paths > 1), None);
    }

    #[test]
    fn a_policy_settles_with_its_last_change() {
        assert_eq!(history().settled_after(SECOND, 3 * SECOND), 1.0);
        assert_eq!(history().settled_after(SECOND, 9 * SECOND), 5.0);
        assert_eq!(history().settled_after(3 * SECOND, 5 * SECOND), 0.0);
    }

    #[test]
    fn traces_are_read_on_the_clock_of_the_stream() {
        let folder = tempfile::tempdir().unwrap();
        let header = "monotonic_ns,unix_ns,flow,event,epoch,code,probes,probe_every,packets,lost,path,sent,rewards,only,detail\n";
        let ingress = "1000000000,11000000500,stage,policy,2,31,0,0,,,,,,,\"by signal\"\n\
                       1003000000,11003000000,stage,first_replica,2,,,,,,,,,,\"3000 us\"\n";
        let egress = "990000000,10990001000,stage,degraded,,,,,,,,,,,\"2000 us since due; 212000 us of silence\"\n\
                      1100000000,11100000000,stage,window,2,,,,100,0,3,100,42,0,\n";
        std::fs::write(
            folder.path().join("ingress.csv"),
            format!("{header}{ingress}"),
        )
        .unwrap();
        std::fs::write(
            folder.path().join("egress.csv"),
            format!("{header}{egress}"),
        )
        .unwrap();

        let history = History::read(folder.path(), "stage", 10_000_000_000).unwrap();

        assert_eq!(history.policies[1], (1.0, 31));
        assert_eq!(
            history.windows,
            [Window {
                at: 1.1,
                path: 3,
                rewards: 42
            }]
        );
        let variation = Variation {
            during: vec![(SECOND / 2, 5 * SECOND)],
            end: 6 * SECOND,
        };
        assert!((history.triggered_in(&variation).unwrap() - 0.99).abs() < 1e-9);
        assert!((history.trigger_to_first_copy().unwrap() - 0.015).abs() < 1e-9);
    }
}
