//! Processor time of a simulation, the only figure that differs from run to run.

use super::score::Score;
use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

const FILE_NAME: &str = "cost.json";

/// Returns the processor time of this thread so far.
pub(super) fn thread_cpu() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// Returns the processor time per packet of the video in µs, with both ends and the links included.
pub(super) fn per_packet_us(score: &Score) -> f64 {
    let packets = score.packet_delays.total() + score.lost_packets;
    total(score).as_secs_f64() * 1e6 / packets as f64
}

/// Writes `cost.json`: each case's processor time, in total and per packet of the video.
pub(super) fn write(scores: &[Score], out: &Path) -> Result<()> {
    let cost = |score: &Score| {
        let cost = json!({ "cpu_s": total(score).as_secs_f64(), "cpu_per_packet_us": per_packet_us(score) });
        (score.name(), cost)
    };
    let costs: Map<String, Value> = scores.iter().map(cost).collect();
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let path = out.join(FILE_NAME);
    fs::write(&path, serde_json::to_vec_pretty(&costs)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

fn total(score: &Score) -> Duration {
    score.trips.iter().map(|trip| trip.cpu).sum()
}
