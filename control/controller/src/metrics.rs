//! Metrics of the controller, for Prometheus.

use axum::http::Method;
use hawser_io::clock::unix_ms;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
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

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut registry = Registry::with_prefix("hawser_controller");
        let metrics = Metrics {
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(seconds),
            refused: Family::default(),
            decisions: Family::default(),
            ignored: Family::default(),
            pushed: Family::default(),
            policy_delivery_seconds: seconds(),
            connections: Gauge::default(),
            streams: Gauge::default(),
            nodes_alive: Gauge::default(),
            nodes: Gauge::default(),
            nodes_lost: Gauge::default(),
            failed_writes: Counter::default(),
            is_leader: Gauge::default(),
            damaged: Gauge::default(),
            settings_differ: Gauge::default(),
            flows: Family::default(),
            registry: Registry::default(),
        };
        metrics.register_requests(&mut registry);
        metrics.register_policies(&mut registry);
        metrics.register_state(&mut registry);
        Metrics {
            registry,
            ..metrics
        }
    }

    fn register_requests(&self, registry: &mut Registry) {
        registry.register(
            "requests",
            "Requests by route and status",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "request",
            "Time to process requests, by route",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        registry.register(
            "refused",
            "Rejected requests, connections and signals, by reason",
            self.refused.clone(),
        );
    }

    fn register_policies(&self, registry: &mut Registry) {
        registry.register(
            "decisions",
            "Policies decided, by reason",
            self.decisions.clone(),
        );
        registry.register(
            "ignored",
            "Ignored observations, by reason",
            self.ignored.clone(),
        );
        registry.register(
            "pushed",
            "Messages sent to nodes, by kind",
            self.pushed.clone(),
        );
        registry.register_with_unit(
            "policy_delivery",
            "Time from a decision until its policy is sent to a node",
            Unit::Seconds,
            self.policy_delivery_seconds.clone(),
        );
    }

    fn register_state(&self, registry: &mut Registry) {
        registry.register("connections", "Open connections", self.connections.clone());
        registry.register(
            "streams",
            "Open event streams of nodes",
            self.streams.clone(),
        );
        registry.register("nodes", "Nodes that exist", self.nodes.clone());
        registry.register(
            "nodes_alive",
            "Nodes that are alive",
            self.nodes_alive.clone(),
        );
        registry.register(
            "nodes_lost",
            "Nodes that were alive and are not any more",
            self.nodes_lost.clone(),
        );
        registry.register(
            "failed_writes",
            "Changes that the store did not take",
            self.failed_writes.clone(),
        );
        registry.register(
            "is_leader",
            "1 if this controller is the leader",
            self.is_leader.clone(),
        );
        registry.register("flows", "Flows by mode and state", self.flows.clone());
        registry.register(
            "damaged_records",
            "Records of the store that cannot be read",
            self.damaged.clone(),
        );
        registry.register(
            "settings_differ",
            "Settings that should be the leader's and are not",
            self.settings_differ.clone(),
        );
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
