use super::{ALL_UPLINKS, Event, Exchanges, Outcome, SERVERS};
use crate::plot::{Axis, Band, Plot, Series};
use crate::report::{Cell, Figure, Highlight, Item, Report, Section, Table};
use crate::summary::Summary;
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`.
pub(super) fn write(summary: &Summary, sections: Vec<Section>, out: &Path) -> Result<()> {
    let report = Report {
        title: "A tunnel whose uplinks and servers fail".to_owned(),
        intro: "Four uplinks of 20 Mb/s and 30 to 60 ms lie between a car and two servers, each behind a carrier's address \
                translation. Inside the tunnel there are an SSH session in which a line is typed ten times a second and \
                comes back, pings every 10 ms, and a video of 6 Mb/s and 30 frames a second. Nothing inside may end, and \
                little of it may be late."
            .to_owned(),
        highlights: highlights(summary),
        sections,
        summary,
    };
    report.write(out)?;
    Ok(())
}

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let figure = |case: &str, metric: &str| summary.case(case)?.metrics.get(metric);
    let highlight =
        |case: &str, metric: &str, scale: f64, unit: &str, label: &str, beside: &str| {
            Some(Highlight {
                value: format!("{:.3} {unit}", figure(case, metric)? * scale),
                label: label.to_owned(),
                beside: beside.to_owned(),
            })
        };
    [
        highlight(
            ALL_UPLINKS,
            "sessions_lost_ratio",
            100.0,
            "%",
            "faults that ended the session",
            "none may",
        ),
        highlight(
            ALL_UPLINKS,
            "ssh_echo_p99_ms",
            1.0,
            "ms",
            "99 of 100 lines came back within",
            "",
        ),
        highlight(
            ALL_UPLINKS,
            "stall_ratio",
            100.0,
            "%",
            "of the time the video stood still",
            "",
        ),
        highlight(
            SERVERS,
            "recovery_max_ms",
            1e-3,
            "s",
            "longest silence after a server's death",
            "below 3 s",
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What the faults of uplinks did.
pub(super) fn uplinks(outcome: &Outcome) -> Section {
    Section {
        title: "Uplinks".to_owned(),
        text: "Each uplink fails in every way, one after the other. link-down: the interface has no carrier. silent: \
               everything is dropped without a sign of it. readdressed: the interface gets another address. rebound: the \
               address translation forgets the connection and takes another address and other ports. throttled: 1 Mb/s \
               behind a queue that then takes a second."
            .to_owned(),
        items: items(outcome),
    }
}

/// What the deaths of servers did.
pub(super) fn servers(outcome: &Outcome) -> Section {
    Section {
        title: "Servers".to_owned(),
        text: "The server that has the session is killed, and started again 6 seconds later. The other one takes the \
               session over with its inner addresses. The host's answers follow the packets of the client."
            .to_owned(),
        items: items(outcome),
    }
}

fn items(outcome: &Outcome) -> Vec<Item> {
    let answers = |name: &str, exchanges: &Exchanges| {
        let points = exchanges.seconds(outcome.began).into_iter();
        let points = points.filter_map(|(asked, took)| Some((asked, took? * 1e3)));
        Series::dots(name, points.collect())
    };
    let mut shown: Vec<f64> = outcome
        .frames
        .iter()
        .map(|frame| outcome.seconds(frame.decoded))
        .collect();
    shown.sort_by(f64::total_cmp);
    let gaps = shown
        .windows(2)
        .map(|pair| (pair[1], (pair[1] - pair[0]) * 1e3))
        .collect();
    let panels = [
        panel(
            outcome,
            "SSH",
            "time until a line came back (ms)",
            answers("lines", &outcome.ssh),
        ),
        panel(
            outcome,
            "pings",
            "round-trip time (ms)",
            answers("pings", &outcome.ping),
        ),
        panel(
            outcome,
            "video",
            "time since the frame before (ms)",
            Series::dots("frames", gaps),
        ),
    ];
    let caption = "Shaded: while the fault lasted.".to_owned();
    vec![
        Item::Figure(Figure {
            caption,
            panels: panels.into(),
        }),
        Item::Table(table(outcome)),
    ]
}

fn panel(outcome: &Outcome, title: &str, label: &str, series: Series) -> Plot {
    let band = |event: &Event| Band {
        from: event.at_s,
        to: event.at_s + event.lasted_s,
        // There are too many of them to name: the table below does.
        label: String::new(),
    };
    Plot {
        title: title.to_owned(),
        x: Axis::linear("time (s)").showing(0.0..=outcome.seconds(outcome.ended)),
        y: Axis::logarithmic(label),
        series: vec![series],
        bands: outcome.events.iter().map(band).collect(),
    }
}

fn table(outcome: &Outcome) -> Table {
    let header = [
        "what failed",
        "at (s)",
        "kept: session",
        "inner addresses",
        "SSH",
        "longest time without: a line (ms)",
        "a ping (ms)",
        "a frame (ms)",
    ];
    let row = |event: &Event| {
        let yes = |survived| if survived { "yes" } else { "no" }.to_owned();
        let gap =
            |exchanges: &Exchanges| format!("{:.0}", exchanges.within(&[event.window]).gap_max_ms);
        let frames: Vec<_> = outcome.frames.iter().map(|frame| frame.decoded).collect();
        let values = [
            event.what.clone(),
            format!("{:.1}", event.at_s),
            yes(event.same_session),
            yes(event.same_addresses),
            yes(event.ssh_alive),
            gap(&outcome.ssh),
            gap(&outcome.ping),
            format!(
                "{:.0}",
                super::exchanges::longest_gap(&frames, event.window)
            ),
        ];
        values
            .into_iter()
            .map(|value| Cell { value, paper: None })
            .collect()
    };
    Table {
        header: header.map(str::to_owned).into(),
        rows: outcome.events.iter().map(row).collect(),
        caption: "What each fault did until the next one.".to_owned(),
    }
}
