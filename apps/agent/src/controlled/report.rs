use crate::assignment::Plan;
use crate::config::{Config, ControllerConfig};
use crate::echo::Echoes;
use crate::node::Node;
use crate::observer::Observer;
use crate::trace::{Change, Trace};
use hawser_control::Name;
use hawser_control::node::{
    Observation, ReceiveReport, ReceivedPath, Registration, Report, SendReport,
};
use hawser_control::resource::{PathEnd, PathHealth};
use hawser_io::interface;
use hawser_units::{FlowId, Instant, PathId};
use std::collections::BTreeSet;
use std::time::Duration;
use tracing::warn;

/// The relative change of a round-trip time, against the last reported one, that is reported at
/// once.
const RTT_CHANGE: f64 = 0.2;

/// The shortest interval between reports of a changed health.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// Returns the registration of the node.
pub(super) fn registration(config: &Config, settings: &ControllerConfig) -> Registration {
    let end = |(path, description): (&PathId, &crate::config::PathConfig)| PathEnd {
        number: number(*path),
        interface: description.interface.clone(),
        local: description.local,
        remote: description.remote,
    };
    Registration {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        paths: config.paths.iter().map(end).collect(),
        signals: settings.signals,
    }
}

/// The health of the paths, and the last one that was reported.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Interfaces that are up.
    running: BTreeSet<String>,
    last_reported: Vec<PathHealth>,
    reported_at: Option<Instant>,
}

impl Health {
    /// Updates the list of interfaces that are up.
    pub(super) fn update(&mut self) {
        match interface::running() {
            Ok(running) => self.running = running,
            Err(error) => warn!("cannot read the state of the interfaces: {error}"),
        }
    }

    /// Returns whether a path's interface is up and its next hop known.
    pub(super) fn is_up(&self, node: &Node, path: PathId) -> bool {
        let interface = &node.config().paths[&path].interface;
        self.running.contains(interface) && node.is_up(path)
    }

    /// Returns whether the health has changed enough to be reported at once.
    pub(super) fn has_changed(&self, node: &Node, echoes: &Echoes, now: Instant) -> bool {
        let Some(reported_at) = self.reported_at else {
            return false;
        };
        if now.saturating_since(reported_at) < MIN_REPORT_INTERVAL {
            return false;
        }
        self.last_reported.iter().any(|reported| {
            let path = reported
                .number
                .checked_sub(1)
                .and_then(|index| PathId::try_from(index).ok());
            path.is_some_and(|path| {
                let round_trip_us = round_trip_us(echoes, path, now);
                self.is_up(node, path) != reported.up
                    || has_rtt_changed(reported.rtt_us, round_trip_us)
            })
        })
    }

    /// Returns the health of all paths, and remembers it as reported.
    pub(super) fn take(&mut self, node: &Node, echoes: &Echoes, now: Instant) -> Vec<PathHealth> {
        let health = |path: &PathId| PathHealth {
            number: number(*path),
            up: self.is_up(node, *path),
            rtt_us: round_trip_us(echoes, *path, now),
            // A table that cannot be read is reported elsewhere.
            dropped_by_device: node
                .sender()
                .and_then(|sender| sender.device_drops(*path).ok())
                .unwrap_or_default(),
        };
        self.last_reported = node.config().paths.keys().map(health).collect();
        self.reported_at = Some(now);
        self.last_reported.clone()
    }
}

/// Returns the smoothed round-trip time of a path, microseconds.
pub(super) fn round_trip_us(echoes: &Echoes, path: PathId, now: Instant) -> Option<u32> {
    echoes
        .round_trip(path, now)
        .map(|rtt| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX))
}

fn has_rtt_changed(reported_us: Option<u32>, now_us: Option<u32>) -> bool {
    match (reported_us, now_us) {
        (Some(reported), Some(now)) => {
            f64::from(reported.abs_diff(now)) > RTT_CHANGE * f64::from(reported.max(1))
        }
        (reported, now) => reported.is_some() != now.is_some(),
    }
}

/// The sources of the counters of a report.
pub(super) struct Source<'a> {
    pub(super) node: &'a Node,
    pub(super) observer: Option<&'a Observer>,
    pub(super) plan: &'a Plan,
}

impl Source<'_> {
    /// Returns a report with the counters. Counters of tables that cannot be read are left out.
    pub(super) fn describe(&self, revision: u64) -> Report {
        let sends = self.plan.flows.send.iter();
        let sends = sends.filter_map(|(flow, sent)| self.send(*flow, sent.name.as_ref()?));
        let receives = self.plan.receives.iter();
        Report {
            revision,
            sends: sends.collect(),
            receives: receives
                .map(|(flow, receive)| self.receive(*flow, &receive.flow))
                .collect(),
            ..Report::default()
        }
    }

    fn send(&self, flow: FlowId, name: &Name) -> Option<SendReport> {
        let sender = self.node.sender()?;
        let (policy, stats) = (sender.policy_in_force(flow), sender.flow_stats(flow).ok()?);
        let paths = self.node.config().paths.keys();
        let copies = paths.filter_map(|path| Some(sender.path_stats(flow, *path).ok()?.bytes));
        Some(SendReport {
            flow: name.clone(),
            epoch: policy.epoch,
            code: policy.code,
            packets: stats.packets,
            bytes: stats.bytes,
            sent_bytes: copies.sum(),
        })
    }

    fn receive(&self, flow: FlowId, name: &Name) -> ReceiveReport {
        let mut packets = 0;
        let mut paths = Vec::new();
        for path in self.node.config().paths.keys() {
            let stats = self
                .node
                .receiver()
                .and_then(|receiver| receiver.stats(flow, *path).ok());
            let Some(stats) = stats.filter(|stats| stats.packets > 0) else {
                continue;
            };
            let totals = self
                .observer
                .and_then(|observer| observer.totals(flow, *path));
            packets += stats.first;
            paths.push(ReceivedPath {
                number: number(*path),
                arrivals: stats.packets,
                first: stats.first,
                only_copy: totals.map_or(0, |totals| totals.only),
                missing: totals.map_or(0, |totals| totals.missing),
            });
        }
        ReceiveReport {
            flow: name.clone(),
            packets,
            paths,
        }
    }
}

/// Writes an observation to the trace.
pub(super) fn trace(trace: &mut Trace, at: Instant, observation: &Observation) {
    match observation {
        Observation::Judged {
            flow,
            epoch,
            code,
            probes,
            probe_every,
            reason,
        } => {
            let (epoch, code, probes, probe_every) = (*epoch, *code, *probes, *probe_every);
            let change = Change {
                event: "judged",
                epoch,
                code,
                probes,
                probe_every,
                detail: reason,
            };
            trace.change(at, flow, change);
        }
        Observation::Degraded {
            flow,
            since_due_us,
            silent_us,
        } => {
            let detail = format!("{since_due_us} us since due; {silent_us} us of silence");
            trace.event(at, flow, "degraded", None, &detail);
        }
        Observation::FirstReplica {
            flow,
            epoch,
            after_us,
        } => {
            trace.event(
                at,
                flow,
                "first_replica",
                Some(*epoch),
                &format!("{after_us} us"),
            );
        }
        Observation::PathSilent { flow, path } => {
            trace.event(at, flow, "silent", None, &path_name(*path))
        }
        Observation::PathRestored { flow, path } => {
            trace.event(at, flow, "restored", None, &path_name(*path))
        }
        Observation::LatentError { flow, path } => {
            trace.event(at, flow, "latent_error", None, &path_name(*path));
        }
        // Policies are traced where they take effect. The others do not concern a flow, or are
        // logged.
        Observation::Applied { .. }
        | Observation::SignalRefused { .. }
        | Observation::NotApplied { .. } => {}
    }
}

fn path_name(number: u8) -> String {
    format!("path {number}")
}

fn number(path: PathId) -> u8 {
    u8::from(path) + 1
}
