//! The report of a viewing as one JSON object.

use super::Summary;
use crate::report::Measured;
use serde::Serialize;

/// The report of a viewing.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    frames: u64,
    frames_damaged: u64,
    protocol_errors: u64,
    connections: u64,
    #[serde(flatten)]
    measured: Measured,
}

impl From<&Summary> for Report {
    fn from(summary: &Summary) -> Self {
        Report {
            frames: summary.frames,
            frames_damaged: summary.frames_damaged,
            protocol_errors: summary.protocol_errors,
            connections: summary.connections,
            measured: Measured::of(summary.qoe.as_ref(), summary.pictures),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_qoe::Qoe;
    use serde_json::Value;
    use std::time::Duration;

    fn qoe(delay_ms: f64) -> Option<(Duration, Qoe)> {
        let qoe = Qoe {
            fps_mean: 30.0,
            fps: vec![30.0],
            frame_delay_p50_ms: Some(delay_ms),
            frame_delay_p95_ms: Some(delay_ms),
            frame_delay_p99_ms: Some(delay_ms),
            throughput_mbps: 8.0,
            stall_threshold_ms: 200.0,
            stalls: 0,
            stall_ratio: 0.0,
        };
        Some((Duration::from_millis(1500), qoe))
    }

    fn pulled(summary: &Summary) -> Value {
        serde_json::to_value(Report::from(summary)).unwrap()
    }

    #[test]
    fn a_report_of_requests_has_a_delay_if_the_clocks_agree() {
        let mut summary = Summary {
            frames: 45,
            frames_damaged: 0,
            protocol_errors: 0,
            connections: 1,
            qoe: qoe(40.0),
            pictures: None,
        };
        let report = pulled(&summary);
        assert_eq!(report["measured_s"], 1.5);
        assert_eq!(report["qoe"]["frame_delay_p50_ms"], 40.0);
        assert_eq!(report["pictures"], Value::Null);
        summary.qoe = qoe(7_200_000.0);
        assert_eq!(pulled(&summary)["qoe"]["frame_delay_p50_ms"], Value::Null);
        summary.qoe = None;
        assert_eq!(pulled(&summary)["qoe"], Value::Null);
    }
}
