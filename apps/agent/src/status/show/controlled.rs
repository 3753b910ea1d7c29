use super::{paths, table};
use crate::status::{ControllerStatus, PolicyStatus};
use std::fmt::Write;

/// How a node stands with its controller, and what follows from it.
pub(super) fn describe(status: &ControllerStatus, now_ms: u64) -> String {
    let since_s = now_ms.saturating_sub(status.since_unix_ms) / 1000;
    let urls = status.urls.join(", ");
    let mut text = match (status.state.as_str(), &status.why) {
        ("connected", _) => format!("connected to the controller {urls} for {since_s} s"),
        ("refused", Some(why)) => format!("THE CONTROLLER REFUSES THIS NODE: {why}"),
        (state, Some(why)) => format!("controller {state} for {since_s} s: {why}"),
        (state, None) => format!("controller {state}: {urls}"),
    };
    let _ = writeln!(text, "; assignment {}", status.revision);
    for (flow, reason) in &status.not_applied {
        let _ = writeln!(text, "flow {flow} is not as assigned: {reason}");
    }
    if status.observations_dropped > 0 {
        let _ = writeln!(text, "{} observations were never reported", status.observations_dropped);
    }
    text += &paths_table(status);
    text += &policies(status);
    text += &judged(status);
    text += &watched(status);
    if !status.signals.is_empty() {
        let counts: Vec<_> =
            status.signals.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
        let _ = writeln!(text, "\nin-band signals: {}", counts.join(", "));
    }
    text
}

fn paths_table(status: &ControllerStatus) -> String {
    let row = |(number, path): (&u8, &crate::status::PathStatus)| {
        let state = if path.up { "up" } else { "DOWN" }.to_owned();
        let round_trip =
            path.rtt_us.map_or_else(|| "no answer".to_owned(), |us| format!("{:.3} ms", f64::from(us) / 1e3));
        vec![number.to_string(), state, round_trip]
    };
    table("paths", &["path", "state", "round trip"], status.paths.iter().map(row).collect())
}

fn policies(status: &ControllerStatus) -> String {
    const COLUMNS: [&str; 7] = ["flow", "number", "", "epoch", "paths", "probed", "because"];
    let row = |number: u16, direction: &str, policy: &PolicyStatus| {
        let probed = match policy.probe_every {
            0 => "-".to_owned(),
            every => format!("{} 1 in {every}", paths(policy.probes)),
        };
        vec![
            policy.flow.to_string(),
            number.to_string(),
            direction.to_owned(),
            policy.epoch.to_string(),
            paths(policy.code),
            probed,
            policy.because.clone(),
        ]
    };
    let sent = status.send.iter().map(|(number, policy)| row(*number, "sent", policy));
    let received = status.receive.iter().map(|(number, judged)| row(*number, "received", &judged.policy));
    table("policies", &COLUMNS, sent.chain(received).collect())
}

fn judged(status: &ControllerStatus) -> String {
    const COLUMNS: [&str; 7] = ["flow", "mode", "packets", "path", "sent", "in time", "only this one"];
    let mut rows = Vec::new();
    for judged in status.receive.values() {
        let flow = judged.policy.flow.to_string();
        rows.push(vec![flow, judged.mode.clone(), judged.packets.to_string()]);
        for (path, part) in judged.window.iter().flat_map(|window| &window.paths) {
            let counts = [part.sent, part.rewards, part.only].map(|count| count.to_string());
            rows.push([vec![String::new(); 3], vec![path.to_string()], counts.to_vec()].concat());
        }
    }
    table("judged: the last hundred packets by path", &COLUMNS, rows)
}

fn watched(status: &ControllerStatus) -> String {
    const COLUMNS: [&str; 5] = ["flow", "requests", "sent again", "degraded", "packets a request"];
    let mut rows = Vec::new();
    for judged in status.receive.values() {
        let Some(watch) = &judged.watch else { continue };
        let counts = [watch.requests, watch.retransmissions, watch.degraded].map(|count| count.to_string());
        let size = watch.packets_per_request.map_or_else(|| "-".to_owned(), |packets| packets.to_string());
        rows.push([vec![judged.policy.flow.to_string()], counts.to_vec(), vec![size]].concat());
    }
    table("watched requests", &COLUMNS, rows)
}
