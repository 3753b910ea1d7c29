use super::{Outcome, Scenario};
use crate::experiment::Completed;
use crate::plot::{Axis, Plot, Series};
use crate::report::{Cell, Figure, Highlight, Item, Report, Section, Table};
use crate::summary::{Case, Summary};
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`.
pub(super) fn write(
    summary: &Summary,
    completed: &[Completed<Scenario, Outcome>],
    out: &Path,
) -> Result<()> {
    Report {
        title: "A video with cross traffic in the tunnel",
        intro: "A client and a server are connected by two uplinks of 10 Mb/s with a one-way delay of 20 ms. A video of 6 Mb/s and 30 \
                frames per second is sent through the tunnel over RTP, alone and with cross traffic: TCP uploads at full speed, a \
                UDP sender at 30 Mb/s, and a second camera. Cases without a suffix are from the client to the server, those with /down are in \
                the opposite direction.",
        highlights: highlights(summary, completed),
        sections: vec![Section::new("Video and cross traffic", "Only complete frames count. The remaining capacity is the rate of both uplinks minus that of the video.", vec![Item::Table(table(summary)), Item::Figure(figure(completed))])],
        summary,
    }
    .write(out)
}

fn highlights(summary: &Summary, completed: &[Completed<Scenario, Outcome>]) -> Vec<Highlight> {
    let highlight = |value: Option<f64>, unit: &str, label: &str, comparison: &str| {
        let value = format!("{:.1} {unit}", value?);
        Some(Highlight::new(value, label, comparison))
    };
    let figures = |metric: &'static str| {
        let cases = summary.cases.iter();
        cases.filter_map(move |case| case.metrics.get(metric))
    };
    [
        highlight(
            figures("fps_mean").reduce(f64::min),
            "fps",
            "frame rate of the video, worst case",
            "of 30",
        ),
        highlight(
            figures("frame_delay_p95_ms").reduce(f64::max),
            "ms",
            "95th percentile of the frame delay, worst case",
            "including 20 ms of the uplinks",
        ),
        highlight(
            lowest_share(summary, completed).map(|share| share * 100.0),
            "%",
            "of the remaining capacity used by cross traffic, worst case",
            "",
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the lowest share of the remaining capacity that cross traffic uses, unless it sends only
/// as much as it needs.
fn lowest_share(summary: &Summary, completed: &[Completed<Scenario, Outcome>]) -> Option<f64> {
    let cases = summary.cases.iter().zip(completed);
    cases
        .filter(|(_, one)| !one.trial.cross_traffic.is_camera())
        .filter_map(|(case, _)| case.metrics.get("other_of_what_the_video_leaves_ratio"))
        .reduce(f64::min)
}

/// The columns of the table: heading, metric, scale and number of digits.
const COLUMNS: [(&str, &str, f64, usize); 6] = [
    ("frames per second", "fps_mean", 1.0, 2),
    ("stalled (%)", "stall_ratio", 100.0, 2),
    ("frame delay, median (ms)", "frame_delay_p50_ms", 1.0, 0),
    ("p95 (ms)", "frame_delay_p95_ms", 1.0, 0),
    ("cross traffic (Mb/s)", "other_throughput_mbps", 1.0, 1),
    (
        "of the remaining capacity (%)",
        "other_of_what_the_video_leaves_ratio",
        100.0,
        0,
    ),
];

fn table(summary: &Summary) -> Table {
    let row = |case: &Case| {
        let figure = |(_, metric, scale, digits): (&str, &str, f64, usize)| {
            let value = case.metrics.get(metric);
            value.map_or("–".to_owned(), |value| {
                format!("{:.digits$}", value * scale)
            })
        };
        let name = std::iter::once(case.name.clone());
        name.chain(COLUMNS.map(figure)).map(Cell::new).collect()
    };
    Table {
        header: std::iter::once("cross traffic")
            .chain(COLUMNS.map(|column| column.0))
            .map(str::to_owned)
            .collect(),
        rows: summary.cases.iter().map(row).collect(),
        caption: "The video and the cross traffic of each case.".to_owned(),
    }
}

fn figure(completed: &[Completed<Scenario, Outcome>]) -> Figure {
    let panel = |one: &Completed<Scenario, Outcome>| {
        Plot::new(
            one.trial.to_string(),
            Axis::linear("time (s)"),
            Axis::logarithmic("age of a complete frame (ms)"),
            [Series::dots("frames", one.outcome.delays())],
        )
    };
    Figure {
        caption: "The age of each frame when it was complete.".to_owned(),
        panels: completed.iter().map(panel).collect(),
    }
}
