use crate::experiments::figures;
use crate::experiments::live::Outcome;
use crate::report::{Highlight, Item, Report, Section, Table};
use crate::summary::Summary;
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`.
pub(super) fn write(summary: &Summary, outcomes: &[Outcome], out: &Path) -> Result<()> {
    let shown: Vec<&Outcome> = outcomes.iter().collect();
    let report = Report {
        title: "A live stream over five misbehaving paths".to_owned(),
        intro: "A person, captured by two depth cameras, is streamed at 30 frames per second over TCP with BBR. Between \
                the two edges lie the five paths of Table I of Qian et al.; in the shaded time each packet on a path \
                takes longer by a random delay of its own, on the default path by up to 50 ms. The flow stays on the \
                default path (single), is moved to path 2 (redirect), or is sent over all five, where the first \
                arrival wins (replicate)."
            .to_owned(),
        highlights: highlights(summary),
        sections: sections(summary, &shown),
        summary,
    };
    report.write(out)?;
    Ok(())
}

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let figure =
        |case: &str, metric: &str| summary.case(case).and_then(|case| case.metrics.get(metric));
    let highlight = |label: &str, metric: &str, unit: &str| {
        let (ours, single) = (
            figure("replicate/fhd", metric)?,
            figure("single/fhd", metric)?,
        );
        Some(Highlight {
            value: format!("{ours:.1} {unit}"),
            label: label.to_owned(),
            beside: format!("{single:.1} {unit} on the default path alone"),
        })
    };
    [
        highlight("frame rate, fhd, replicated", "fps_mean", "fps"),
        highlight(
            "95th percentile of frame delay, fhd, replicated",
            "frame_delay_p95_ms",
            "ms",
        ),
        highlight("throughput, fhd, replicated", "throughput_mbps", "Mb/s"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn sections(summary: &Summary, outcomes: &[&Outcome]) -> Vec<Section> {
    vec![
        Section {
            title: "Experience at the viewer".to_owned(),
            text: "Per second of the stream. The paper's figures 5a, 5b and 5c, with redirection beside."
                .to_owned(),
            items: figures::experience(outcomes),
        },
        Section {
            title: "Arrival of packets".to_owned(),
            text: "The paper's figure 6a: what has arrived, when. A step is a wait for a packet that was delayed, or for \
                   one that was sent again."
                .to_owned(),
            items: vec![figures::arrivals(outcomes)],
        },
        table(summary),
    ]
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
