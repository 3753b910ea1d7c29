use super::outcome::Outcome;
use super::view::Frame;
use super::{MPTCP, SINGLE, XNC};
use crate::plot::{Axis, Plot, Series};
use crate::report::{Highlight, Item, Report, Section, Table};
use crate::summary::Summary;
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`.
pub(super) fn write(summary: &Summary, outcomes: &[Outcome], out: &Path) -> Result<()> {
    Report {
        title: "A car's video over four cellular uplinks, in real time",
        intro: "ffmpeg streams 30 frames per second at 30 Mb/s over RTP through the tunnel, whose client and server are real \
                processes, over four emulated uplinks. The drives are composed of measured links. For comparison the \
                same packets are sent over the kernel's MPTCP, and over UDP on the best single uplink. A frame counts as received when all of it \
                has arrived. SSIM is the similarity of each frame that the decoder outputs, damaged or not, to the same \
                frame as the camera sent it.",
        highlights: highlights(summary),
        sections: sections(summary, outcomes),
        summary,
    }
    .write(out)
}

type Format = fn(f64) -> String;

/// The metrics in large type, with their names and formats.
const HIGHLIGHTS: [(&str, &str, Format); 3] = [
    (
        "fps_mean",
        "frames per second through the tunnel; the target is 29",
        |value| format!("{value:.2}"),
    ),
    (
        "stall_above_floor_ratio",
        "of the time frozen, in excess of the oracle; the target is 1.5 %",
        |value| format!("{:.2} %", 100.0 * value),
    ),
    (
        "ssim_mean",
        "similarity (SSIM); the target is 0.9",
        |value| format!("{value:.3}"),
    ),
];

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let figure = |case: &str, metric: &str| summary.case(case)?.metrics.get(metric);
    let highlight = |(metric, label, show): (&str, &str, Format)| {
        let other = |case: &str| Some(format!("{case} {}", show(figure(case, metric)?)));
        let others: Vec<String> = [SINGLE, MPTCP].into_iter().filter_map(other).collect();
        let value = show(figure(XNC, metric)?);
        Some(Highlight::new(value, label, others.join(", ")))
    };
    HIGHLIGHTS.into_iter().filter_map(highlight).collect()
}

fn sections(summary: &Summary, outcomes: &[Outcome]) -> Vec<Section> {
    let (drives, means): (Vec<_>, Vec<_>) = summary.cases.iter().partition(|case| {
        outcomes
            .iter()
            .any(|outcome| outcome.case.name == case.name)
    });
    vec![
        Section::new(
            "Averages",
            "Means over drives, with the figures of the paper's road tests below ours.",
            vec![Item::Table(Table::of_cases(means, ""))],
        ),
        Section::new(
            "Delay and quality of frames",
            "Distributions over all frames. Frames that were never complete, or not decoded, keep a curve below 1.",
            vec![Item::figure("", vec![delays(outcomes), ssim(outcomes)])],
        ),
        Section::new(
            "Each drive",
            "Frames shown in each second.",
            vec![Item::figure("", by_drive(outcomes))],
        ),
        Section::new(
            "All figures",
            "stall_above_floor: in excess of the simulation's oracle, which knows the future behaviour of the links. picture: of all \
             frames that the decoder outputs, damaged or not.",
            vec![Item::Table(Table::of_cases(drives, ""))],
        ),
    ]
}

/// Returns the distinct names, in the order of their first appearance.
fn names<'a>(outcomes: &'a [Outcome], name: impl Fn(&'a Outcome) -> &'a str) -> Vec<&'a str> {
    let mut names = Vec::new();
    for outcome in outcomes {
        if !names.contains(&name(outcome)) {
            names.push(name(outcome));
        }
    }
    names
}

/// Returns, for each scheme, the distribution of a figure over all frames.
fn distribution(outcomes: &[Outcome], figure: impl Fn(&Frame) -> f64) -> Vec<Series> {
    let series = |scheme: &str| {
        let of_scheme = outcomes.iter().filter(|outcome| outcome.scheme == scheme);
        let values: Vec<f64> = of_scheme
            .flat_map(|outcome| outcome.frames().map(&figure))
            .collect();
        Series::distribution(scheme, &values)
    };
    names(outcomes, |outcome| outcome.scheme)
        .into_iter()
        .map(series)
        .collect()
}

fn delays(outcomes: &[Outcome]) -> Plot {
    let delay = |frame: &Frame| {
        let shown = frame
            .shown
            .map(|shown| shown.saturating_since(frame.captured).as_secs_f64() * 1e3);
        shown.unwrap_or(f64::NAN)
    };
    let (x, y) = (
        Axis::logarithmic("frame delay (ms)").showing(10.0..=10_000.0),
        Axis::linear("share of frames"),
    );
    Plot::new("delay", x, y, distribution(outcomes, delay))
}

fn ssim(outcomes: &[Outcome]) -> Plot {
    let ssim = |frame: &Frame| frame.ssim.unwrap_or(f64::NAN);
    let (x, y) = (
        Axis::linear("SSIM").showing(0.5..=1.0),
        Axis::linear("share of frames"),
    );
    Plot::new("similarity", x, y, distribution(outcomes, ssim))
}

fn by_drive(outcomes: &[Outcome]) -> Vec<Plot> {
    let panel = |drive: &str| {
        let series = |outcome: &Outcome| {
            let seconds = outcome
                .qoe
                .fps
                .iter()
                .enumerate()
                .map(|(second, fps)| (second as f64 + 0.5, *fps));
            Series::line(outcome.scheme, seconds.collect())
        };
        let of_drive = outcomes.iter().filter(|outcome| outcome.drive == drive);
        let y = Axis::linear("frames per second").showing(0.0..=40.0);
        Plot::new(drive, Axis::linear("time (s)"), y, of_drive.map(series))
    };
    names(outcomes, |outcome| &outcome.drive)
        .into_iter()
        .map(panel)
        .collect()
}
