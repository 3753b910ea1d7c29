//! `flow describe`: why a flow is protected or not, on one screen.

use crate::output::table;
use crate::text;
use hawser_model::node::ReceivedPath;
use hawser_model::resource::{Cause, PathHealth};
use hawser_model::status::{Condition, FlowPath, FlowStatus, Truth, Usage};
use hawser_units::Line;
use std::fmt::Write;

/// The end of the message of a judgement that changes probes alone.
const PROBES_ONLY: &str = ": probing";

/// Describes a flow in text.
pub(super) fn describe(status: &FlowStatus) -> String {
    let flow = &status.flow;
    let mut text = format!(
        "{} of {}: {} to {}, {}, {}\n{}\n",
        flow.name,
        flow.tenant,
        flow.ingress,
        flow.egress,
        super::mode(flow.mode),
        super::packets(&flow.select),
        verdict(&status.conditions),
    );
    let _ = writeln!(text, "\nCONDITIONS\n{}", conditions(&status.conditions));
    let _ = writeln!(text, "POLICY\n{}", policy(status));
    let _ = writeln!(text, "PATHS\n{}", paths(status));
    let _ = write!(text, "EVENTS\n{}", events(status));
    text
}

fn verdict(conditions: &[Condition]) -> String {
    let Some(summary) = conditions.last() else {
        return text::none();
    };
    let protected = match summary.status {
        Truth::True => "PROTECTED",
        Truth::False => "NOT PROTECTED",
        Truth::Unknown => "PERHAPS NOT PROTECTED",
    };
    format!(
        "{protected} ({}): {}",
        Line::new(&summary.reason),
        Line::new(&summary.message)
    )
}

fn conditions(conditions: &[Condition]) -> String {
    let row = |condition: &Condition| {
        let status = match condition.status {
            Truth::True => "yes",
            Truth::False => "NO",
            Truth::Unknown => "?",
        };
        vec![
            condition.kind.clone(),
            status.to_owned(),
            condition.reason.clone(),
            text::or_none(condition.since_unix_ms.map(text::ago)),
            condition.message.clone(),
        ]
    };
    let header = ["condition", "", "reason", "since", "message"];
    table(&header, conditions.iter().map(row))
}

fn policy(status: &FlowStatus) -> String {
    let policy = &status.policy;
    let probed = match policy.probes.is_empty() {
        true => String::new(),
        false => format!(
            ", probes {} with 1 in {}",
            text::numbers(policy.probes),
            policy.probe_every
        ),
    };
    format!(
        "paths {}{probed}: {}, epoch {}, {}\n{}",
        text::paths(policy.code),
        policy.reason.name(),
        policy.epoch,
        text::ago(policy.decided_unix_ms),
        judgement(status).map_or_else(String::new, |reason| format!("{reason}\n"))
    )
}

/// Returns the sentence with which the egress judged the paths in force, if it did. A judgement of probes alone leaves them.
fn judgement(status: &FlowStatus) -> Option<Line> {
    let is_judged = status.policy.reason == Cause::Judged;
    let mut events = status.events.iter().rev();
    let chooses_paths = |message: &str| !message.ends_with(PROBES_ONLY);
    let judged = events
        .find(|event| event.kind == "paths_judged" && is_judged && chooses_paths(&event.message))?;
    Some(Line::new(&judged.message))
}

fn paths(status: &FlowStatus) -> String {
    let row = |path: &FlowPath| {
        let end = |end: &Option<hawser_model::resource::PathEnd>| {
            text::or_none(end.as_ref().map(|end| end.uplink()))
        };
        let mut row = vec![
            path.number.to_string(),
            usage(path.usage).to_owned(),
            end(&path.ingress),
            end(&path.egress),
        ];
        row.extend(health(path.health.as_ref()));
        row.extend(contribution(path.received.as_ref(), received_first(status)));
        row
    };
    let header = [
        "path",
        "use",
        "ingress",
        "egress",
        "state",
        "round trip",
        "arrived",
        "first",
        "only copy",
        "missing",
    ];
    table(&header, status.paths.iter().map(row))
}

/// Returns the number of packets that the egress has passed on.
fn received_first(status: &FlowStatus) -> u64 {
    let received = status
        .paths
        .iter()
        .filter_map(|path| path.received.as_ref());
    received.map(|path| path.first).sum()
}

fn usage(usage: Usage) -> &'static str {
    match usage {
        Usage::Taken => "taken",
        Usage::Probed => "probed",
        Usage::Unused => "unused",
        Usage::Excluded => "excluded",
    }
}

fn health(health: Option<&PathHealth>) -> [String; 2] {
    let state = match health {
        None => "not reported",
        Some(health) if !health.up => "DOWN",
        Some(health) if health.rtt_us.is_none() => "NO ANSWER",
        Some(_) => "up",
    };
    let rtt_us = health.and_then(|health| health.rtt_us);
    [
        state.to_owned(),
        text::or_none(rtt_us.map(text::milliseconds)),
    ]
}

/// Returns the counters of a path, with the share of packets that it delivered first.
fn contribution(received: Option<&ReceivedPath>, packets: u64) -> [String; 4] {
    let Some(received) = received else {
        return [(); 4].map(|()| text::none());
    };
    let share = match packets {
        0 => text::none(),
        packets => format!("{:.1} %", received.first as f64 * 100.0 / packets as f64),
    };
    [
        received.arrivals.to_string(),
        share,
        received.only_copy.to_string(),
        received.missing.to_string(),
    ]
}

fn events(status: &FlowStatus) -> String {
    if status.events.is_empty() {
        return format!("{}\n", text::none());
    }
    let rows = status.events.iter().map(|event| {
        vec![
            text::ago(event.at_unix_ms),
            event.kind.clone(),
            event.message.clone(),
        ]
    });
    table(&["at", "kind", "message"], rows)
}
