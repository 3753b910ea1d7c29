use super::exchanges::longest_gap;
use super::fault::Circumstances;
use super::{Event, Exchanges, Outcome, Subject};
use crate::plot::{Axis, Band, Plot, Series};
use crate::report::{Cell, Highlight, Item, Report, Section, Table};
use crate::summary::Summary;
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`.
pub(super) fn write(summary: &Summary, sections: Vec<Section>, out: &Path) -> Result<()> {
    Report {
        title: "A tunnel with faults of uplinks and servers",
        intro: "Four uplinks of 20 Mb/s with round-trip times of 30 to 60 ms connect a car to two servers, each uplink behind a carrier's address \
                translation. Inside the tunnel there are an SSH session in which a line is sent ten times per second and \
                echoed, pings every 10 ms, and a video of 6 Mb/s and 30 frames per second. No connection inside may be lost, and \
                few packets may be late.",
        highlights: highlights(summary),
        sections,
        summary,
    }
    .write(out)
}

/// A metric of a case in large type.
struct Shown {
    case: Subject,
    metric: &'static str,
    scale: f64,
    unit: &'static str,
    label: &'static str,
    comparison: &'static str,
}

const HIGHLIGHTS: [Shown; 4] = [
    Shown {
        case: Subject::Uplinks(Circumstances::Single),
        metric: "sessions_lost_ratio",
        scale: 100.0,
        unit: "%",
        label: "of the faults ended the session",
        comparison: "the target is 0",
    },
    Shown {
        case: Subject::Uplinks(Circumstances::Single),
        metric: "ssh_echo_p99_ms",
        scale: 1.0,
        unit: "ms",
        label: "99th percentile of the time until a line was echoed",
        comparison: "",
    },
    Shown {
        case: Subject::Uplinks(Circumstances::Single),
        metric: "stall_ratio",
        scale: 100.0,
        unit: "%",
        label: "of the time the video was frozen",
        comparison: "",
    },
    Shown {
        case: Subject::Servers,
        metric: "recovery_max_ms",
        scale: 1e-3,
        unit: "s",
        label: "longest time without a ping reply after a server was killed",
        comparison: "the target is 3 s",
    },
];

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let highlight = |shown: &Shown| {
        let case = summary.case(&shown.case.to_string())?;
        let figure = case.metrics.get(shown.metric)? * shown.scale;
        let value = format!("{figure:.3} {}", shown.unit);
        Some(Highlight::new(value, shown.label, shown.comparison))
    };
    HIGHLIGHTS.iter().filter_map(highlight).collect()
}

/// Returns the section of the faults of uplinks.
pub(super) fn uplinks(circumstances: Circumstances, outcome: &Outcome) -> Section {
    let (title, who) = match circumstances {
        Circumstances::Single => ("Uplinks", "Each uplink has"),
        Circumstances::Pairs => (
            "Two uplinks at once",
            "Each two neighbours among the uplinks have",
        ),
        Circumstances::Loaded => (
            "Uplinks beside uploads",
            "Beside eight CUBIC uploads inside the tunnel, each uplink has",
        ),
    };
    let text = "each kind of fault, one after the other. link-down: the interface has no carrier. silent: \
               all packets are dropped, which the interface does not show. readdressed: the interface gets another address. rebound: the \
               address translation loses its state and uses another address and other ports. throttled: 1 Mb/s \
               with a queue that then takes one second to drain. lossy: a tenth of the packets is lost, in bursts of five on average.";
    Section {
        title: title.to_owned(),
        text: format!("{who} {text}"),
        items: items(outcome),
    }
}

/// Returns the section of killed servers.
pub(super) fn servers(outcome: &Outcome) -> Section {
    Section::new(
        "Servers",
        "The server that has the session is killed, and restarted 6 seconds later. The other one takes over the \
               session with its inner addresses. The host replies by the server from which the client's packets come.",
        items(outcome),
    )
}

fn items(outcome: &Outcome) -> Vec<Item> {
    let answers = |name: &str, exchanges: &Exchanges| {
        let points = exchanges.seconds(outcome.began).into_iter();
        let points = points.filter_map(|(asked, took)| Some((asked, took? * 1e3)));
        Series::dots(name, points.collect())
    };
    let panels = [
        (
            "SSH",
            "time until a line was echoed (ms)",
            answers("lines", &outcome.ssh),
        ),
        (
            "pings",
            "round-trip time (ms)",
            answers("pings", &outcome.ping),
        ),
        (
            "video",
            "time since the previous frame (ms)",
            Series::dots("frames", gaps(outcome)),
        ),
    ];
    let panels = panels.map(|(title, label, series)| panel(outcome, title, label, series));
    vec![
        Item::figure("Shaded: duration of the faults.", panels.into()),
        Item::Table(table(outcome)),
    ]
}

/// Returns when each frame was shown, and the milliseconds since the one before it.
fn gaps(outcome: &Outcome) -> Vec<(f64, f64)> {
    let shown = outcome.frames.iter();
    let mut shown: Vec<f64> = shown.map(|frame| outcome.seconds(frame.decoded)).collect();
    shown.sort_by(f64::total_cmp);
    shown
        .windows(2)
        .map(|pair| (pair[1], (pair[1] - pair[0]) * 1e3))
        .collect()
}

fn panel(outcome: &Outcome, title: &str, label: &str, series: Series) -> Plot {
    let band = |event: &Event| Band {
        from: event.at_s,
        to: event.at_s + event.lasted_s,
        // There are too many events to label; the table below names them.
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

/// The headings of the table of faults.
const HEADER: [&str; 8] = [
    "fault",
    "start (s)",
    "same session",
    "same inner addresses",
    "SSH alive",
    "longest gap between lines (ms)",
    "between pings (ms)",
    "between frames (ms)",
];

fn table(outcome: &Outcome) -> Table {
    let frames: Vec<_> = outcome.frames.iter().map(|frame| frame.decoded).collect();
    let row = |event: &Event| {
        let yes = |survived| if survived { "yes" } else { "no" }.to_owned();
        let gap = |exchanges: &Exchanges| exchanges.within(&[event.window]).gap_max_ms;
        let values = [
            event.what.clone(),
            format!("{:.1}", event.at_s),
            yes(event.same_session),
            yes(event.same_addresses),
            yes(event.ssh_alive),
            format!("{:.0}", gap(&outcome.ssh)),
            format!("{:.0}", gap(&outcome.ping)),
            format!("{:.0}", longest_gap(&frames, event.window)),
        ];
        values.into_iter().map(Cell::new).collect()
    };
    Table {
        header: HEADER.map(str::to_owned).into(),
        rows: outcome.events.iter().map(row).collect(),
        caption: "Consequences of each fault until the next one.".to_owned(),
    }
}
