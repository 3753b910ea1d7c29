//! `report.html`.

use super::network::{Network, Phase};
use super::scene::{Scene, Treatment, Twist};
use super::{DECODING, Outcome, VIEWERS};
use crate::experiment::Completed;
use crate::plot::{Axis, Band, Mark, Plot, Series};
use crate::report::{Cell, Highlight, Item, Report, Section, Table};
use crate::summary::Summary;
use anyhow::Result;
use std::path::Path;

/// The columns of the table of a network: heading, metric, and how it is shown.
const COLUMNS: [(&str, &str, Shown); 12] = [
    ("frames per second", "fps_mean", Shown::Digits(1)),
    ("stalled", "stall_ratio", Shown::Percent),
    ("delay, median (ms)", "frame_delay_p50_ms", Shown::Digits(0)),
    (
        "delay, 95th percentile (ms)",
        "frame_delay_p95_ms",
        Shown::Digits(0),
    ),
    ("whole frames", "whole_frames_ratio", Shown::Percent),
    (
        "sent for each byte",
        "bandwidth_cost_ratio",
        Shown::Digits(2),
    ),
    ("changes of the policy", "policy_changes", Shown::Digits(0)),
    ("until the policy stays (s)", "decision_s", Shown::Digits(1)),
    (
        "other viewers: frames per second",
        "crowd_fps_mean",
        Shown::Digits(1),
    ),
    ("the worst of them", "crowd_fps_least", Shown::Digits(1)),
    (
        "slow viewer: frames seen",
        "slow_frames_ratio",
        Shown::Percent,
    ),
    (
        "at the second relay: frames per second",
        "second_relay_fps_mean",
        Shown::Digits(1),
    ),
];

/// The columns of the table of killed programs.
const KILL_COLUMNS: [(&str, &str, Shown); 9] = [
    (
        "longest gap after a kill (s)",
        "kill_gap_s",
        Shown::Digits(2),
    ),
    (
        "worst of the other viewers",
        "crowd_kill_gap_s",
        Shown::Digits(2),
    ),
    (
        "at the second relay",
        "second_relay_kill_gap_s",
        Shown::Digits(2),
    ),
    (
        "longest gap at other times (s)",
        "other_gap_s",
        Shown::Digits(2),
    ),
    (
        "after the kill in jitter",
        "kill_gap_jitter_s",
        Shown::Digits(2),
    ),
    ("cellular", "kill_gap_cellular_s", Shown::Digits(2)),
    ("outage", "kill_gap_outage_s", Shown::Digits(2)),
    ("l4s", "kill_gap_l4s_s", Shown::Digits(2)),
    ("lossy", "kill_gap_lossy_s", Shown::Digits(2)),
];

/// How a figure is shown.
#[derive(Clone, Copy)]
enum Shown {
    Digits(usize),
    Percent,
}

impl Shown {
    fn text(self, figure: f64) -> String {
        match self {
            Shown::Digits(digits) => format!("{figure:.digits$}"),
            Shown::Percent => format!("{:.1} %", figure * 100.0),
        }
    }
}

pub(super) fn write(
    summary: &Summary,
    completed: &[Completed<Scene, Outcome>],
    out: &Path,
) -> Result<()> {
    let intro = intro(completed);
    let mut sections: Vec<Section> = Network::all()
        .filter_map(|network| section(network, summary, completed))
        .collect();
    sections.push(Section::all_figures(
        "crowd: the viewers that do not decode. slow: the viewer behind the slow path. second_relay: the viewer at \
         the second relay. frames_ratio: seen of those captured; whole_frames_ratio: with all layers. paths_mean: \
         the number of paths that carried every packet.",
        summary,
    ));
    Report {
        title: "The whole system at once",
        intro: &intro,
        highlights: highlights(summary),
        sections,
        summary,
    }
    .write(out)
}

fn intro(completed: &[Completed<Scene, Outcome>]) -> String {
    let fps = completed.first().map(|one| &one.outcome.case.params["fps"]);
    let fps = fps.map_or_else(String::new, |fps| format!(" at {fps} frames per second"));
    format!(
        "A camera's picture of a person with its depth is sent{fps}, encrypted, as fast as the network bears. An agent \
         in front of the network sends each packet on one of four paths, as copies on several, or through a tunnel \
         over all of them, which recovers lost packets; an agent behind it passes the first copy. A controller decides which paths are used. Behind the network a relay distributes the \
         stream to {VIEWERS} viewers, one of them behind a path that bears a tenth of the stream, and one at a second \
         relay. {DECODING} viewers decode the picture: the one of the first columns, the slow one, and the one at the \
         second relay. The others check that every packet is authentic, put the frames together and measure, but do \
         not decode, because the machine has no time for it. The programs are the real ones, in real time, on one \
         machine. Delay is from capture to the decoded frame. A stall is a time without a new frame that is longer \
         than 200 ms."
    )
}

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let highlight = |network: Network| {
        let stalled = |treatment: Treatment| {
            let case = summary.case(&Scene::new(network, treatment).to_string())?;
            case.metrics.get("stall_ratio")
        };
        let single = stalled(Treatment::Single)?;
        let ours = stalled(Treatment::Auto)?;
        Some(Highlight::new(
            Shown::Percent.text(ours),
            format!("of the time stalled, {}, mode auto", network.name()),
            format!("{} on the default path", Shown::Percent.text(single)),
        ))
    };
    Network::all().filter_map(highlight).collect()
}

/// Returns the section of a network; `None` if none of its cases ran.
fn section(
    network: Network,
    summary: &Summary,
    completed: &[Completed<Scene, Outcome>],
) -> Option<Section> {
    let ran: Vec<_> = completed
        .iter()
        .filter(|one| one.trial.network == network)
        .collect();
    let phases = &ran.first()?.outcome.phases;
    let end = phases.last().map(Phase::to).unwrap_or_default();
    let x = || Axis::linear("time (s)").showing(0.0..=end.as_secs_f64());
    let plot = |title: &str, y: Axis, mark: Mark, points: fn(&Outcome) -> Vec<(f64, f64)>| {
        let with_all_parts = ran.iter().filter(|one| one.trial.twist.is_none());
        let series = with_all_parts.map(|one| Series {
            name: one.trial.mode_name(),
            points: points(&one.outcome),
            mark,
        });
        Plot {
            title: title.to_owned(),
            x: x(),
            y,
            series: series.collect(),
            bands: bands(phases),
        }
    };
    let panels = vec![
        plot(
            "Frames per second at the viewer",
            Axis::linear("frames per second"),
            Mark::Line,
            |outcome| outcome.score.fps(),
        ),
        plot(
            "Paths that carry every packet",
            Axis::linear("paths"),
            Mark::Steps,
            |outcome| outcome.paths.clone(),
        ),
    ];
    let scenes = ran.iter().map(|one| one.trial);
    let (killed, scenes): (Vec<Scene>, Vec<Scene>) =
        scenes.partition(|scene| matches!(scene.twist, Some(Twist::Kill(_))));
    let mut items = Vec::new();
    if !scenes.is_empty() {
        items.push(Item::Table(Table {
            caption: MODES.to_owned(),
            ..table(&scenes, &COLUMNS, summary)
        }));
        items.push(Item::figure("", panels));
    }
    if !killed.is_empty() {
        items.push(Item::Table(Table {
            caption: KILLS.to_owned(),
            ..table(&killed, &KILL_COLUMNS, summary)
        }));
    }
    Some(Section::new(network.title(), network.about(), items))
}

/// The text below the table of modes.
const MODES: &str = "single: the default path. redirect: the path with the smallest round-trip time. replicate: a copy \
                     on every path. evidence: copies on the paths that help. coded: in a tunnel over all paths, which \
                     sends what is needed to recover lost packets. auto: the cheapest paths that suffice, of which the \
                     tunnel is one. without-copies: no more than one copy of each packet. without-coding: no tunnel. \
                     without-sender: the stream is sent in full, whatever the network bears. Whole frames: seen with all \
                     details, of all that were captured. Sent for each byte: the bytes on all paths, for each byte of \
                     the stream. Changes of the policy: how often other paths were chosen. Until the policy stays: the \
                     longest time from a change of the network to the last choice of paths before the network changes \
                     again; 0 if none was made.";

/// The text below the table of killed programs.
const KILLS: &str = "In each condition of the network the program is killed once, without a chance to say so, and \
                     started again as systemd would, after a second or less. A gap is a time without a new frame that overlaps the four seconds \
                     after the kill; at 15 frames per second it is never below 0.07 s. The gaps at other times show \
                     what the network alone causes.";

/// Returns the conditions as bands, if there are several.
fn bands(phases: &[Phase]) -> Vec<Band> {
    if phases.len() < 2 {
        return Vec::new();
    }
    let every_other = phases.iter().step_by(2);
    let band = |phase: &Phase| Band {
        from: phase.from.as_secs_f64(),
        to: phase.to().as_secs_f64(),
        label: phase.condition.name().to_owned(),
    };
    every_other.map(band).collect()
}

/// Returns a table of cases without a caption.
fn table(scenes: &[Scene], columns: &[(&str, &str, Shown)], summary: &Summary) -> Table {
    let header = columns.iter().map(|(heading, ..)| (*heading).to_owned());
    let header = std::iter::once("mode".to_owned()).chain(header).collect();
    let row = |scene: &Scene| {
        let case = summary.case(&scene.to_string());
        let cell = |(_, metric, shown): &(&str, &str, Shown)| {
            let figure = case.and_then(|case| case.metrics.get(metric));
            Cell::new(figure.map_or_else(|| "–".into(), |figure| shown.text(figure)))
        };
        let name = Cell::new(scene.mode_name());
        std::iter::once(name)
            .chain(columns.iter().map(cell))
            .collect()
    };
    Table {
        header,
        rows: scenes.iter().map(row).collect(),
        caption: String::new(),
    }
}
