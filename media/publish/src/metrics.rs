//! The figures of a publisher as metrics.

use crate::report::{Captured, Sent};
use anyhow::Context;
use hawser_metrics::{Metric, NO_LABELS, Sink, by_reason, counter, counts, gauge, page, server};
use hawser_objects::ViewerStatus;
use parking_lot::Mutex;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The newest figures of a publisher.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    pub(crate) captured: Captured,
    /// The sums over all viewers, also those that have left.
    pub(crate) sent: Sent,
    /// The number of viewers that have selected something.
    pub(crate) watching: usize,
    /// The states of the flows, also to viewers that have selected nothing.
    pub(crate) viewers: Vec<ViewerStatus>,
}

/// Serves the figures at an address.
///
/// # Errors
/// If the address is not free.
pub(crate) fn serve(
    address: SocketAddr,
    figures: &Arc<Mutex<Figures>>,
) -> anyhow::Result<SocketAddr> {
    let figures = Arc::clone(figures);
    server::serve_in_thread(address, move || text(figures.lock().clone()))
        .with_context(|| format!("cannot serve metrics at {address}"))
}

fn text(figures: Figures) -> String {
    page("hawser_publish", move |sink| write(&figures, sink))
}

const PROGRAM: [Metric<Figures>; 16] = [
    gauge("viewers", "Viewers at present", |f| f.watching as f64),
    counter("frames_captured", "Frames that were captured", |f| {
        f.captured.frames
    }),
    counter(
        "frames_missed",
        "Frames that were not captured because an earlier one took longer than its interval",
        |f| f.captured.missed,
    ),
    counter("frames_encoded", "Frames that were encoded", |f| {
        f.captured.encoded
    }),
    counter(
        "frames_discarded",
        "Encoded frames that were not sent because earlier ones still were",
        |f| f.captured.discarded,
    ),
    gauge(
        "encode_mean_seconds",
        "Mean time to encode a frame since the start",
        |f| f.captured.encode_mean().as_secs_f64(),
    ),
    counter("packets", "Packets sent for the first time", |f| {
        f.sent.objects.packets
    }),
    counter("packets_repeated", "Packets sent again", |f| {
        f.sent.objects.repeated
    }),
    counter("packets_lost", "Packets that were considered lost", |f| {
        f.sent.objects.lost
    }),
    counter(
        "packets_spurious",
        "Those of the lost packets that were acknowledged later",
        |f| f.sent.objects.spurious,
    ),
    counter(
        "received_bytes",
        "Bytes of UDP payloads that viewers reported as received",
        |f| f.sent.received_bytes,
    ),
    counter(
        "marked_bytes",
        "Those of the received bytes that the network had marked (ECN)",
        |f| f.sent.marked_bytes,
    ),
    counter(
        "objects_delivered",
        "Layers of frames that viewers have acknowledged",
        |f| f.sent.objects.delivered,
    ),
    counter("sessions", "Viewers that joined", |f| f.sent.viewers),
    counter(
        "send_failures",
        "Datagrams that the kernel did not send",
        |f| f.sent.send_failures,
    ),
    counter(
        "receive_drops",
        "Datagrams that the kernel dropped because they were not read in time",
        |f| f.sent.receive_drops,
    ),
];

const VIEWER: [Metric<ViewerStatus>; 9] = [
    gauge(
        "viewer_target_bits_per_second",
        "Rate at which to encode for a viewer, with all headers",
        |v| v.target.bps() as f64,
    ),
    gauge(
        "viewer_pacing_bits_per_second",
        "Rate at which packets leave",
        |v| v.pacing_rate.bps() as f64,
    ),
    gauge("viewer_rtt_seconds", "Smoothed round-trip time", |v| {
        seconds(v.rtt)
    }),
    gauge(
        "viewer_one_way_delay_seconds",
        "Newest one-way delay",
        |v| seconds(v.one_way),
    ),
    gauge(
        "viewer_queue_delay_seconds",
        "Newest one-way delay less the smallest so far",
        |v| seconds(v.queue),
    ),
    gauge(
        "viewer_in_flight_bytes",
        "Bytes that are sent and neither acknowledged nor lost",
        |v| v.in_flight.0 as f64,
    ),
    gauge("viewer_waiting_bytes", "Bytes that wait to be sent", |v| {
        v.waiting.0 as f64
    }),
    gauge(
        "viewer_app_limited",
        "1 if the encoder uses so little of the target that the rate does not grow",
        |v| f64::from(u8::from(v.is_app_limited)),
    ),
    gauge(
        "viewer_kernel_paced",
        "1 if the kernel holds packets until they are to leave",
        |v| f64::from(u8::from(v.is_kernel_paced)),
    ),
];

const DROPPED: [Metric<u64>; 1] = counts(
    "objects_dropped",
    "Layers of frames that were not delivered, by reason",
);

const REFUSED: [Metric<u64>; 1] = counts(
    "datagrams_refused",
    "Datagrams that were refused, by reason",
);

const UNUSED: [Metric<u64>; 1] = counts(
    "report_parts_unused",
    "Parts of viewers' reports that were not used, by reason",
);

fn write(figures: &Figures, sink: &mut Sink<'_>) -> fmt::Result {
    sink.write(&PROGRAM, || [(NO_LABELS, figures)])?;
    let viewers = &figures.viewers;
    let addresses: Vec<String> = viewers.iter().map(|v| v.address.to_string()).collect();
    sink.write(&VIEWER, || {
        let viewers = addresses.iter().zip(viewers);
        viewers.map(|(address, viewer)| ([("viewer", address.as_str())], viewer))
    })?;
    let dropped = dropped(&figures.sent);
    sink.write(&DROPPED, || by_reason(&dropped))?;
    let refused = refused(&figures.sent);
    sink.write(&REFUSED, || by_reason(&refused))?;
    let unused = unused(&figures.sent);
    sink.write(&UNUSED, || by_reason(&unused))
}

type Reason = (&'static str, u64);

fn dropped(sent: &Sent) -> [Reason; 6] {
    let objects = &sent.objects;
    [
        ("no_room", objects.refused_no_room),
        ("too_late", objects.refused_expired + objects.expired),
        ("displaced", objects.displaced),
        ("dependent", objects.refused_dependent + objects.dependent),
        ("sent_in_part", objects.late),
        ("not_confirmed", objects.unconfirmed),
    ]
}

fn refused(sent: &Sent) -> [Reason; 13] {
    let sessions = &sent.sessions;
    [
        ("without_key", sessions.unauthorised),
        ("no_room", sessions.full),
        ("too_many_requests", sessions.too_many_requests),
        ("not_answered", sessions.not_sent),
        ("forged", sessions.forged),
        ("repeated", sessions.replayed),
        ("invalid", sessions.invalid),
        ("unknown_session", sessions.unknown_session),
        ("too_many", sessions.too_many),
        ("unexpected", sessions.unexpected),
        ("too_long", sent.too_long),
        ("impossible_report", sent.objects.refused_reports),
        ("excessive_totals", sent.objects.excessive_totals),
    ]
}

fn unused(sent: &Sent) -> [Reason; 3] {
    [
        ("never_sent", sent.objects.acknowledged_unsent),
        ("impossible_time", sent.objects.impossible_times),
        ("rate_control", sent.refused_parts),
    ]
}

fn seconds(time: Option<Duration>) -> f64 {
    time.map_or(f64::NAN, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_metrics::checks::{documented, served};
    use hawser_units::{Bitrate, ByteSize};

    const DOCUMENTATION: &str = include_str!("../../../docs/push.md");

    fn figures() -> Figures {
        let viewer = ViewerStatus {
            session: 1,
            address: "192.0.2.1:5".parse().unwrap(),
            target: Bitrate::from_mbps(12.5),
            pacing_rate: Bitrate::from_mbps(14.0),
            rtt: Some(Duration::from_millis(20)),
            one_way: None,
            queue: None,
            in_flight: ByteSize(1400),
            waiting: ByteSize(0),
            received: hawser_packets::feedback::Totals::default(),
            is_app_limited: true,
            is_kernel_paced: false,
            refusals: hawser_congestion::Refusals::default(),
            sender: hawser_objects::SenderStats::default(),
        };
        let mut figures = Figures {
            watching: 1,
            viewers: vec![viewer],
            ..Figures::default()
        };
        figures.sent.objects.displaced = 4;
        figures.sent.sessions.unauthorised = 5;
        figures.sent.objects.spurious = 6;
        figures.sent.objects.acknowledged_unsent = 7;
        figures.sent.objects.impossible_times = 8;
        figures.sent.refused_parts = 9;
        figures
    }

    #[test]
    fn the_metrics_are_those_of_the_documentation() {
        let served = served(&text(figures()));
        assert_eq!(served, documented(DOCUMENTATION, "hawser_publish"));
    }

    #[test]
    fn values_and_labels_are_those_of_the_figures() {
        let page = text(figures());
        for sample in [
            "hawser_publish_viewers{} 1.0",
            "hawser_publish_viewer_target_bits_per_second{viewer=\"192.0.2.1:5\"} 12500000.0",
            "hawser_publish_viewer_rtt_seconds{viewer=\"192.0.2.1:5\"} 0.02",
            "hawser_publish_viewer_queue_delay_seconds{viewer=\"192.0.2.1:5\"} NaN",
            "hawser_publish_objects_dropped_total{reason=\"displaced\"} 4",
            "hawser_publish_datagrams_refused_total{reason=\"without_key\"} 5",
            "hawser_publish_packets_spurious_total{} 6",
            "hawser_publish_report_parts_unused_total{reason=\"never_sent\"} 7",
            "hawser_publish_report_parts_unused_total{reason=\"impossible_time\"} 8",
            "hawser_publish_report_parts_unused_total{reason=\"rate_control\"} 9",
        ] {
            assert!(page.lines().any(|line| line == sample), "{sample}: {page}");
        }
    }
}
