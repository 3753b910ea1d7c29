use super::{Counted, SCENARIOS, Scenario};
use crate::report::{Cell, Highlight, Item, Report, Section, Table};
use crate::summary::{Case, Summary};
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`.
pub(super) fn write(summary: &Summary, counted: &[Counted], out: &Path) -> Result<()> {
    Report {
        title: "Replication over a faulty path without losing a packet",
        intro: "There are two paths between the edges. Path 2 loses no packets. Path 1, the default route, is the faster one and \
                has a fault in both directions. All kinds of packets are replicated on both and counted \
                at the viewer by the number and the digest in each: UDP from connected and unconnected sockets, with DF \
                and in segmentation trains, TCP, and ICMP, over IPv4 and IPv6. Copies are authenticated.",
        highlights: highlights(counted),
        sections: sections(counted),
        summary,
    }
    .write(out)
}

fn highlights(counted: &[Counted]) -> Vec<Highlight> {
    let encapsulated = counted.iter().filter(|one| !one.scenario.is_transparent());
    let cases: Vec<&Case> = encapsulated.map(|one| &one.case).collect();
    let sum = |metric| {
        cases
            .iter()
            .filter_map(|case| case.metrics.get(metric))
            .sum::<f64>()
    };
    let sent = sum("sent_packets");
    let duplicates = cases
        .iter()
        .filter_map(|case| case.metrics.get("duplicates_ratio"))
        .fold(0.0, f64::max);
    vec![
        Highlight::new(
            sum("missing_packets").to_string(),
            "packets missing, encapsulated",
            format!("of {sent} sent; the target is 0"),
        ),
        Highlight::new(
            format!("{:.4} %", duplicates * 100.0),
            "duplicates passed, worst case",
            "at most 0.1 %",
        ),
    ]
}

fn sections(counted: &[Counted]) -> Vec<Section> {
    [
        matrix(
            counted,
            "Encapsulated",
            "Traffic that passes through the ingress edge (XDP), and, where the name begins with local, traffic that \
             the ingress edge itself sends (TC, segmentation offload on). ipv6: the outer headers are IPv6.",
            false,
        ),
        matrix(
            counted,
            "Transparent, the paper's form",
            "Nothing is added to packets, so copies are identified by the packet's own fields. A packet whose IPv4 ID is 0 \
             cannot be identified and takes only the default route: every packet of UDP with DF from an unconnected \
             socket, and a few others. Those that path 1 drops are missing. IPv6 has no such form and \
             is encapsulated.",
            true,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the section with a row for each scenario and a column for each kind of packets; `None`
/// if there are no cases.
fn matrix(counted: &[Counted], title: &str, text: &str, transparent: bool) -> Option<Section> {
    let shown: Vec<&Counted> = counted
        .iter()
        .filter(|one| one.scenario.is_transparent() == transparent)
        .collect();
    if shown.is_empty() {
        return None;
    }
    let items = [
        ("Packets missing.", "missing_packets"),
        (
            "Duplicates passed, in percent of the packets.",
            "duplicates_ratio",
        ),
        (
            "Reordered packets, in percent of the packets.",
            "reordered_ratio",
        ),
    ];
    let table = |(caption, metric): (&str, &str)| Item::Table(table(&shown, metric, caption));
    let items = items.into_iter().map(table).collect();
    Some(Section::new(title, text, items))
}

fn table(shown: &[&Counted], metric: &str, caption: &str) -> Table {
    let columns = columns(shown);
    let rows = SCENARIOS
        .iter()
        .filter(|scenario| shown.iter().any(|one| one.scenario == *scenario));
    let rows = rows.map(|scenario| {
        let name = format!("{}: {}", scenario.name, scenario.fault);
        let figures = columns
            .iter()
            .map(|column| figure(shown, scenario, column, metric).unwrap_or_else(|| "–".into()));
        std::iter::once(name)
            .chain(figures)
            .map(Cell::new)
            .collect()
    });
    let header = std::iter::once("path 1").chain(columns.iter().copied());
    Table {
        header: header.map(str::to_owned).collect(),
        rows: rows.collect(),
        caption: caption.to_owned(),
    }
}

/// Returns the kinds of packets, in the order of their first appearance.
fn columns<'a>(shown: &[&'a Counted]) -> Vec<&'a str> {
    let mut columns: Vec<&str> = Vec::new();
    for one in shown {
        if !columns.contains(&&*one.kind) {
            columns.push(&one.kind);
        }
    }
    columns
}

/// Formats a metric of a kind of packets in a scenario, ratios in percent.
fn figure(shown: &[&Counted], scenario: &Scenario, kind: &str, metric: &str) -> Option<String> {
    let of = |one: &&&Counted| one.scenario == scenario && one.kind == kind;
    let value = shown.iter().find(of)?.case.metrics.get(metric)?;
    Some(if metric.ends_with("_ratio") {
        format!("{:.3}", value * 100.0)
    } else {
        value.to_string()
    })
}
