use super::trial::Trial;
use super::view::Frame;
use super::{MPTCP, SINGLE, XNC};
use crate::plot::{Axis, Plot, Series};
use crate::report::{Figure, Highlight, Item, Report, Section, Table};
use crate::summary::Summary;
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`.
pub(super) fn write(summary: &Summary, trials: &[Trial], out: &Path) -> Result<()> {
    let report = Report {
        title: "A car's video over four cellular uplinks, in real time".to_owned(),
        intro: "ffmpeg streams 30 frames a second at 30 Mb/s by RTP through the tunnel, whose ends are processes of their \
                own, over four emulated uplinks, by drives that are put together from measured links. Beside it stand the \
                same packets by MPTCP of the kernel, and by UDP over the best single uplink. A frame counts when all of it \
                arrived. Likeness is of every picture that a decoder makes of what arrived, damaged or not, with the same \
                frame of what the camera sent."
            .to_owned(),
        highlights: highlights(summary),
        sections: sections(summary, trials),
        summary,
    };
    report.write(out)?;
    Ok(())
}

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let figure = |case: &str, metric: &str| summary.case(case)?.metrics.get(metric);
    let others = |metric: &str, show: &dyn Fn(f64) -> String| {
        let other = |case: &str| Some(format!("{case} {}", show(figure(case, metric)?)));
        [SINGLE, MPTCP]
            .into_iter()
            .filter_map(other)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let highlight = |metric: &str, label: &str, show: &dyn Fn(f64) -> String| {
        let value = show(figure(XNC, metric)?);
        Some(Highlight {
            value,
            label: label.to_owned(),
            beside: others(metric, show),
        })
    };
    let plain = |value: f64| format!("{value:.2}");
    let percent = |value: f64| format!("{:.2} %", 100.0 * value);
    [
        highlight(
            "fps_mean",
            "frames per second through the tunnel; the target is 29",
            &plain,
        ),
        highlight(
            "stall_above_floor_ratio",
            "stalled beyond what the links enforce; the target is 1.5 %",
            &percent,
        ),
        highlight(
            "ssim_mean",
            "likeness (SSIM); the target is 0.9",
            &|value| format!("{value:.3}"),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn sections(summary: &Summary, trials: &[Trial]) -> Vec<Section> {
    let (drives, means): (Vec<_>, Vec<_>) = summary
        .cases
        .iter()
        .partition(|case| case.name.contains('/'));
    let figure = |panels| {
        Item::Figure(Figure {
            caption: String::new(),
            panels,
        })
    };
    let section = |title: &str, text: &str, items| Section {
        title: title.to_owned(),
        text: text.to_owned(),
        items,
    };
    vec![
        section(
            "On average",
            "Means over drives; the paper's figures of its road tests below ours.",
            vec![Item::Table(Table::of_cases(means, ""))],
        ),
        section(
            "What viewers saw",
            "Distributions over all frames; what was never whole, or no picture, keeps a curve below its top.",
            vec![figure(vec![delays(trials), likeness(trials)])],
        ),
        section(
            "Each drive",
            "Frames shown in each second.",
            vec![figure(by_drive(trials))],
        ),
        section(
            "All figures",
            "stall_above_floor: beyond the oracle's of the simulation, which knows what the links will do. picture: of every \
             picture that the decoder makes, damaged or not.",
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

/// In the order in which they first appear.
fn names<'a>(trials: &'a [Trial], name: impl Fn(&'a Trial) -> &'a str) -> Vec<&'a str> {
    let mut names = Vec::new();
    for trial in trials {
        if !names.contains(&name(trial)) {
            names.push(name(trial));
        }
    }
    names
}

/// A distribution for each scheme of a figure of each frame.
fn distribution(trials: &[Trial], figure: impl Fn(&Frame) -> f64) -> Vec<Series> {
    let series = |scheme: &str| {
        let of_scheme = trials.iter().filter(|trial| trial.scheme() == scheme);
        let values: Vec<f64> = of_scheme
            .flat_map(|trial| trial.frames().map(&figure))
            .collect();
        Series::distribution(scheme, &values)
    };
    names(trials, Trial::scheme)
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

fn likeness(trials: &[Trial]) -> Plot {
    let likeness = |frame: &Frame| frame.likeness.unwrap_or(f64::NAN);
    let (x, y) = (
        Axis::linear("SSIM").showing(0.5..=1.0),
        Axis::linear("share of frames"),
    );
    plot("likeness", x, y, distribution(trials, likeness))
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
            Series::line(trial.scheme(), seconds.collect())
        };
        let of_drive = trials.iter().filter(|trial| trial.drive() == drive);
        let y = Axis::linear("frames per second").showing(0.0..=40.0);
        plot(
            drive,
            Axis::linear("time (s)"),
            y,
            of_drive.map(series).collect(),
        )
    };
    names(trials, Trial::drive).into_iter().map(panel).collect()
}
