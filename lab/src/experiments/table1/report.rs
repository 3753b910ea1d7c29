use super::{FPS, LEVELS, Outcome, Variation};
use crate::plot::{Axis, Band, Plot, Series};
use crate::report::{Figure, Highlight, Item, Report, Section, Table};
use crate::summary::Summary;
use anyhow::Result;
use hawser_qoe::measure;
use std::path::Path;
use std::time::Duration;

/// How much of the variation figure 6a shows.
const ARRIVALS_SHOWN: Duration = Duration::from_secs(2);

/// Writes `report.html`.
pub(super) fn write(summary: &Summary, outcomes: &[Outcome], out: &Path) -> Result<()> {
    let report = Report {
        title: "A live stream over five misbehaving paths".to_owned(),
        intro: "A person, captured by two depth cameras, is streamed at 30 frames per second over TCP with BBR. Between \
                the two edges lie the five paths of Table I of Qian et al.; in the shaded time each packet on a path \
                takes longer by a random delay of its own, on the default path by up to 50 ms. The flow stays on the \
                default path (single), is moved to path 2 (redirect), or is sent over all five, where the first \
                arrival wins (replicate)."
            .to_owned(),
        highlights: highlights(summary),
        sections: vec![figures(outcomes), arrivals(outcomes), table(summary)],
        summary,
    };
    report.write(out)?;
    Ok(())
}

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let figure = |case: &str, metric: &str| summary.case(case).and_then(|case| case.metrics.get(metric));
    let highlight = |label: &str, metric: &str, unit: &str| {
        let (ours, single) = (figure("replicate/fhd", metric)?, figure("single/fhd", metric)?);
        Some(Highlight {
            value: format!("{ours:.1} {unit}"),
            label: label.to_owned(),
            beside: format!("{single:.1} {unit} on the default path alone"),
        })
    };
    [
        highlight("frame rate, fhd, replicated", "fps_mean", "fps"),
        highlight("95th percentile of frame delay, fhd, replicated", "frame_delay_p95_ms", "ms"),
        highlight("throughput, fhd, replicated", "throughput_mbps", "Mb/s"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn figures(outcomes: &[Outcome]) -> Section {
    let figure = |caption: &str, label: &str, top: Option<f64>, series: fn(&Outcome) -> Vec<(f64, f64)>| {
        let panels =
            LEVELS.into_iter().filter_map(|level| panel(outcomes, level, label, top, series)).collect();
        Item::Figure(Figure { caption: caption.to_owned(), panels })
    };
    Section {
        title: "Experience at the viewer".to_owned(),
        text: "Per second of the stream. The paper's figures 5a, 5b and 5c, with redirection beside."
            .to_owned(),
        items: vec![
            figure("Figure 5a: frames per second.", "frames per second", Some(FPS + 5.0), |outcome| {
                per_second(outcome, |qoe| qoe.fps_mean)
            }),
            figure(
                "Figure 5b: frame delay, from capture to decoded; the median of each second.",
                "frame delay (ms)",
                None,
                |outcome| per_second(outcome, |qoe| qoe.frame_delay_p50_ms.unwrap_or(f64::NAN)),
            ),
            figure("Figure 5c: throughput of decoded frames.", "throughput (Mb/s)", None, |outcome| {
                per_second(outcome, |qoe| qoe.throughput_mbps)
            }),
        ],
    }
}

fn panel(
    outcomes: &[Outcome],
    level: &str,
    label: &str,
    top: Option<f64>,
    points: fn(&Outcome) -> Vec<(f64, f64)>,
) -> Option<Plot> {
    let shown: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.level() == level).collect();
    let variation = shown.first()?.variation;
    let y = Axis::linear(label);
    Some(Plot {
        title: level.to_owned(),
        x: Axis::linear("time (s)").showing(0.0..=variation.end.as_secs_f64()),
        y: match top {
            Some(top) => y.showing(0.0..=top),
            None => y,
        },
        series: shown.iter().map(|outcome| Series::line(outcome.policy(), points(outcome))).collect(),
        bands: vec![variation.band()],
    })
}

fn per_second(outcome: &Outcome, figure: fn(&hawser_qoe::Qoe) -> f64) -> Vec<(f64, f64)> {
    let timeline = outcome.record.timeline();
    let seconds = outcome.variation.end.as_secs();
    (0..seconds)
        .map(|second| {
            let window = outcome.record.window(Duration::from_secs(second), Duration::from_secs(second + 1));
            (second as f64 + 0.5, figure(&measure(&timeline, window)))
        })
        .collect()
}

/// Figure 6a is of the lowest level that ran.
fn arrivals(outcomes: &[Outcome]) -> Section {
    let level = LEVELS.into_iter().find(|level| outcomes.iter().any(|outcome| outcome.level() == *level));
    let shown: Vec<&Outcome> = outcomes.iter().filter(|outcome| Some(outcome.level()) == level).collect();
    let series = shown.iter().map(|outcome| Series::line(outcome.policy(), received(outcome))).collect();
    let plot = Plot {
        title: level.unwrap_or_default().to_owned(),
        x: Axis::linear("time since the variation began (s)").showing(0.0..=ARRIVALS_SHOWN.as_secs_f64()),
        y: Axis::linear("received (MB)"),
        series,
        bands: Vec::new(),
    };
    Section {
        title: "Arrival of packets".to_owned(),
        text: "The paper's figure 6a: what has arrived, when. A step is a wait for a packet that was delayed, or for one \
               that was sent again."
            .to_owned(),
        items: vec![Item::Figure(Figure {
            caption: "Figure 6a: bytes that reached the viewer's application.".to_owned(),
            panels: vec![plot],
        })],
    }
}

fn received(outcome: &Outcome) -> Vec<(f64, f64)> {
    let from = outcome.variation.from.as_secs_f64();
    let mut megabytes = 0.0;
    outcome
        .record
        .arrivals
        .iter()
        .map(|arrival| (outcome.record.seconds(arrival.received_ns) - from, arrival.bytes as f64 / 1e6))
        .filter(|(at, _)| (0.0..ARRIVALS_SHOWN.as_secs_f64()).contains(at))
        .map(|(at, bytes)| {
            megabytes += bytes;
            (at, megabytes)
        })
        .collect()
}

fn table(summary: &Summary) -> Section {
    let caption = "While the network varies. bandwidth_cost_ratio: bytes of copies over bytes of packets; the paper's \
                   figures are with path elimination, ours keep all five paths. fps_min: the worst second.";
    Section {
        title: "Figures".to_owned(),
        text: "The paper's figure below ours where its text has one.".to_owned(),
        items: vec![Item::Table(Table::of_cases(&summary.cases, caption))],
    }
}

impl Outcome {
    fn policy(&self) -> &str {
        self.case.name.split('/').next().expect("cases are policy/level")
    }

    fn level(&self) -> &str {
        self.case.name.split('/').nth(1).expect("cases are policy/level")
    }
}

impl Variation {
    fn band(self) -> Band {
        Band { from: self.from.as_secs_f64(), to: self.to.as_secs_f64(), label: "variation".to_owned() }
    }
}
