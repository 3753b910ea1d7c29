//! The status as metrics in the OpenMetrics text format, served over HTTP at a loopback address.

use crate::status::{
    Copies, DeviceStatus, LastStatus, PathState, ReceiveStatus, SendStatus, Status,
};
use anyhow::{Context, Result};
use hawser_io::kept::Deviation;
use hawser_metrics::{Metric, NO_LABELS, Sink, counter, counts, gauge, page, server};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Serves the status at an address, for any request path.
///
/// # Errors
/// If the address is not free.
pub(crate) fn serve(address: SocketAddr, status: &LastStatus) -> Result<()> {
    let status = Arc::clone(status);
    server::serve_in_thread(address, move || text(status.lock().clone()))
        .with_context(|| format!("cannot serve metrics at {address}"))?;
    Ok(())
}

fn text(status: Option<Status>) -> String {
    page("hawser_agent", move |sink| match &status {
        Some(status) => write(status, sink),
        None => Ok(()),
    })
}

const NODE: [Metric<Status>; 6] = [
    gauge(
        "configuration_valid",
        "1 if the configuration file was valid when it was last read",
        |status| truth(status.configuration.error.is_none()),
    ),
    gauge(
        "interfaces_unattached",
        "Interfaces to which a program is not attached",
        |status| status.unattached.len() as f64,
    ),
    gauge(
        "deviations",
        "Parameters, firewall rules and other things in the kernel that are not as the node needs them",
        |status| deviations(status).filter(|found| !found.restored).count() as f64,
    ),
    counter(
        "deviations_seen",
        "Times that another program changed what the node needs in the kernel",
        |status| deviations(status).map(|found| found.count).sum(),
    ),
    gauge(
        "controller_connected",
        "1 if the node is connected to its controller; NaN without one",
        |status| {
            let controller = status.controller.as_ref();
            controller.map_or(f64::NAN, |controller| {
                truth(controller.state == "connected")
            })
        },
    ),
    counter(
        "arrival_records_lost",
        "Arrivals that are missing in the counts of single copies and missing ones, because they were not read in time",
        |status| status.arrival_records_overflowed,
    ),
];

fn deviations(status: &Status) -> impl Iterator<Item = &Deviation> {
    status.deviations.iter()
}

const PATH: [Metric<PathState>; 3] = [
    gauge("path_up", "1 if the path can be used", |path| {
        truth(path.up)
    }),
    gauge(
        "path_mtu_bytes",
        "Largest packet that is sent on the path; NaN if no copies are sent on it",
        |path| path.mtu_bytes.map_or(f64::NAN, f64::from),
    ),
    counter(
        "path_too_large",
        "Copies that were not sent on the path because they are larger than its MTU",
        |path| path.too_large,
    ),
];

const SENT: [Metric<SendStatus>; 3] = [
    gauge(
        "sent_policy",
        "Code of the policy in force: bit 0 is path 1; 0 is the default route",
        |flow| f64::from(flow.policy),
    ),
    counter("sent_packets", "Packets that were replicated", |flow| {
        flow.packets
    }),
    counter("sent_bytes", "Bytes of these packets", |flow| flow.bytes),
];

const SENT_COPIES: [Metric<Copies>; 2] = [
    counter("sent_copies", "Copies that were sent on a path", |copies| {
        copies.packets
    }),
    counter(
        "sent_copies_bytes",
        "Bytes of the packets in them",
        |copies| copies.bytes,
    ),
];

const RECEIVED: [Metric<ReceiveStatus>; 8] = [
    counter(
        "received_copies",
        "Copies with a valid shim and tag that arrived on a path",
        |copies| copies.packets,
    ),
    counter("received_bytes", "Bytes of the packets in them", |copies| {
        copies.bytes
    }),
    counter("received_first", "Copies that were passed on", |copies| {
        copies.first
    }),
    counter(
        "received_duplicates",
        "Copies that were dropped because another one had arrived",
        |copies| copies.duplicates,
    ),
    counter(
        "received_only_copies",
        "Packets of which no other copy arrived before the deadline",
        |copies| copies.only_copy,
    ),
    counter(
        "received_missing",
        "Copies that had not arrived at the deadline",
        |copies| copies.missing,
    ),
    counter(
        "received_tag_failures",
        "Copies whose tag was wrong, missing or covers too little",
        |copies| copies.tag_failures,
    ),
    counter(
        "received_too_old",
        "Tagged copies that were dropped because they may be replayed",
        |copies| copies.outdated + copies.expired,
    ),
];

const DEVICE: [Metric<DeviceStatus>; 2] = [
    counter(
        "device_took_uplink_packets",
        "Packets that left by the agent's interface without being replicated",
        |device| device.took_uplink,
    ),
    counter(
        "device_dropped_packets",
        "Packets that were dropped there because there was no uplink",
        |device| device.dropped_no_uplink,
    ),
];

const DROPPED_BY_DEVICE: [Metric<u64>; 1] = counts(
    "path_dropped_by_device",
    "Copies that the interface of a path dropped",
);
const LOST_COPIES: [Metric<u64>; 1] = counts(
    "path_lost_copies",
    "Copies that did not leave by a path, by reason",
);
const NOT_REPLICATED: [Metric<u64>; 1] = counts(
    "frames_not_replicated",
    "Frames that were not replicated, by reason",
);
const NOT_DEDUPLICATED: [Metric<u64>; 1] = counts(
    "frames_not_deduplicated",
    "Frames on interfaces of paths that were not deduplicated or not passed on as replicas, by reason",
);

fn write(status: &Status, sink: &mut Sink<'_>) -> fmt::Result {
    sink.write(&NODE, || [(NO_LABELS, status)])?;
    sink.write(&PATH, || labelled("path", &status.paths))?;
    sink.write(&DROPPED_BY_DEVICE, || {
        labelled("path", &status.dropped_by_device)
    })?;
    sink.write(&LOST_COPIES, || {
        status.lost_copies.iter().flat_map(|(path, reasons)| {
            let path = path.to_string();
            reasons.iter().map(move |(reason, count)| {
                ([("path", path.clone()), ("reason", reason.clone())], count)
            })
        })
    })?;
    sink.write(&SENT, || labelled("flow", &status.send))?;
    sink.write(&SENT_COPIES, || {
        by_path(status.send.iter().map(|(flow, sent)| (flow, &sent.copies)))
    })?;
    sink.write(&RECEIVED, || by_path(status.receive.iter()))?;
    sink.write(&DEVICE, || {
        status.device.iter().map(|device| (NO_LABELS, device))
    })?;
    sink.write(&NOT_REPLICATED, || {
        labelled("reason", &status.not_replicated)
    })?;
    sink.write(&NOT_DEDUPLICATED, || {
        labelled("reason", &status.not_deduplicated)
    })
}

type Label = (&'static str, String);

fn labelled<'s, K: fmt::Display, T>(
    name: &'static str,
    values: &'s BTreeMap<K, T>,
) -> impl Iterator<Item = ([Label; 1], &'s T)> {
    values
        .iter()
        .map(move |(key, value)| ([(name, key.to_string())], value))
}

/// Returns what flows have for each path, with flow and path as labels.
fn by_path<'s, T: 's>(
    flows: impl Iterator<Item = (&'s u16, &'s BTreeMap<u8, T>)>,
) -> impl Iterator<Item = ([Label; 2], &'s T)> {
    flows.flat_map(|(flow, paths)| {
        let labels = move |path: &u8| [("flow", flow.to_string()), ("path", path.to_string())];
        paths.iter().map(move |(path, value)| (labels(path), value))
    })
}

fn truth(is_true: bool) -> f64 {
    f64::from(u8::from(is_true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_metrics::checks::{documented, served};

    const DOCUMENTATION: &str = include_str!("../../../docs/agent.md");

    fn status() -> Status {
        let copies = serde_json::json!({
            "packets": 10, "bytes": 1000, "first": 9, "duplicates": 1, "late": 0, "reset": 0, "contended": 0,
            "tag_failures": 2, "outdated": 3, "expired": 4, "only_copy": 5, "missing": 6, "after_deadline": 0,
            "skew_log2_us": [],
        });
        serde_json::from_value(serde_json::json!({
            "node": "edge", "version": "1", "pid": 1, "written_unix_ms": 0,
            "configuration": { "checked_unix_ms": 0, "error": null },
            "paths": { "1": { "up": true, "reason": null, "mtu_bytes": 1400, "too_large": 14 }, "2": { "up": false, "reason": "down" } },
            "send": { "7": { "policy": 3, "packets": 8, "bytes": 800, "copies": { "1": { "packets": 8, "bytes": 800 } } } },
            "receive": { "7": { "2": copies } },
            "dropped_by_device": { "1": 11 }, "lost_copies": { "1": { "dropped_by_queue": 4 } }, "not_replicated": { "passed_oversize": 12 },
            "not_deduplicated": { "dropped_tag": 2 },
            "device": { "took_uplink": 13, "dropped_no_uplink": 0 }, "arrival_records_overflowed": 0,
        }))
        .unwrap()
    }

    #[test]
    fn the_metrics_are_those_of_the_documentation() {
        let served = served(&text(Some(status())));
        assert_eq!(served, documented(DOCUMENTATION, "hawser_agent"));
    }

    #[test]
    fn values_and_labels_are_those_of_the_status() {
        let page = text(Some(status()));
        for sample in [
            "hawser_agent_path_up{path=\"1\"} 1.0",
            "hawser_agent_path_up{path=\"2\"} 0.0",
            "hawser_agent_path_mtu_bytes{path=\"1\"} 1400.0",
            "hawser_agent_path_too_large_total{path=\"1\"} 14",
            "hawser_agent_path_dropped_by_device_total{path=\"1\"} 11",
            "hawser_agent_path_lost_copies_total{path=\"1\",reason=\"dropped_by_queue\"} 4",
            "hawser_agent_sent_policy{flow=\"7\"} 3.0",
            "hawser_agent_sent_copies_total{flow=\"7\",path=\"1\"} 8",
            "hawser_agent_received_only_copies_total{flow=\"7\",path=\"2\"} 5",
            "hawser_agent_received_too_old_total{flow=\"7\",path=\"2\"} 7",
            "hawser_agent_frames_not_replicated_total{reason=\"passed_oversize\"} 12",
            "hawser_agent_device_took_uplink_packets_total{} 13",
        ] {
            assert!(page.lines().any(|line| line == sample), "{sample}: {page}");
        }
    }

    #[test]
    fn before_the_first_status_there_are_no_metrics() {
        assert_eq!(text(None), "# EOF\n");
    }
}
