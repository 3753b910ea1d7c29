use crate::experiments::figures;
use crate::experiments::live::Outcome;
use crate::report::{Highlight, Item, Picture, Report, Section, Table};
use crate::summary::Summary;
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`.
pub(super) fn write(summary: &Summary, outcomes: &[Outcome], out: &Path) -> Result<()> {
    let shown: Vec<&Outcome> = outcomes.iter().collect();
    Report {
        title: "A live stream over five paths with varying delay",
        intro: "A point cloud of a person, captured by two depth cameras, is streamed at 30 frames per second over TCP with BBR. Between \
                the two edges are the five paths of Table I of Qian et al. During the shaded time each packet on a path \
                has a random additional delay, on the default path of up to 50 ms. The flow stays on the \
                default path (single), is moved to path 2 (redirect), or is sent on all five paths, of which the first \
                copy to arrive is used (replicate).",
        highlights: highlights(summary),
        sections: sections(summary, &shown),
        summary,
    }
    .write(out)
}

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let figure = |policy: &str, level: &str, metric: &str| {
        let case = summary.case(&format!("{policy}/{level}"))?;
        case.metrics.get(metric)
    };
    // The figure of the highest level that was run.
    let highlight = |label: &str, metric: &str, unit: &str| {
        ["fhd", "hd", "nfov"].into_iter().find_map(|level| {
            let ours = figure("replicate", level, metric)?;
            let single = figure("single", level, metric)?;
            Some(Highlight::new(
                format!("{ours:.1} {unit}"),
                format!("{label}, {level}, replicated"),
                format!("{single:.1} {unit} on the default path"),
            ))
        })
    };
    [
        highlight("frame rate", "fps_mean", "fps"),
        highlight("95th percentile of frame delay", "frame_delay_p95_ms", "ms"),
        highlight("throughput", "throughput_mbps", "Mb/s"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn sections(summary: &Summary, outcomes: &[&Outcome]) -> Vec<Section> {
    let mut sections = vec![pictures(outcomes)];
    sections.retain(|section| !section.items.is_empty());
    sections.extend([
        Section::new("Experience at the viewer", "Per second of the stream. The paper's figures 5a, 5b and 5c, with redirection in addition.", figures::experience(outcomes)),
        Section::new("Arrival of packets", "The paper's figure 6a: data that has arrived over time. A step is a wait for a packet that was delayed or \
                   retransmitted.", vec![figures::arrivals(outcomes)]),
        table(summary),
    ]);
    sections
}

/// Returns what the viewers of pushed streams saw at the end of the variation.
fn pictures(outcomes: &[&Outcome]) -> Section {
    let picture = |outcome: &&Outcome| {
        let rate = outcome.case.metrics.get("throughput_mbps");
        Some(Picture {
            caption: format!(
                "{}: {:.1} frames per second, {:.1} Mb/s",
                outcome.policy,
                outcome.case.metrics.get("fps_mean").unwrap_or(f64::NAN),
                rate.unwrap_or(f64::NAN)
            ),
            png: outcome.picture.clone()?,
        })
    };
    let pictures: Vec<Picture> = outcomes.iter().filter_map(picture).collect();
    let items = (!pictures.is_empty()).then_some(Item::Pictures(pictures));
    Section::new(
        "The picture",
        "What a viewer sees at the end of the shaded time of a stream that is pushed at the rate that the network bears \
               (push), encrypted from end to end.",
        items.into_iter().collect(),
    )
}

fn table(summary: &Summary) -> Section {
    let caption = "During the variation of the network. bandwidth_cost_ratio: ratio of the bytes of copies to the bytes of packets; the paper's \
                   figures are with path pruning, ours are with all five paths. fps_min: the worst second.";
    Section::new(
        "Figures",
        "The paper's figure is below ours where its text has one.",
        vec![Item::Table(Table::of_cases(&summary.cases, caption))],
    )
}
