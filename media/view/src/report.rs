//! The report of a viewing as one JSON object.

use crate::measured::are_clocks_related;
use crate::{Drawn, Summary};
use hawser_qoe::Qoe;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The part that the reports of both kinds of viewing have.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    /// From the first frame to the end, or the last hour of it; `None` without frames.
    measured_s: Option<f64>,
    /// In this time. The delays are `None` where the clocks differ too much.
    qoe: Option<Qoe>,
    pictures: Option<Drawn>,
}

/// The report of a viewing.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    frames: u64,
    frames_whole: u64,
    frames_without_refinement: u64,
    frames_without_some_camera: u64,
    frames_without_base: u64,
    frames_of_lesser_encoding: u64,
    frames_damaged: BTreeMap<&'static str, u64>,
    frames_not_decoded: u64,
    sound_packets: u64,
    sound_packets_missing: u64,
    #[serde(flatten)]
    measured: Measured,
    transport_ms: Option<Times>,
    decoding_ms: Option<Times>,
    packets: u64,
    bytes: u64,
    bytes_marked: u64,
    longest_datagram_bytes: usize,
    packets_late: u64,
    layers_late: u64,
    datagrams_refused: BTreeMap<&'static str, u64>,
    datagrams_not_read: u64,
    messages_not_sent: u64,
    sessions: u64,
    publisher_unreachable: u64,
    looked: Option<LookedAt>,
    /// A sentence about a path that carries no long packets.
    narrow_path: Option<String>,
}

/// A mean and a 99th percentile.
#[derive(Debug, Serialize)]
struct Times {
    mean: f64,
    p99: f64,
}

/// The time for which the stream was in view, and that for which it was not.
#[derive(Debug, Serialize)]
struct LookedAt {
    at_s: f64,
    away_s: f64,
    changes: u64,
}

impl Measured {
    pub(crate) fn of(qoe: Option<&(Duration, Qoe)>, pictures: Option<Drawn>) -> Self {
        let mut measured = qoe.map(|(_, qoe)| qoe.clone());
        if let Some(qoe) = &mut measured
            && !are_clocks_related(qoe.frame_delay_p50_ms)
        {
            qoe.frame_delay_p50_ms = None;
            qoe.frame_delay_p95_ms = None;
            qoe.frame_delay_p99_ms = None;
        }
        Measured {
            measured_s: qoe.map(|(duration, _)| duration.as_secs_f64()),
            qoe: measured,
            pictures,
        }
    }
}

impl From<&Summary> for Report {
    fn from(summary: &Summary) -> Self {
        let Summary { received, decoded } = summary;
        let times = |times: Option<(f64, f64)>| times.map(|(mean, p99)| Times { mean, p99 });
        Report {
            frames: decoded.frames,
            frames_whole: received.frames.whole,
            frames_without_refinement: received.frames.reduced,
            frames_without_some_camera: received.frames.without_track,
            frames_without_base: received.frames.undecodable,
            frames_of_lesser_encoding: received.frames.lesser_encoding,
            frames_damaged: decoded.damaged.by_reason().into(),
            frames_not_decoded: received.not_decoded,
            sound_packets: received.sound,
            sound_packets_missing: received.sound_missing,
            measured: Measured::of(decoded.qoe.as_ref(), decoded.pictures),
            transport_ms: times(decoded.transport_ms),
            decoding_ms: times(decoded.decode_ms),
            packets: received.packets,
            bytes: received.bytes,
            bytes_marked: received.marked_bytes,
            longest_datagram_bytes: received.longest,
            packets_late: received.late_packets,
            layers_late: received.frames.late_objects,
            datagrams_refused: received.refused.by_reason().into(),
            datagrams_not_read: received.kernel_drops,
            messages_not_sent: received.send_failures,
            sessions: received.sessions,
            publisher_unreachable: received.unreachable,
            looked: received.looked.map(|looked| LookedAt {
                at_s: looked.at.as_secs_f64(),
                away_s: looked.away.as_secs_f64(),
                changes: looked.changes,
            }),
            narrow_path: summary.narrow_path(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Damaged, Decoded, Received};
    use hawser_objects::FrameStats;
    use serde_json::json;

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

    #[test]
    fn a_report_of_pushed_frames_has_what_the_text_has() {
        let summary = Summary {
            received: Received {
                packets: 900,
                longest: 1190,
                frames: FrameStats {
                    reduced: 44,
                    ..FrameStats::default()
                },
                ..Received::default()
            },
            decoded: Decoded {
                frames: 44,
                measured: 44,
                damaged: Damaged {
                    invalid: 1,
                    too_many_points: 0,
                },
                qoe: qoe(40.0),
                transport_ms: Some((3.0, 9.0)),
                decode_ms: None,
                pictures: None,
            },
        };
        let report = serde_json::to_value(Report::from(&summary)).unwrap();
        assert_eq!(report["frames_without_refinement"], 44);
        assert_eq!(report["frames_damaged"]["invalid"], 1);
        assert_eq!(report["datagrams_refused"]["forged"], 0);
        assert_eq!(report["transport_ms"], json!({ "mean": 3.0, "p99": 9.0 }));
        let narrow = report["narrow_path"].as_str().unwrap();
        assert!(narrow.contains("1190"), "{narrow}");
    }
}
