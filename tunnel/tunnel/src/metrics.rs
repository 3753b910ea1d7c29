//! The status as metrics in the OpenMetrics text format, served over HTTP at a loopback address.

use crate::status::{Interval, ModemStatus, PathStatus, SessionStatus, Status};
use anyhow::{Context, Result};
use hawser_metrics::{Metric, NO_LABELS, Sink, counter, counts, gauge, page, server};
use parking_lot::Mutex;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// The last status that was written, which is served as metrics.
pub(crate) type LastStatus = Arc<Mutex<Status>>;

/// Serves the status as metrics at `address`, for any request path.
pub(crate) async fn serve(address: SocketAddr, status: LastStatus) -> Result<()> {
    let page = move || text(status.lock().clone());
    server::serve(address, page)
        .await
        .with_context(|| format!("cannot serve metrics at {address}"))
}

/// Formats the status in the OpenMetrics text format.
fn text(status: Status) -> String {
    page("hawser_tunnel", move |sink| write(&status, sink))
}

const STATUS_METRICS: [Metric<Status>; 7] = [
    gauge("sessions", "Sessions", |s| s.sessions.len() as f64),
    counter(
        "tables_restored",
        "nftables tables restored after another program changed or removed them",
        |s| s.tables_restored,
    ),
    counter(
        "device_restored",
        "Times that addresses and routes of the device were restored after another program removed some",
        |s| s.device_restored,
    ),
    gauge(
        "deviations",
        "Parameters, firewall rules and other things in the kernel that are not as this end needs them",
        |s| s.deviations.iter().filter(|found| !found.restored).count() as f64,
    ),
    counter(
        "deviations_seen",
        "Times that another program changed what this end needs in the kernel, or it was not so at the start",
        |s| s.deviations.iter().map(|found| found.count).sum(),
    ),
    counter(
        "dns_restored",
        "Times that name servers were set again after another program had replaced them",
        |s| s.dns_restored,
    ),
    gauge(
        "damaged_files",
        "Files of an earlier process that were damaged when this one started",
        |s| s.damaged_files.len() as f64,
    ),
];

const SESSION_METRICS: [Metric<SessionStatus>; 10] = [
    counter(
        "sent_bytes",
        "Bytes of packets accepted for sending to the peer",
        |s| s.sent_bytes,
    ),
    counter(
        "received_bytes",
        "Bytes of received packets that were forwarded",
        |s| s.received_bytes,
    ),
    counter(
        "sent_packets",
        "Packets accepted for sending to the peer",
        |s| s.sent_packets,
    ),
    counter("received_packets", "Packets received from the peer", |s| {
        s.received_packets
    }),
    counter(
        "recovered_packets",
        "Lost packets recovered from coded packets",
        |s| s.recovered_packets,
    ),
    counter(
        "duplicated_packets",
        "Urgent packets that were sent over two paths at once",
        |s| s.duplicated_packets,
    ),
    counter(
        "marked_packets",
        "Sent packets that were marked to slow down their senders (ECN)",
        |s| s.marked_packets,
    ),
    counter(
        "network_marked_packets",
        "Received packets that were marked because the network had marked their datagram (ECN)",
        |s| s.network_marked_packets,
    ),
    gauge(
        "redundancy_ratio",
        "Bytes sent besides first transmissions, as a share of these",
        |s| s.redundancy_ratio,
    ),
    gauge("mtu_bytes", "The largest packet that fits all paths", |s| {
        s.mtu_bytes.into()
    }),
];

const INTERVAL_METRICS: [Metric<Interval>; 4] = [
    gauge(
        "delay_p50_seconds",
        "Median of the one-way delays of sent packets in the last report interval",
        |i| i.delay_p50_ms.unwrap_or(f64::NAN) / 1e3,
    ),
    gauge(
        "delay_p99_seconds",
        "99th percentile of the one-way delays of sent packets in the last report interval",
        |i| i.delay_p99_ms.unwrap_or(f64::NAN) / 1e3,
    ),
    gauge(
        "interval_delivered_ratio",
        "Packets that arrived in the last report interval, as a share of those whose fate became known",
        |i| i.delivered_ratio,
    ),
    gauge(
        "interval_redundancy_ratio",
        "Bytes sent besides first transmissions in the last report interval, as a share of these",
        |i| i.redundancy_ratio,
    ),
];

const PATH_METRICS: [Metric<PathStatus>; 8] = [
    counter(
        "path_sent_bytes",
        "Bytes of datagrams sent over a path",
        |p| p.sent_bytes,
    ),
    counter(
        "path_received_bytes",
        "Bytes of datagrams received over a path",
        |p| p.received_bytes,
    ),
    counter(
        "path_lost",
        "Transmissions over a path that were considered lost",
        |p| p.lost,
    ),
    counter(
        "path_congestion_marks",
        "Acknowledgements that reported packets marked by the network (ECN)",
        |p| p.congestion_marks,
    ),
    gauge("path_rtt_seconds", "Smoothed round-trip time", |p| {
        p.rtt_ms.unwrap_or(f64::NAN) / 1e3
    }),
    gauge(
        "path_over_tcp",
        "1 if UDP is blocked and the path is one over TCP, 0 otherwise",
        |p| f64::from(p.over_tcp),
    ),
    gauge("path_window_bytes", "Congestion window", |p| {
        p.window_bytes as f64
    }),
    gauge(
        "path_unacknowledged_seconds",
        "Time for which sent packets have not been acknowledged",
        |p| p.unacknowledged_ms as f64 / 1e3,
    ),
];

const MODEM_METRICS: [Metric<ModemStatus>; 1] = [gauge(
    "modem_signal_ratio",
    "Quality of a modem's signal, as ModemManager reports it",
    |m| {
        m.signal_percent
            .map_or(f64::NAN, |percent| f64::from(percent) / 100.0)
    },
)];

const DROPPED: [Metric<u64>; 1] = counts(
    "dropped",
    "Packets not forwarded and connections not admitted, by reason",
);

fn write(status: &Status, sink: &mut Sink<'_>) -> fmt::Result {
    sink.write(&STATUS_METRICS, || [(NO_LABELS, status)])?;
    sink.write(&SESSION_METRICS, || {
        let sessions = status.sessions.iter();
        sessions.map(|session| ([("peer", session.peer.as_str())], session))
    })?;
    sink.write(&INTERVAL_METRICS, || {
        let sessions = status.sessions.iter();
        sessions.filter_map(|session| {
            Some((
                [("peer", session.peer.as_str())],
                session.interval.as_ref()?,
            ))
        })
    })?;
    sink.write(&PATH_METRICS, || {
        status.sessions.iter().flat_map(|session| {
            let peer = ("peer", session.peer.clone());
            let paths = session.paths.iter();
            paths.map(move |path| ([peer.clone(), ("path", path_label(status, path))], path))
        })
    })?;
    sink.write(&MODEM_METRICS, || {
        let uplinks = status.uplinks.iter();
        uplinks
            .filter_map(|uplink| Some(([("uplink", uplink.name.as_str())], uplink.modem.as_ref()?)))
    })?;
    sink.write(&DROPPED, || {
        let sessions = status.sessions.iter();
        let all = std::iter::once(("", &status.dropped))
            .chain(sessions.map(|session| (session.peer.as_str(), &session.dropped)));
        all.flat_map(|(peer, dropped)| {
            dropped
                .iter()
                .map(move |(reason, count)| ([("peer", peer), ("reason", reason.as_str())], count))
        })
    })
}

/// Returns the value of the label `path`. At a server it is the path's number, because there is no end to
/// the addresses and ports from which clients open paths.
fn path_label(status: &Status, path: &PathStatus) -> String {
    match status.role.as_str() {
        "server" => path.index.to_string(),
        _ => path.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_metrics::checks::{documented, served};

    /// The documentation with the table of metrics.
    const DOCUMENTATION: &str = include_str!("../../../docs/tunnel.md");

    fn status() -> Status {
        let path = serde_json::json!({
            "name": "wan0", "index": 3, "remote": null, "over_tcp": false, "cost": 0, "standby": false, "rtt_ms": 12.5, "rtt_min_ms": 10.0,
            "unacknowledged_ms": 250, "window_bytes": 14_000, "in_flight_bytes": 0, "sent_bytes": 5_000,
            "received_bytes": 6_000, "arrived": 4, "lost": 3, "recovery": 0, "congestion_marks": 2,
            "sent_mbps": 0.0, "received_mbps": 0.0, "loss_ratio": 0.0,
        });
        let session = serde_json::json!({
            "peer": "the \"car\"", "addresses": [], "since_unix_ms": 0, "mtu_bytes": 1400, "sent_packets": 7,
            "sent_bytes": u64::MAX, "received_packets": 8, "received_bytes": 9, "recovered_packets": 10,
            "duplicated_packets": 0, "lost_packets": 11, "marked_packets": 0, "network_marked_packets": 0, "redundancy_ratio": 0.5, "sent_mbps": 0.0, "received_mbps": 0.0,
            "paths": [path], "dropped": { "spoofed": 12 },
            "interval": { "delay_p50_ms": 30.0, "delay_p99_ms": 50.0, "delivered_ratio": 0.99, "redundancy_ratio": 0.02 },
        });
        serde_json::from_value(serde_json::json!({
            "name": "server", "role": "server", "version": "1", "pid": 1, "written_unix_ms": 0, "draining": false,
            "addresses": [], "sessions": [session], "dropped": { "no_client": 13 }, "memory_bytes": 0, "tables_restored": 0,
            "device_restored": 0, "deviations": [], "dns_restored": 0, "uplink_domains": [],
            "damaged_files": [],
            "uplinks": [{ "name": "wwan0", "state": "connected", "month_bytes": null, "modem": { "signal_percent": 67 } }],
        }))
        .unwrap()
    }

    #[test]
    fn the_metrics_are_those_of_the_documentation() {
        let served = served(&text(status()));
        assert_eq!(served.len(), 31);
        assert_eq!(served, documented(DOCUMENTATION, "hawser_tunnel"));
    }

    #[test]
    fn values_and_labels_are_those_of_the_status() {
        let page = text(status());
        for sample in [
            "hawser_tunnel_sessions{} 1.0",
            "hawser_tunnel_sent_bytes_total{peer=\"the \\\"car\\\"\"} 18446744073709551615",
            "hawser_tunnel_path_rtt_seconds{peer=\"the \\\"car\\\"\",path=\"3\"} 0.0125",
            "hawser_tunnel_delay_p99_seconds{peer=\"the \\\"car\\\"\"} 0.05",
            "hawser_tunnel_modem_signal_ratio{uplink=\"wwan0\"} 0.67",
            "hawser_tunnel_dropped_total{peer=\"\",reason=\"no_client\"} 13",
            "hawser_tunnel_dropped_total{peer=\"the \\\"car\\\"\",reason=\"spoofed\"} 12",
        ] {
            assert!(page.lines().any(|line| line == sample), "{sample}: {page}");
        }
    }

    #[test]
    fn a_path_is_named_after_the_uplink_at_a_client() {
        let page = text(Status {
            role: "client".to_owned(),
            ..status()
        });
        let sample =
            "hawser_tunnel_path_rtt_seconds{peer=\"the \\\"car\\\"\",path=\"wan0\"} 0.0125";
        assert!(page.lines().any(|line| line == sample), "{page}");
    }
}
