//! The status as metrics in the OpenMetrics text format, served over HTTP at a loopback address.

use crate::status::LastStatus;
use anyhow::Result;
use hawser_metrics::server;
use std::net::SocketAddr;
use std::sync::Arc;

/// Serves the status at an address, for any request path.
///
/// # Errors
/// If the address is not free.
pub(crate) fn serve(address: SocketAddr, status: &LastStatus) -> Result<()> {
    let status = Arc::clone(status);
    server::serve_in_thread(address, "hawser_agent", move || status.lock().clone())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::status::Status;
    use hawser_metrics::checks::check_reference;
    use hawser_metrics::page;

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
            "unselected": { "packets": 15, "example": "UDP port 1 to 10.99.0.2" },
            "experience": {
                "socket": null, "applications": 1, "refused": { "line": 2 },
                "flows": { "received": { "7": {
                    "flow": "stage", "at_unix_ms": 0, "age_ms": 500, "reports": 3, "frames": 90, "late": 4, "stalled_ms": 250,
                    "newest": { "frames": 30, "late": 1, "delay_ms": 80 } } } } },
            "device": { "took_uplink": 13, "dropped_no_uplink": 0 }, "arrival_records_overflowed": 0,
        }))
        .unwrap()
    }

    #[test]
    fn the_metrics_are_those_of_the_reference() {
        check_reference("hawser_agent", &page("hawser_agent", &Some(status())));
    }

    #[test]
    fn values_and_labels_are_those_of_the_status() {
        let page = page("hawser_agent", &Some(status()));
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
            "hawser_agent_packets_unselected_total{} 15",
            "hawser_agent_experience_refused_total{reason=\"line\"} 2",
            "hawser_agent_experience_late_frames_total{direction=\"received\",flow=\"7\"} 4",
            "hawser_agent_experience_stalled_seconds_total{direction=\"received\",flow=\"7\"} 0.25",
            "hawser_agent_experience_delay_seconds{direction=\"received\",flow=\"7\"} 0.08",
            "hawser_agent_device_took_uplink_packets_total{} 13",
        ] {
            assert!(page.lines().any(|line| line == sample), "{sample}: {page}");
        }
    }

    #[test]
    fn before_the_first_status_there_are_no_metrics() {
        assert_eq!(page("hawser_agent", &None::<Status>), "# EOF\n");
    }
}
