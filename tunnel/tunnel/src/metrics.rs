//! The status as metrics in the OpenMetrics text format, served over HTTP at a loopback address.

use crate::status::Status;
use anyhow::Result;
use hawser_metrics::server;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;

/// The last status that was written, which is served as metrics.
pub(crate) type LastStatus = Arc<Mutex<Status>>;

/// Serves the status as metrics at `address`, for any request path.
pub(crate) async fn serve(address: SocketAddr, status: LastStatus) -> Result<()> {
    server::serve(address, "hawser_tunnel", move || status.lock().clone()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_metrics::checks::check_reference;
    use hawser_metrics::page;

    fn status() -> Status {
        let path = serde_json::json!({
            "name": "192.0.2.1:5000", "index": 3, "remote": null, "over_tcp": false, "cost": 0, "standby": false, "rtt_ms": 12.5, "rtt_min_ms": 10.0,
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
    fn the_metrics_are_those_of_the_reference() {
        check_reference("hawser_tunnel", &page("hawser_tunnel", &status()));
    }

    #[test]
    fn values_and_labels_are_those_of_the_status() {
        let page = page("hawser_tunnel", &status());
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
        let mut status = status();
        status.sessions[0].paths[0].name = "wan0".to_owned();
        let page = page("hawser_tunnel", &status);
        let sample =
            "hawser_tunnel_path_rtt_seconds{peer=\"the \\\"car\\\"\",path=\"wan0\"} 0.0125";
        assert!(page.lines().any(|line| line == sample), "{page}");
    }
}
