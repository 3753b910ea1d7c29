//! `report.html`.

use super::scenario::{Load, Way};
use crate::plot::{Axis, Plot, Series};
use crate::report::{Highlight, Item, Report, Section};
use crate::summary::Summary;
use anyhow::Result;
use std::path::Path;

/// The load of the highlights.
const EXAMPLE: Load = Load {
    subscribers: 200,
    packets: 1,
    segmented: false,
};

pub(super) fn write(summary: &Summary, out: &Path) -> Result<()> {
    let plot = |metric: &str, unit: &str| {
        let mut loads = Load::all();
        loads.retain(|load| load.packets == EXAMPLE.packets);
        let series = Way::ALL.map(|way| {
            let points = loads.iter().filter_map(|load| {
                let case = summary.case(&load.name(way))?;
                Some((load.subscribers as f64, case.metrics.get(metric)?))
            });
            Series::line(way.name(), points.collect())
        });
        Plot::new(
            format!("{metric}, objects of one packet"),
            Axis::logarithmic("subscribers"),
            Axis::logarithmic(unit),
            series,
        )
    };
    Report {
        title: "Relaying one publisher to many subscribers",
        intro: "A publisher sends objects at 30 frames per second, or fewer where a relay could not keep up, to a relay, which \
                sends each to all subscribers. Packets have 1,200 bytes, and end at the egress of the device towards the subscribers.",
        highlights: highlights(summary),
        sections: vec![
            Section::new(
                "Delay and CPU time",
                "",
                vec![Item::figure(
                    "",
                    vec![
                        plot("added_delay_p50_us", "us"),
                        plot("added_delay_p99_us", "us"),
                        plot("cpu_us_per_delivered_packets", "us"),
                    ],
                )],
            ),
            Section::all_figures("cases: way/subscribers/packets of an object. added_delay: from the egress of the device that sends a packet to the relay \
                 to the egress of the device by which it leaves. added_delay_gain: that of the better relay in user space minus \
                 that of the case. object_delay: of whole objects, from the publisher to a subscriber.", summary),
        ],
        summary,
    }
    .write(out)
}

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let highlight = |(metric, unit, label, comparison): (&str, &str, &str, &str)| {
        let case = summary.case(&EXAMPLE.name(Way::Kernel))?;
        let value = format!("{:.2} {unit}", case.metrics.get(metric)?);
        Some(Highlight::new(value, label, comparison))
    };
    [
        (
            "added_delay_p50_gain_us",
            "us",
            "less added delay than in user space, median, 200 subscribers",
            "at least 100",
        ),
        (
            "added_delay_p99_gain_us",
            "us",
            "less added delay than in user space, 99th percentile",
            "at least 300",
        ),
        (
            "cpu_ratio_to_gso",
            "",
            "of the CPU time in user space with UDP_SEGMENT",
            "at most 0.5",
        ),
        (
            "added_delay_p50_ratio_to_moq_relay",
            "",
            "of the added delay of moq-relay, median",
            "at most 0.1",
        ),
    ]
    .into_iter()
    .filter_map(highlight)
    .collect()
}
