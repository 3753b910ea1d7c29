use super::faults;
use super::scene::Policy;
use super::stream::StreamOutcome;
use crate::experiments::figures;
use crate::experiments::history::History;
use crate::experiments::live::{FPS, LEVELS, Outcome};
use crate::plot::{Axis, Plot, Series};
use crate::report::{Cell, Highlight, Item, Report, Section, Table};
use crate::summary::{Case, Summary};
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`.
pub(super) fn write(
    summary: &Summary,
    trials: &[StreamOutcome],
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
    Report {
        title: "Replication that starts automatically and keeps the paths that help",
        intro: "A point cloud of a person is streamed at 30 frames per second over TCP with BBR. Between the two edges are the five paths \
                of Table I of Qian et al., which vary during the shaded time. The flow begins on the default path. When the \
                viewer's requests are late three times in a row, the controller leaves it there (single), moves it \
                to the path with the smallest round-trip time (redirect), or replicates it on all paths, of which \
                Algorithm 1 of the paper (successive) or Hawser's own algorithm (evidence) then removes those that do not \
                help. For comparison the kernel's MPTCP is run with a subflow on each path. Curves show the first seed, \
                figures are medians over all seeds.",
        highlights: highlights(summary),
        sections: sections.into_iter().flatten().collect(),
        summary,
    }
    .write(out)
}

/// A metric of a case in large type.
struct Shown {
    label: &'static str,
    case: &'static str,
    metric: &'static str,
    digits: usize,
    unit: &'static str,
    comparison: fn(&Summary) -> String,
}

const HIGHLIGHTS: [Shown; 4] = [
    Shown {
        label: "frame rate, fhd, evidence",
        case: "evidence/fhd",
        metric: "fps_mean",
        digits: 1,
        unit: " fps",
        comparison: default_path,
    },
    Shown {
        label: "from the third late request to the first replica, fhd",
        case: "evidence/fhd",
        metric: "trigger_to_first_replica_ms",
        digits: 0,
        unit: " ms",
        comparison: |_| "the target is 700 ms".to_owned(),
    },
    Shown {
        label: "bandwidth cost, fhd, evidence",
        case: "evidence/fhd",
        metric: "bandwidth_cost_ratio",
        digits: 2,
        unit: "",
        comparison: |_| "the paper's is 2.4, the target 2.1".to_owned(),
    },
    Shown {
        label: "bandwidth cost, nfov, evidence",
        case: "evidence/nfov",
        metric: "bandwidth_cost_ratio",
        digits: 2,
        unit: "",
        comparison: |_| "the paper's is 1.8, the target 1.6".to_owned(),
    },
];

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let highlight = |shown: &Shown| {
        let (digits, unit) = (shown.digits, shown.unit);
        let value = figure(summary, shown.case, shown.metric)?;
        let value = format!("{value:.digits$}{unit}");
        let comparison = (shown.comparison)(summary);
        Some(Highlight::new(value, shown.label, comparison))
    };
    HIGHLIGHTS.iter().filter_map(highlight).collect()
}

fn default_path(summary: &Summary) -> String {
    figure(summary, "single/fhd", "fps_mean").map_or("the target is 28".to_owned(), |fps| {
        format!("{fps:.1} fps on the default path; the target is 28")
    })
}

fn figure(summary: &Summary, case: &str, metric: &str) -> Option<f64> {
    summary.case(case)?.metrics.get(metric)
}

/// Returns the section of figures 6c and 7, and of other numbers in the paper's text.
fn paper_comparison(summary: &Summary) -> Section {
    let tables = [FIGURE_6C, FIGURE_7].map(|figure| Item::Table(figure.table(summary)));
    Section::new(
        "Comparison with the paper",
        "During the variation of the network. docs/qian.md explains where our figures differ and why.",
        tables.into(),
    )
}

/// A figure of the paper as a table: a metric of each policy at each level, with the paper's number.
struct PaperFigure {
    caption: &'static str,
    metric: &'static str,
    policies: &'static [&'static str],
    levels: &'static [&'static str],
    paper: fn(&str) -> Option<&'static str>,
}

const FIGURE_6C: PaperFigure = PaperFigure {
    caption: "Figure 6c: bandwidth cost, the ratio of the bytes sent on paths to the bytes of the source. MPTCP does not replicate.",
    metric: "bandwidth_cost_ratio",
    policies: &[
        "single",
        "redirect",
        "successive",
        "evidence",
        "auto",
        "mptcp",
    ],
    levels: &LEVELS,
    paper: |level| match level {
        "nfov" => Some("1.8"),
        "fhd" => Some("2.4"),
        _ => None,
    },
};

const FIGURE_7: PaperFigure = PaperFigure {
    caption: "Figure 7: throughput relative to the single path. The rate of a level limits its gain; the \
              uncapped source has no such limit.",
    metric: "throughput_gain_ratio",
    policies: &["redirect", "successive", "evidence", "auto", "mptcp"],
    levels: &["nfov", "hd", "fhd", "uncapped"],
    paper: |level| match level {
        "fhd" => Some("about 7, replicated"),
        _ => None,
    },
};

impl PaperFigure {
    fn table(&self, summary: &Summary) -> Table {
        let header = ["level"].iter().chain(self.policies).chain(&["paper"]);
        Table {
            header: header.map(|title| (*title).to_owned()).collect(),
            rows: self
                .levels
                .iter()
                .map(|level| self.row(summary, level))
                .collect(),
            caption: self.caption.to_owned(),
        }
    }

    fn row(&self, summary: &Summary, level: &str) -> Vec<Cell> {
        let figures = self.policies.iter().map(|policy| {
            let value = figure(summary, &format!("{policy}/{level}"), self.metric);
            value.map_or("–".to_owned(), |value| format!("{value:.2}"))
        });
        let paper = (self.paper)(level).unwrap_or("no number").to_owned();
        [level.to_owned()]
            .into_iter()
            .chain(figures)
            .chain([paper])
            .map(Cell::new)
            .collect()
    }
}

/// The trials of the first seed, which the curves show.
struct FirstSeed<'a> {
    /// Trials of the policies of figure 5 at the levels.
    streams: Vec<&'a StreamOutcome>,
    recoveries: Vec<&'a StreamOutcome>,
}

impl<'a> FirstSeed<'a> {
    fn of(trials: &'a [StreamOutcome]) -> Self {
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
        (!self.streams.is_empty()).then(|| {
            Section::new(
                "Experience at the viewer",
                "Per second of the stream; the paper's figures 5a, 5b and 5c.",
                figures::experience(&self.outcomes()),
            )
        })
    }

    fn arrivals(&self) -> Option<Section> {
        (!self.streams.is_empty()).then(|| {
            Section::new(
                "Arrival of packets",
                "The paper's figure 6a: data that has arrived over time. A step is a wait for a packet that was delayed or \
                 retransmitted.",
                vec![figures::arrivals(&self.outcomes())],
            )
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
        (!panels.is_empty()).then(|| {
            Section::new(
                "Number of paths of the flow",
                "The trigger sets it to five; then the egress removes paths. The default route counts as \
                 one.",
                vec![Item::figure("Number of paths.", panels)],
            )
        })
    }

    fn rewards(&self) -> Option<Section> {
        let panels: Vec<Plot> = self
            .streams
            .iter()
            .filter(|trial| trial.scene.policy == Policy::Successive)
            .filter_map(|trial| rewards(&trial.outcome, trial.history.as_ref()?))
            .collect();
        (!panels.is_empty()).then(|| {
            Section::new(
                "Reward of each path",
                "The paper's figure 6b, with Algorithm 1: of each 100 packets, the number of copies that arrived on a path within 5 ms \
                 after the first one. The curve of a path ends when it is removed.",
                vec![Item::figure("Figure 6b: cumulative reward in windows of 100 packets.", panels)],
            )
        })
    }

    fn recovery(&self) -> Option<Section> {
        let panels: Vec<Plot> = self
            .recoveries
            .iter()
            .flat_map(|trial| recovery(trial))
            .collect();
        (!panels.is_empty()).then(|| {
            Section::new(
                "End of a variation, and the next one",
                "Not in the paper: with evidence the flow returns to one path when the network is calm, and \
                 is replicated again at the next variation.",
                vec![Item::figure("Frames and paths over two variations, fhd.", panels)],
            )
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

fn recovery(trial: &StreamOutcome) -> Vec<Plot> {
    let StreamOutcome {
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
        .map(|(_, outcome)| {
            Plot::new(
                outcome.scenario.name,
                Axis::linear("time (s)").showing(0.0..=outcome.end.as_secs_f64()),
                Axis::linear("paths").showing(0.0..=3.0),
                [steps("evidence", &outcome.history, outcome.end)],
            )
        });
    let cases = summary.cases.iter().filter(|case| is_fault(case, faults));
    Some(Section::new(
        "Faulty path under control",
        "Two paths, in mode evidence without a trigger; the faster one is faulty, path 2 loses \
         no packets. 2,000 UDP packets per second. Packets can only be missing while the flow does not use path 2 \
         (without whole path).",
        vec![
            Item::figure("Number of paths.", panels.collect()),
            Item::Table(Table::of_cases(
                cases,
                "Missing packets, and the time without path 2.",
            )),
        ],
    ))
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
    Section::new(
        "All figures",
        "During the variation of the network. The paper's figure is below ours where its text has one.",
        vec![Item::Table(Table::of_cases(cases, caption))],
    )
}
