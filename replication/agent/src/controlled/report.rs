use crate::config::{ControllerConfig, PathConfig};
use crate::node::{Node, current_local};
use crate::observer::Observer;
use hawser_model::Name;
use hawser_model::discovery::Uplink;
use hawser_model::node::{ReceiveReport, ReceivedPath, Registration, Report, SendReport};
use hawser_model::resource::{PathEnd, PathHealth};
use hawser_node::{ControlledNode, PathState, ReportContent};
use hawser_units::{FlowId, PathId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the registration of the node, without the authorities that it trusts.
pub(super) fn registration(
    node: &Node,
    settings: &ControllerConfig,
    uplinks: Vec<Uplink>,
) -> Registration {
    let config = node.config();
    let end = |(path, description): (&PathId, &PathConfig)| PathEnd {
        number: path.number(),
        interface: description.interface.clone(),
        local: local(description),
        remote: description.remote,
        discovered: description.discovered,
        tunnel: node.is_tunnel(*path),
    };
    Registration {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        paths: config.paths.iter().map(end).collect(),
        uplinks,
        signals: settings.signals,
        authorities: Vec::new(),
    }
}

/// Returns the address of a path, unspecified while it has none.
fn local(path: &PathConfig) -> IpAddr {
    let unspecified: IpAddr = match path.remote {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let current = || current_local(path).unwrap_or(unspecified);
    path.local.unwrap_or_else(current)
}

/// The sources of the counters of a report.
pub(super) struct Source<'a> {
    pub(super) node: &'a Node,
    pub(super) observer: Option<&'a Observer>,
    pub(super) decisions: &'a ControlledNode,
}

impl Source<'_> {
    /// Adds the counters to a report. Counters of tables that cannot be read are left out.
    pub(super) fn complete(&self, content: ReportContent) -> Report {
        let sends = self.decisions.sent();
        let receives = self.decisions.received();
        Report {
            revision: content.revision,
            paths: content.paths.iter().map(|path| self.path(path)).collect(),
            reached: content.reached,
            sends: sends
                .filter_map(|(flow, send)| self.send(flow, &send.flow))
                .collect(),
            receives: receives
                .map(|(flow, received)| self.receive(flow, &received.policy().flow))
                .collect(),
            observations: content.observations,
        }
    }

    fn path(&self, state: &PathState) -> PathHealth {
        let sender = self.node.sender();
        PathHealth {
            number: state.path.number(),
            up: state.up,
            rtt_us: state.rtt_us,
            // A table that cannot be read is reported elsewhere.
            dropped_by_device: sender
                .and_then(|sender| sender.device_drops(state.path).ok())
                .unwrap_or_default(),
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
        let paths = self.node.config().paths.keys();
        let paths: Vec<_> = paths
            .filter_map(|path| self.received_path(flow, *path))
            .collect();
        ReceiveReport {
            flow: name.clone(),
            packets: paths.iter().map(|path| path.first).sum(),
            paths,
        }
    }

    /// Returns the counters of a path on which copies of the flow have arrived.
    fn received_path(&self, flow: FlowId, path: PathId) -> Option<ReceivedPath> {
        let stats = self.node.receiver()?.stats(flow, path).ok()?;
        if stats.packets == 0 {
            return None;
        }
        let totals = self
            .observer
            .and_then(|observer| observer.totals(flow, path));
        Some(ReceivedPath {
            number: path.number(),
            arrivals: stats.packets,
            first: stats.first,
            only_copy: totals.map_or(0, |totals| totals.only),
            missing: totals.map_or(0, |totals| totals.missing),
        })
    }
}
