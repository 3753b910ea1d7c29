use super::setting::Trial;
use super::view::Frame;
use super::{MPTCP, SINGLE, XNC};
use crate::plot::{Axis, Plot, Series};
use crate::report::{Highlight, Item, Report, Section, Table};
use crate::summary::Summary;
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`.
pub(super) fn write(summary: &Summary, trials: &[Trial], out: &Path) -> Result<()> {
    let report = Report {
        title: "A car's video over four cellular uplinks, in real time".to_owned(),
        intro: "ffmpeg streams 30 frames per second at 30 Mb/s over RTP through the tunnel, whose client and server are real \
                processes, over four emulated uplinks. The drives are composed of measured links. For comparison the \
                same packets are sent over the kernel's MPTCP, and over UDP on the best single uplink. A frame counts as received when all of it \
                has arrived. SSIM is the similarity of each frame that the decoder outputs, damaged or not, to the same \
                frame as the camera sent it."
            .to_owned(),
        highlights: highlights(summary),
        sections: sections(summary, trials),
        summary,
    };
    report.write(out)?;
    Ok(())
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

fn sections(summary: &Summary, trials: &[Trial]) -> Vec<Section> {
    let (drives, means): (Vec<_>, Vec<_>) = summary
        .cases
        .iter()
        .partition(|case| trials.iter().any(|trial| trial.case.name == case.name));
    vec![
        Section::new(
            "Averages",
            "Means over drives, with the figures of the paper's road tests below ours.",
            vec![Item::Table(Table::of_cases(means, ""))],
        ),
        Section::new(
            "Delay and quality of frames",
            "Distributions over all frames. Frames that were never complete, or not decoded, keep a curve below 1.",
            vec![Item::figure("", vec![delays(trials), ssim(trials)])],
        ),
        Section::new(
            "Each drive",
            "Frames shown in each second.",
            vec![Item::figure("", by_drive(trials))],
        ),
        Section::new(
            "All figures",
            "stall_above_floor: in excess of the simulation's oracle, which knows the future behaviour of the links. picture: of all \
             frames that the decoder outputs, damaged or not.",
            vec![Item::Table(Table::of_cases(drives, ""))],
        ),
    ]
}

fn plot(title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Plot {
    Plot {
        title: title.to_owned(),
        x,
        y,
        series,
        bands: Vec::new(),
    }
}

/// Returns the distinct names, in the order of their first appearance.
fn names<'a>(trials: &'a [Trial], name: impl Fn(&'a Trial) -> &'a str) -> Vec<&'a str> {
    let mut names = Vec::new();
    for trial in trials {
        if !names.contains(&name(trial)) {
            names.push(name(trial));
        }
    }
    names
}

/// Returns, for each scheme, the distribution of a figure over all frames.
fn distribution(trials: &[Trial], figure: impl Fn(&Frame) -> f64) -> Vec<Series> {
    let series = |scheme: &str| {
        let of_scheme = trials.iter().filter(|trial| trial.scheme == scheme);
        let values: Vec<f64> = of_scheme
            .flat_map(|trial| trial.frames().map(&figure))
            .collect();
        Series::distribution(scheme, &values)
    };
    names(trials, |trial| trial.scheme)
        .into_iter()
        .map(series)
        .collect()
}

fn delays(trials: &[Trial]) -> Plot {
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
    plot("delay", x, y, distribution(trials, delay))
}

fn ssim(trials: &[Trial]) -> Plot {
    let ssim = |frame: &Frame| frame.ssim.unwrap_or(f64::NAN);
    let (x, y) = (
        Axis::linear("SSIM").showing(0.5..=1.0),
        Axis::linear("share of frames"),
    );
    plot("similarity", x, y, distribution(trials, ssim))
}

fn by_drive(trials: &[Trial]) -> Vec<Plot> {
    let panel = |drive: &str| {
        let series = |trial: &Trial| {
            let seconds = trial
                .qoe
                .fps
                .iter()
                .enumerate()
                .map(|(second, fps)| (second as f64 + 0.5, *fps));
            Series::line(trial.scheme, seconds.collect())
        };
        let of_drive = trials.iter().filter(|trial| trial.drive == drive);
        let y = Axis::linear("frames per second").showing(0.0..=40.0);
        plot(
            drive,
            Axis::linear("time (s)"),
            y,
            of_drive.map(series).collect(),
        )
    };
    names(trials, |trial| &trial.drive)
        .into_iter()
        .map(panel)
        .collect()
}
