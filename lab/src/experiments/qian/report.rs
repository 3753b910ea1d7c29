use super::faults;
use super::history::History;
use super::scene::Policy;
use super::trial::Trial;
use crate::experiments::figures;
use crate::experiments::live::{FPS, LEVELS, Outcome};
use crate::plot::{Axis, Plot, Series};
use crate::report::{Cell, Figure, Highlight, Item, Report, Section, Table};
use crate::summary::{Case, Summary};
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`.
pub(super) fn write(
    summary: &Summary,
    trials: &[Trial],
    faults: &[(u64, faults::Outcome)],
    out: &Path,
) -> Result<()> {
    let shown = FirstSeed::of(trials);
    let sections = [
        Some(paper_comparison(summary)),
        shown.experience(),
        shown.paths(),
        shown.arrivals(),
        shown.rewards(),
        shown.recovery(),
        under_faults(summary, faults),
        Some(all_figures(summary, faults)),
    ];
    let report = Report {
        title: "Replication that starts automatically and keeps the paths that help".to_owned(),
        intro: "A point cloud of a person is streamed at 30 frames per second over TCP with BBR. Between the two edges are the five paths \
                of Table I of Qian et al., which vary during the shaded time. The flow begins on the default path. When the \
                viewer's requests are late three times in a row, the controller leaves it there (single), moves it \
                to the path with the smallest round-trip time (redirect), or replicates it on all paths, of which \
                Algorithm 1 of the paper (successive) or Hawser's own algorithm (evidence) then removes those that do not \
                help. For comparison the kernel's MPTCP is run with a subflow on each path. Curves show the first seed, \
                figures are medians over all seeds."
            .to_owned(),
        highlights: highlights(summary),
        sections: sections.into_iter().flatten().collect(),
        summary,
    };
    report.write(out)?;
    Ok(())
}

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let figure =
        |case: &str, metric: &str| summary.case(case).and_then(|case| case.metrics.get(metric));
    let highlight =
        |label: &str, case: &str, metric: &str, digits: usize, unit: &str, comparison: String| {
            let value = format!("{:.digits$}{unit}", figure(case, metric)?);
            Some(Highlight {
                value,
                label: label.to_owned(),
                comparison,
            })
        };
    let alone = figure("single/fhd", "fps_mean").map_or("the target is 28".to_owned(), |fps| {
        format!("{fps:.1} fps on the default path; the target is 28")
    });
    [
        highlight(
            "frame rate, fhd, evidence",
            "evidence/fhd",
            "fps_mean",
            1,
            " fps",
            alone,
        ),
        highlight(
            "from the third late request to the first replica, fhd",
            "evidence/fhd",
            "trigger_to_first_replica_ms",
            0,
            " ms",
            "the target is 700 ms".to_owned(),
        ),
        highlight(
            "bandwidth cost, fhd, evidence",
            "evidence/fhd",
            "bandwidth_cost_ratio",
            2,
            "",
            "the paper's is 2.4, the target 2.1".to_owned(),
        ),
        highlight(
            "bandwidth cost, nfov, evidence",
            "evidence/nfov",
            "bandwidth_cost_ratio",
            2,
            "",
            "the paper's is 1.8, the target 1.6".to_owned(),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the section of figures 6c and 7, and of other numbers in the paper's text.
fn paper_comparison(summary: &Summary) -> Section {
    let figure = |policy: &str, level: &str, metric: &str| {
        summary
            .case(&format!("{policy}/{level}"))
            .and_then(|case| case.metrics.get(metric))
    };
    let table = |caption: &str,
                 metric: &str,
                 policies: &[&str],
                 levels: &[&str],
                 paper: fn(&str) -> Option<&str>| {
        let cell = |policy: &str, level: &str| {
            figure(policy, level, metric).map_or("–".to_owned(), |value| format!("{value:.2}"))
        };
        let row = |level: &&str| {
            let figures = policies.iter().map(|policy| Cell {
                value: cell(policy, level),
                paper: None,
            });
            let paper = Cell {
                value: paper(level).unwrap_or("no number").to_owned(),
                paper: None,
            };
            std::iter::once(Cell {
                value: (*level).to_owned(),
                paper: None,
            })
            .chain(figures)
            .chain([paper])
            .collect()
        };
        let header = std::iter::once("level")
            .chain(policies.iter().copied())
            .chain(["paper"]);
        Item::Table(Table {
            header: header.map(str::to_owned).collect(),
            rows: levels.iter().map(row).collect(),
            caption: caption.to_owned(),
        })
    };
    Section {
        title: "Comparison with the paper".to_owned(),
        text: "During the variation of the network. docs/qian.md explains where our figures differ and why.".to_owned(),
        items: vec![
            table(
                "Figure 6c: bandwidth cost, the ratio of the bytes sent on paths to the bytes of the source. MPTCP does not replicate.",
                "bandwidth_cost_ratio",
                &["single", "redirect", "successive", "evidence", "mptcp"],
                &LEVELS,
                |level| match level {
                    "nfov" => Some("1.8"),
                    "fhd" => Some("2.4"),
                    _ => None,
                },
            ),
            table(
                "Figure 7: throughput relative to the single path. The rate of a level limits its gain; the \
                 uncapped source has no such limit.",
                "throughput_gain_ratio",
                &["redirect", "successive", "evidence", "mptcp"],
                &["nfov", "hd", "fhd", "uncapped"],
                |level| (level == "fhd").then_some("about 7, replicated"),
            ),
        ],
    }
}

/// The trials of the first seed, which the curves show.
struct FirstSeed<'a> {
    /// Trials of the policies of figure 5 at the levels.
    streams: Vec<&'a Trial>,
    recoveries: Vec<&'a Trial>,
}

impl<'a> FirstSeed<'a> {
    fn of(trials: &'a [Trial]) -> Self {
        let seed = trials.iter().map(|trial| trial.seed).min();
        let shown = trials.iter().filter(|trial| Some(trial.seed) == seed);
        let (streams, recoveries) = shown.partition(|trial| !trial.scene.recovery);
        FirstSeed {
            streams,
            recoveries,
        }
    }

    fn outcomes(&self) -> Vec<&'a Outcome> {
        self.streams.iter().map(|trial| &trial.outcome).collect()
    }

    fn experience(&self) -> Option<Section> {
        (!self.streams.is_empty()).then(|| Section {
            title: "Experience at the viewer".to_owned(),
            text: "Per second of the stream; the paper's figures 5a, 5b and 5c.".to_owned(),
            items: figures::experience(&self.outcomes()),
        })
    }

    fn arrivals(&self) -> Option<Section> {
        (!self.streams.is_empty()).then(|| Section {
            title: "Arrival of packets".to_owned(),
            text: "The paper's figure 6a: data that has arrived over time. A step is a wait for a packet that was delayed or \
                   retransmitted."
                .to_owned(),
            items: vec![figures::arrivals(&self.outcomes())],
        })
    }

    fn paths(&self) -> Option<Section> {
        let panel = |level: &str| {
            let of_level = self
                .streams
                .iter()
                .filter(|trial| trial.outcome.level == level);
            let of_level: Vec<_> = of_level
                .filter_map(|trial| Some((trial, trial.history.as_ref()?)))
                .collect();
            let variation = &of_level.first()?.0.outcome.variation;
            let series = of_level
                .iter()
                .map(|(trial, history)| steps(trial.outcome.policy, history, variation.end));
            Some(figures::over_time(
                level,
                variation,
                axis_of_paths(),
                series.collect(),
            ))
        };
        let panels: Vec<Plot> = LEVELS.into_iter().filter_map(panel).collect();
        (!panels.is_empty()).then(|| Section {
            title: "Number of paths of the flow".to_owned(),
            text: "The trigger sets it to five; then the egress removes paths. The default route counts as \
                   one."
                .to_owned(),
            items: vec![Item::Figure(Figure { caption: "Number of paths.".to_owned(), panels })],
        })
    }

    fn rewards(&self) -> Option<Section> {
        let panels: Vec<Plot> = self
            .streams
            .iter()
            .filter(|trial| trial.scene.policy == Policy::Successive)
            .filter_map(|trial| rewards(&trial.outcome, trial.history.as_ref()?))
            .collect();
        (!panels.is_empty()).then(|| Section {
            title: "Reward of each path".to_owned(),
            text: "The paper's figure 6b, with Algorithm 1: of each 100 packets, the number of copies that arrived on a path within 5 ms \
                   after the first one. The curve of a path ends when it is removed."
                .to_owned(),
            items: vec![Item::Figure(Figure {
                caption: "Figure 6b: cumulative reward in windows of 100 packets.".to_owned(),
                panels,
            })],
        })
    }

    fn recovery(&self) -> Option<Section> {
        let panels: Vec<Plot> = self
            .recoveries
            .iter()
            .flat_map(|trial| recovery(trial))
            .collect();
        (!panels.is_empty()).then(|| Section {
            title: "End of a variation, and the next one".to_owned(),
            text: "Not in the paper: with evidence the flow returns to one path when the network is calm, and \
                   is replicated again at the next variation."
                .to_owned(),
            items: vec![Item::Figure(Figure {
                caption: "Frames and paths over two variations, fhd.".to_owned(),
                panels,
            })],
        })
    }
}

fn axis_of_paths() -> Axis {
    Axis::linear("paths").showing(0.0..=6.0)
}

fn steps(name: &str, history: &History, end: std::time::Duration) -> Series {
    Series {
        mark: crate::plot::Mark::Steps,
        ..Series::line(name, history.steps(end))
    }
}

fn rewards(outcome: &Outcome, history: &History) -> Option<Plot> {
    let paths = 1..=history.windows.iter().map(|window| window.path).max()?;
    let series = paths.map(|path| {
        let windows = history.windows.iter().filter(|window| window.path == path);
        Series::line(
            format!("path {path}"),
            windows
                .map(|window| (window.at, f64::from(window.rewards)))
                .collect(),
        )
    });
    let y = Axis::linear("reward").showing(0.0..=105.0);
    Some(figures::over_time(
        outcome.level,
        &outcome.variation,
        y,
        series.collect(),
    ))
}

fn recovery(trial: &Trial) -> Vec<Plot> {
    let Trial {
        outcome, history, ..
    } = trial;
    let frames = Series::line("evidence", figures::per_second(outcome, |qoe| qoe.fps_mean));
    let y = Axis::linear("frames per second").showing(0.0..=FPS + 5.0);
    let mut panels = vec![figures::over_time(
        "frames",
        &outcome.variation,
        y,
        vec![frames],
    )];
    panels.extend(history.as_ref().map(|history| {
        let series = vec![steps("evidence", history, outcome.variation.end)];
        figures::over_time("paths", &outcome.variation, axis_of_paths(), series)
    }));
    panels
}

fn under_faults(summary: &Summary, faults: &[(u64, faults::Outcome)]) -> Option<Section> {
    let (seed, _) = faults.first()?;
    let panels = faults
        .iter()
        .filter(|(of, _)| of == seed)
        .map(|(_, outcome)| Plot {
            title: outcome.scenario.name.to_owned(),
            x: Axis::linear("time (s)").showing(0.0..=outcome.end.as_secs_f64()),
            y: Axis::linear("paths").showing(0.0..=3.0),
            series: vec![steps("evidence", &outcome.history, outcome.end)],
            bands: Vec::new(),
        });
    let cases = summary.cases.iter().filter(|case| is_fault(case, faults));
    Some(Section {
        title: "Faulty path under control".to_owned(),
        text: "Two paths, in mode evidence without a trigger; the faster one is faulty, path 2 loses \
               no packets. 2,000 UDP packets per second. Packets can only be missing while the flow does not use path 2 \
               (without whole path)."
            .to_owned(),
        items: vec![
            Item::Figure(Figure { caption: "Number of paths.".to_owned(), panels: panels.collect() }),
            Item::Table(Table::of_cases(cases, "Missing packets, and the time without path 2.")),
        ],
    })
}

fn is_fault(case: &Case, faults: &[(u64, faults::Outcome)]) -> bool {
    faults
        .iter()
        .any(|(_, outcome)| outcome.case.name == case.name)
}

fn all_figures(summary: &Summary, faults: &[(u64, faults::Outcome)]) -> Section {
    let cases = summary.cases.iter().filter(|case| !is_fault(case, faults));
    let caption = "Medians; the figures of each seed are in summary.json. fps_min: the worst second. trigger_to_first_replica: \
                   time from the due time of the third late request, when the trigger fired first, to the first copy on \
                   a new path.";
    Section {
        title: "All figures".to_owned(),
        text: "During the variation of the network. The paper's figure is below ours where its text has one."
            .to_owned(),
        items: vec![Item::Table(Table::of_cases(cases, caption))],
    }
}
