//! `report.html`.

use super::Outcome;
use super::scenario::Scenario;
use super::score::Score;
use crate::experiment::Completed;
use crate::plot::{Axis, Band, Plot, Series};
use crate::report::{Highlight, Item, Report, Section};
use crate::summary::Summary;
use anyhow::Result;
use std::path::Path;

pub(super) fn write(
    summary: &Summary,
    completed: &[Completed<Scenario, Outcome>],
    out: &Path,
) -> Result<()> {
    let figures = completed.iter().map(|one| {
        let (name, score) = (one.trial.to_string(), &one.outcome.score);
        Item::figure("", vec![targets(&name, score), delays(&name, score)])
    });
    Report {
        title: "A pushed volumetric stream beside the kernel's TCP",
        intro: "hawser publish sends the synthetic performer (60,000 points) as chunks at 25 frames per second through a bottleneck of 40 Mb/s with \
                DualPI2 and 10 ms in each direction, to hawser view. All in real time, on one machine. The shaded \
                time is measured.",
        highlights: highlights(summary),
        sections: vec![
            Section::new("Rates and delays", "", figures.collect()),
            Section::all_figures("transport: from the arrival of a frame's first packet to its completeness. frame_delay: from capture to the end \
                 of decoding. queue_delay: one-way delay beyond the least, as the publisher measures it from reports. \
                 frames_ratio: shown of those encoded; whole_frames_ratio: with all layers.", summary),
        ],
        summary,
    }
    .write(out)
}

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let highlight = |(name, metric, unit, label): (&str, &str, &str, &str)| {
        let ours = summary.case(name)?.metrics.get(metric)?;
        Some(Highlight::new(format!("{ours:.1} {unit}"), label, ""))
    };
    [
        (
            "prague/cubic-3",
            "frame_delay_p99_ms",
            "ms",
            "capture to decoded beside three Cubic flows, 99th percentile",
        ),
        (
            "prague/alone",
            "frame_delay_p99_ms",
            "ms",
            "the same without them",
        ),
        (
            "prague/cubic-3",
            "throughput_mbps",
            "Mb/s",
            "beside three Cubic flows",
        ),
    ]
    .into_iter()
    .filter_map(highlight)
    .collect()
}

fn targets(name: &str, score: &Score) -> Plot {
    Plot {
        title: format!("{name}: target of the encoder"),
        x: Axis::linear("time (s)"),
        y: Axis::linear("Mb/s"),
        series: vec![Series::line("target", score.targets())],
        bands: vec![measured(score)],
    }
}

fn delays(name: &str, score: &Score) -> Plot {
    Plot {
        title: format!("{name}: capture to decoded"),
        x: Axis::linear("time (s)"),
        y: Axis::linear("ms"),
        series: vec![Series::dots("delay", score.delays())],
        bands: vec![measured(score)],
    }
}

fn measured(score: &Score) -> Band {
    let (from, to) = score.measured();
    Band {
        from,
        to,
        label: "measured".to_owned(),
    }
}
