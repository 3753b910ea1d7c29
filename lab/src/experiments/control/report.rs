use super::{CHANGES_PER_S, Controllers, FLOWS_PER_AGENT, Setup, TARGET_P99_MS};
use crate::plot::{Axis, Plot, Series};
use crate::report::{Highlight, Item, Report, Section};
use crate::summary::{Case, Summary};
use anyhow::Result;
use std::path::Path;

/// Writes `report.html`. Each case of the summary has its setup.
pub(super) fn write(summary: &Summary, setups: &[Setup], out: &Path) -> Result<()> {
    Report {
        title: "Controllers and thousands of nodes",
        intro: &format!(
            "Simulated nodes, each with its own key, certificate and mutual TLS connection, enrol, register, keep their \
             stream of policies open and report every 5 s with the counters of all their flows; each replicates \
             {FLOWS_PER_AGENT} flows and deduplicates the same number. Meanwhile {CHANGES_PER_S} policies change per second, one \
             half on request of an operator, the other half because a node reports late requests of its viewer. The store is that \
             of one controller (embedded) or etcd with one member; in the cases killed-leader, three controllers share etcd, and \
             after a third of the time the one that decides is killed. Everything shares this machine, so the processor time \
             of the nodes is not available to the controllers."
        ),
        highlights: highlights(summary),
        sections: vec![
            Section::new("From one thousand to ten thousand", "Latencies are measured at the nodes and the operator. The last panels show the resource usage of the controller: growth \
                       in proportion to the nodes is a straight line through the origin.", STORES.iter().map(|store| figure(summary, setups, store)).collect()),
            Section::all_figures("agents_lag: lateness of the timers of the simulated nodes, which is contained in the other \
                       latencies. assignment: from registration to the first assignment. reconnection: from the loss of a \
                       connection to the assignment from another controller. changes_lost: changes that a controller has \
                       accepted and that did not reach both nodes, or that a controller does not have at the end. In the \
                       cases killed-leader, processor time and memory are those of the two controllers that live on.", summary),
        ],
        summary,
    }
    .write(out)
}

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let Some(largest) = summary.cases.last() else {
        return Vec::new();
    };
    let agents = agents(largest);
    let figure = |metric: &str, show: fn(f64) -> String| {
        largest
            .metrics
            .get(metric)
            .map_or_else(|| "–".to_owned(), show)
    };
    let latency = |metric: &str, label: &str| {
        Highlight::new(
            figure(metric, |ms| format!("{ms:.0} ms")),
            format!("{label}, 99th percentile, {agents} nodes"),
            format!("the target is {TARGET_P99_MS:.0} ms"),
        )
    };
    let memory = "controller_memory_per_agent_bytes";
    vec![
        latency("registration_p99_ms", "registration"),
        latency("heartbeat_p99_ms", "heartbeat"),
        latency("policy_change_p99_ms", "policy change reaches a node"),
        Highlight::new(
            figure(memory, |bytes| format!("{:.0} kB", bytes / 1e3)),
            "memory of the controller per connected node",
            "",
        ),
    ]
}

/// A panel: its title, the unit, and its series with name, metric and scale.
type Panel = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str, f64)],
);

const PANELS: [Panel; 3] = [
    (
        "Latency, 99th percentile",
        "ms",
        &[
            ("registration", "registration_p99_ms", 1.0),
            ("heartbeat", "heartbeat_p99_ms", 1.0),
            ("policy change", "policy_change_p99_ms", 1.0),
            ("observed change", "observed_change_p99_ms", 1.0),
        ],
    ),
    (
        "Memory",
        "MB",
        &[("controller", "controller_memory_bytes", 1e-6)],
    ),
    (
        "Processor",
        "cores",
        &[
            ("controller", "controller_cpu_cores", 1.0),
            ("nodes", "agents_cpu_cores", 1.0),
        ],
    ),
];

/// The controllers of the cases in one figure, and the caption.
const STORES: [(Controllers, &str); 2] = [
    (
        Controllers::Embedded,
        "One controller with the embedded store. Each point is a case.",
    ),
    (
        Controllers::Etcd,
        "One controller with etcd. Each point is a case.",
    ),
];

fn figure(
    summary: &Summary,
    setups: &[Setup],
    (controllers, caption): &(Controllers, &str),
) -> Item {
    let cases = setups.iter().zip(&summary.cases);
    let cases = cases.filter(|(setup, _)| setup.controllers == *controllers);
    let cases: Vec<&Case> = cases.map(|(_, case)| case).collect();
    let panel = |(title, y, series): &Panel| {
        let series = series.iter();
        let series = series.map(|(name, metric, scale)| line(&cases, name, metric, *scale));
        Plot::new(*title, Axis::linear("nodes"), Axis::linear(*y), series)
    };
    Item::figure(*caption, PANELS.iter().map(panel).collect())
}

/// Returns a metric over the number of nodes.
fn line(cases: &[&Case], name: &str, metric: &str, scale: f64) -> Series {
    let point = |case: &&Case| Some((agents(case), case.metrics.get(metric)? * scale));
    Series::line(name, cases.iter().filter_map(point).collect())
}

fn agents(case: &Case) -> f64 {
    case.params
        .get("agents")
        .and_then(serde_json::Value::as_f64)
        .unwrap_or(f64::NAN)
}
