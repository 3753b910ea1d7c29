//! Processor time of a simulation, the only figures that differ from run to run.

use super::contender::MINRTT;
use super::paper;
use super::score::{Score, comparable};
use crate::experiment::write_json;
use crate::summary::{Case, Metrics, Summary};
use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use std::fs;
use std::path::Path;
use std::time::Duration;

const FILE_NAME: &str = "cost.json";

/// The metric of the processor time in addition to multipath QUIC, relative to that.
const MORE_THAN_MINRTT: &str = "cpu_more_than_minrtt_ratio";

/// Returns the processor time of this thread so far.
pub(super) fn thread_cpu() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// Returns the processor time per packet of the video in µs, with both ends and the links included.
pub(super) fn per_packet_us(score: &Score) -> f64 {
    let packets = score.packet_delays.total() + score.lost_packets;
    total(score).as_secs_f64() * 1e6 / packets as f64
}

/// Returns the processor time as a share of the time of the drives.
pub(super) fn load(score: &Score) -> f64 {
    let seconds: usize = score
        .outcomes
        .iter()
        .map(|outcome| outcome.by_second.len())
        .sum();
    total(score).as_secs_f64() / seconds as f64
}

/// Returns the processor time per packet relative to that of multipath QUIC on the same drives with
/// the same video, if that was run.
pub(super) fn relative_to_minrtt(score: &Score, scores: &[Score]) -> Option<f64> {
    let is_minrtt = |other: &&Score| {
        other.contender.sender == MINRTT.sender
            && other.contender.change.is_none()
            && comparable(other, score)
    };
    let minrtt = scores.iter().find(is_minrtt)?;
    Some(per_packet_us(score) / per_packet_us(minrtt))
}

/// Writes `cost.json`: the processor time of each case of a summary.
pub(super) fn write(scores: &[Score], summary: &Summary, out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    write_json(&out.join(FILE_NAME), &self::summary(scores, summary))
}

/// Returns a summary of the processor times, given the summary of the run.
pub(super) fn summary(scores: &[Score], run: &Summary) -> Summary {
    let cost = |(score, described): (&Score, &Case)| {
        let mut case = Case {
            metrics: metrics(score, scores),
            paper: Metrics::default(),
            ..described.clone()
        };
        case.set_param("profile", profile());
        if let Some(more) = paper::processor_time(score.contender) {
            case.paper.set(MORE_THAN_MINRTT, more);
        }
        case
    };
    Summary {
        cases: scores.iter().zip(&run.cases).map(cost).collect(),
        ..run.clone()
    }
}

fn metrics(score: &Score, scores: &[Score]) -> Metrics {
    let mut metrics = Metrics::from([
        ("cpu_s", total(score).as_secs_f64()),
        ("cpu_per_packet_us", per_packet_us(score)),
        ("cpu_load_ratio", load(score)),
    ]);
    if let Some(relative) = relative_to_minrtt(score, scores) {
        metrics.set(MORE_THAN_MINRTT, relative - 1.0);
    }
    metrics
}

/// Returns the profile that this program was built with.
fn profile() -> &'static str {
    if cfg!(debug_assertions) {
        "dev"
    } else {
        "release"
    }
}

fn total(score: &Score) -> Duration {
    score.outcomes.iter().map(|outcome| outcome.cpu).sum()
}
