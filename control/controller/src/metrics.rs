//! Metrics of the controller, for Prometheus.

use axum::http::Method;
use hawser_io::clock::unix_ms;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry, Unit};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlowLabels {
    mode: &'static str,
    state: &'static str,
}

pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    refused: Family<ReasonLabels, Counter>,
    decisions: Family<ReasonLabels, Counter>,
    ignored: Family<ReasonLabels, Counter>,
    pushed: Family<KindLabels, Counter>,
    policy_delivery_seconds: Histogram,
    connections: Gauge,
    streams: Gauge,
    nodes_alive: Gauge,
    nodes: Gauge,
    nodes_lost: Gauge,
    failed_writes: Counter,
    is_leader: Gauge,
    damaged: Gauge,
    settings_differ: Gauge,
    flows: Family<FlowLabels, Gauge>,
}

/// Gauges that are read when metrics are requested.
pub(crate) struct Gauges {
    pub(crate) streams: usize,
    pub(crate) nodes: usize,
    pub(crate) nodes_alive: usize,
    /// The number of nodes that were alive and are not any more.
    pub(crate) nodes_lost: usize,
    pub(crate) is_leader: bool,
    /// Mode, state and number of flows.
    pub(crate) flows: Vec<(&'static str, &'static str, i64)>,
    /// The number of records of the store that cannot be read.
    pub(crate) damaged: usize,
    /// The number of settings that should be the leader's and are not.
    pub(crate) settings_differ: usize,
}

/// Returns the label of a method: its name if it is a standard one. Clients can make up other
/// methods, and each label is kept forever.
fn method_label(method: &Method) -> &'static str {
    const KNOWN: [Method; 7] = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ];
    const NAMES: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN
        .iter()
        .position(|known| known == method)
        .map_or("other", |place| NAMES[place])
}

fn seconds() -> Histogram {
    // Buckets from 0.5 ms to 16 s.
    Histogram::new(exponential_buckets(0.0005, 2.0, 16))
}

/// Registers a new metric and returns it.
fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Registers a metric in seconds and returns it.
fn register_seconds<M: Metric + Clone>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    metric: M,
) -> M {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut registry = Registry::with_prefix("hawser_controller");
        let to = &mut registry;
        Metrics {
            requests: register(to, "requests", "Requests by route and status"),
            request_seconds: register_seconds(
                to,
                "request",
                "Time to process requests, by route",
                Family::new_with_constructor(seconds as fn() -> Histogram),
            ),
            refused: register(
                to,
                "refused",
                "Rejected requests, connections and signals, by reason",
            ),
            decisions: register(to, "decisions", "Policies decided, by reason"),
            ignored: register(to, "ignored", "Ignored observations, by reason"),
            pushed: register(to, "pushed", "Messages sent to nodes, by kind"),
            policy_delivery_seconds: register_seconds(
                to,
                "policy_delivery",
                "Time from a decision until its policy is sent to a node",
                seconds(),
            ),
            connections: register(to, "connections", "Open connections"),
            streams: register(to, "streams", "Open event streams of nodes"),
            nodes: register(to, "nodes", "Nodes that exist"),
            nodes_alive: register(to, "nodes_alive", "Nodes that are alive"),
            nodes_lost: register(
                to,
                "nodes_lost",
                "Nodes that were alive and are not any more",
            ),
            failed_writes: register(to, "failed_writes", "Changes that the store did not take"),
            is_leader: register(to, "is_leader", "1 if this controller is the leader"),
            flows: register(to, "flows", "Flows by mode and state"),
            damaged: register(
                to,
                "damaged_records",
                "Records of the store that cannot be read",
            ),
            settings_differ: register(
                to,
                "settings_differ",
                "Settings that should be the leader's and are not",
            ),
            registry,
        }
    }

    pub(crate) fn request(&self, method: &Method, route: &str, status: u16, took: Duration) {
        let labels = RequestLabels {
            method: method_label(method),
            route: route.to_owned(),
            status,
        };
        self.requests.get_or_create(&labels).inc();
        let labels = RouteLabels {
            route: route.to_owned(),
        };
        self.request_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn decided(&self, reason: &'static str) {
        self.decisions.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// Returns the counter of failed writes.
    pub(crate) fn failed_writes(&self) -> Counter {
        self.failed_writes.clone()
    }

    pub(crate) fn ignored(&self, reason: &'static str) {
        self.ignored.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn pushed(&self, kind: &'static str) {
        self.pushed.get_or_create(&KindLabels { kind }).inc();
    }

    pub(crate) fn pushed_policy(&self, decided_unix_ms: u64) {
        self.pushed("policy");
        let after = Duration::from_millis(unix_ms().saturating_sub(decided_unix_ms));
        self.policy_delivery_seconds.observe(after.as_secs_f64());
    }

    pub(crate) fn connection_opened(&self) {
        self.connections.inc();
    }

    pub(crate) fn connection_closed(&self) {
        self.connections.dec();
    }

    /// Returns all metrics in the OpenMetrics text format.
    pub(crate) fn text(&self, gauges: &Gauges) -> String {
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        self.streams.set(gauge(gauges.streams));
        self.nodes.set(gauge(gauges.nodes));
        self.nodes_alive.set(gauge(gauges.nodes_alive));
        self.nodes_lost.set(gauge(gauges.nodes_lost));
        self.is_leader.set(gauges.is_leader.into());
        self.damaged.set(gauge(gauges.damaged));
        self.settings_differ.set(gauge(gauges.settings_differ));
        self.flows.clear();
        for (mode, state, count) in &gauges.flows {
            self.flows
                .get_or_create(&FlowLabels { mode, state })
                .set(*count);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes everything");
        text
    }
}
