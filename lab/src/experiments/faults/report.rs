use super::SCENARIOS;
use crate::report::{Cell, Highlight, Item, Report, Section, Table};
use crate::summary::{Case, Summary};
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`.
pub(super) fn write(summary: &Summary, out: &Path) -> Result<()> {
    let report = Report {
        title: "Replication over a faulty path without losing a packet".to_owned(),
        intro: "There are two paths between the edges. Path 2 loses no packets. Path 1, the default route, is the faster one and \
                has a fault in both directions. All kinds of packets are replicated on both and counted \
                at the viewer by the number and the digest in each: UDP from connected and unconnected sockets, with DF \
                and in segmentation trains, TCP, and ICMP, over IPv4 and IPv6. Copies are authenticated."
            .to_owned(),
        highlights: highlights(summary),
        sections: [
            matrix(
                summary,
                "Encapsulated",
                "Traffic that passes through the ingress edge (XDP), and, where the name begins with local, traffic that \
                 the ingress edge itself sends (TC, segmentation offload on). ipv6: the outer headers are IPv6.",
                false,
            ),
            matrix(
                summary,
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
        .collect(),
        summary,
    };
    report.write(out)?;
    Ok(())
}

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let cases: Vec<&Case> = summary
        .cases
        .iter()
        .filter(|case| !is_transparent(case))
        .collect();
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
        Highlight {
            value: format!("{}", sum("missing_packets")),
            label: "packets missing, encapsulated".to_owned(),
            comparison: format!("of {sent} sent; the target is 0"),
        },
        Highlight {
            value: format!("{:.4} %", duplicates * 100.0),
            label: "duplicates passed, worst case".to_owned(),
            comparison: "at most 0.1 %".to_owned(),
        },
    ]
}

/// Returns the section with a row for each scenario and a column for each kind of packets; `None`
/// if there are no cases.
fn matrix(summary: &Summary, title: &str, text: &str, transparent: bool) -> Option<Section> {
    let cases: Vec<&Case> = summary
        .cases
        .iter()
        .filter(|case| is_transparent(case) == transparent)
        .collect();
    if cases.is_empty() {
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
    let table = |(caption, metric): (&str, &str)| Item::Table(table(&cases, metric, caption));
    let items = items.into_iter().map(table).collect();
    Some(Section {
        title: title.to_owned(),
        text: text.to_owned(),
        items,
    })
}

fn table(cases: &[&Case], metric: &str, caption: &str) -> Table {
    let split = |case: &'_ Case| {
        case.name
            .split_once('/')
            .map(|(row, column)| (row.to_owned(), column.to_owned()))
    };
    let mut columns: Vec<String> = Vec::new();
    for (_, column) in cases.iter().filter_map(|case| split(case)) {
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    let figure = |row: &str, column: &String| {
        let value = cases
            .iter()
            .find(|case| case.name == format!("{row}/{column}"))?
            .metrics
            .get(metric)?;
        Some(if metric.ends_with("_ratio") {
            format!("{:.3}", value * 100.0)
        } else {
            value.to_string()
        })
    };
    let cell = |value: String| Cell { value, paper: None };
    let rows = SCENARIOS.iter().filter(|scenario| {
        cases
            .iter()
            .any(|case| case.name.starts_with(&format!("{}/", scenario.name)))
    });
    let rows = rows.map(|scenario| {
        let figures = columns
            .iter()
            .map(|column| cell(figure(scenario.name, column).unwrap_or_else(|| "–".into())));
        std::iter::once(cell(format!("{}: {}", scenario.name, scenario.fault)))
            .chain(figures)
            .collect()
    });
    Table {
        header: std::iter::once("path 1".to_owned())
            .chain(columns.iter().cloned())
            .collect(),
        rows: rows.collect(),
        caption: caption.to_owned(),
    }
}

fn is_transparent(case: &Case) -> bool {
    SCENARIOS.iter().any(|scenario| {
        scenario.is_transparent() && case.name.starts_with(&format!("{}/", scenario.name))
    })
}
