//! The status as metrics in the OpenMetrics text format, served over HTTP at a loopback address.

use crate::status::Status;
use anyhow::Result;
use hawser_metrics::server;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;

/// The last status, which is served as metrics.
pub(crate) type LastStatus = Arc<Mutex<Status>>;

/// Serves the status at an address, for any request path.
///
/// # Errors
/// If the address is not free.
pub(crate) fn serve(address: SocketAddr, status: &LastStatus) -> Result<()> {
    let status = Arc::clone(status);
    server::serve_in_thread(address, "hawser_relay", move || status.lock().clone())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_metrics::checks::check_reference;
    use hawser_metrics::page;

    fn status() -> Status {
        serde_json::from_value(serde_json::json!({
            "name": "relay", "version": "1", "pid": 1, "written_unix_ms": 0, "packets": { "hop_tag": 3 },
            "broadcasts": [{
                "name": "stage", "listen": "192.0.2.1:14750", "upstream": "192.0.2.2:14748", "is_open": true,
                "relays": 1, "received_packets": 10, "received_bytes": 1000, "marked_bytes": 0, "cached_bytes": 5,
                "sent_datagrams": 1, "send_failures": 0, "failed_commands": 0,
                "refused_packets": 0, "refused": { "full": 2 },
                "tracks": [{ "alias": 7, "packets": { "forwarded": 10 } }],
                "subscribers": [{
                    "session": 1, "address": "192.0.2.9:5", "rate_mbps": 12.5, "rtt_ms": null, "encoding": 1, "sent_packets": 9,
                    "received_packets": 8, "received_bytes": 800, "marked_bytes": 0, "lost": 1, "repeated": 1,
                    "earlier": 0, "objects": { "served": 4, "tokens": 5 }, "not_sent": { "no_route": 6 },
                }],
                "moq": {
                    "listen": "127.0.0.1:14754", "name": "stage", "certificate_sha256": "5a", "clients": 2,
                    "objects": 30, "objects_dropped": { "late": 1 }, "cached_bytes": 9, "offered_groups": 60,
                    "sent_groups": 58, "groups_dropped": { "cut": 2 }, "refused": { "full": 3 },
                },
                "from_moq": {
                    "name": "stage", "url": "https://192.0.2.4/", "listen": null, "certificate_sha256": null,
                    "is_connected": true, "is_announced": true, "failures": 1, "objects": 40, "packets": 400,
                    "lost_packets": 2, "objects_dropped": { "late": 3 }, "catalogs_refused": { "forged": 4 },
                    "refused": { "unauthorised": 5 },
                },
            }],
        }))
        .unwrap()
    }

    #[test]
    fn the_metrics_are_those_of_the_reference() {
        check_reference("hawser_relay", &page("hawser_relay", &status()));
    }

    #[test]
    fn values_and_labels_are_those_of_the_status() {
        let page = page("hawser_relay", &status());
        for sample in [
            "hawser_relay_viewers{broadcast=\"stage\"} 1.0",
            "hawser_relay_datagrams_refused_total{broadcast=\"stage\",reason=\"full\"} 2",
            "hawser_relay_packets_total{broadcast=\"stage\",track=\"7\",reason=\"forwarded\"} 10",
            "hawser_relay_packets_total{broadcast=\"\",track=\"\",reason=\"hop_tag\"} 3",
            "hawser_relay_viewer_rate_bits_per_second{broadcast=\"stage\",viewer=\"192.0.2.9:5\"} 12500000.0",
            "hawser_relay_moq_groups_dropped_total{broadcast=\"stage\",reason=\"cut\"} 2",
            "hawser_relay_moq_source_catalogs_refused_total{broadcast=\"stage\",reason=\"forged\"} 4",
            "hawser_relay_viewer_objects_total{broadcast=\"stage\",viewer=\"192.0.2.9:5\",reason=\"tokens\"} 5",
        ] {
            assert!(page.lines().any(|line| line == sample), "{sample}: {page}");
        }
    }
}
