//! The figures of a viewer as metrics.

use crate::summary::{Damaged, Received};
use anyhow::Context;
use hawser_metrics::{Metric, NO_LABELS, Sink, by_reason, counter, counts, gauge, page, server};
use parking_lot::Mutex;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The newest figures of a viewer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    pub(crate) is_open: bool,
    pub(crate) is_looked_at: bool,
    /// The round trip that relates the clocks.
    pub(crate) round_trip: Option<Duration>,
    /// The sums over all sessions.
    pub(crate) received: Received,
    pub(crate) decoded: DecodedFrames,
}

/// The newest figures of the decoder.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DecodedFrames {
    pub(crate) frames: u64,
    pub(crate) damaged: Damaged,
    /// Frames that were late and not decoded because later ones waited.
    pub(crate) passed_over: u64,
    /// The time from capture to the end of decoding, of the newest frame.
    pub(crate) delay: Option<Duration>,
}

/// Serves figures at an address, with those of the decoder. Returns the others, to be updated.
///
/// # Errors
/// If the address is not free.
pub(crate) fn serve(
    address: SocketAddr,
    decoded: &Arc<Mutex<DecodedFrames>>,
) -> anyhow::Result<Arc<Mutex<Figures>>> {
    let figures: Arc<Mutex<Figures>> = Arc::default();
    let (shared, decoded) = (Arc::clone(&figures), Arc::clone(decoded));
    let newest = move || Figures {
        decoded: *decoded.lock(),
        ..*shared.lock()
    };
    let address = server::serve_in_thread(address, move || text(newest()))
        .with_context(|| format!("cannot serve metrics at {address}"))?;
    tracing::info!(%address, "serving metrics");
    Ok(figures)
}

fn text(figures: Figures) -> String {
    page("hawser_view", move |sink| write(&figures, sink))
}

const PROGRAM: [Metric<Figures>; 17] = [
    gauge("session_open", "1 while a session is open", |f| {
        f64::from(u8::from(f.is_open))
    }),
    gauge(
        "rtt_seconds",
        "Smallest round-trip time of late, which relates the clocks",
        |f| seconds(f.round_trip),
    ),
    gauge(
        "frame_delay_seconds",
        "Time from the capture of the newest frame to the end of its decoding",
        |f| seconds(f.decoded.delay),
    ),
    gauge(
        "looked_at",
        "0 while what is shown is out of the viewer's view, otherwise 1",
        |f| f64::from(u8::from(f.is_looked_at)),
    ),
    counter(
        "looks_changed",
        "Changes between in view and out of view",
        |f| f.received.looked.unwrap_or_default().changes,
    ),
    counter("sessions", "Sessions that were opened", |f| {
        f.received.sessions
    }),
    counter("packets", "Authentic packets of media", |f| {
        f.received.packets
    }),
    counter("received_bytes", "Bytes of their UDP payloads", |f| {
        f.received.bytes
    }),
    counter(
        "marked_bytes",
        "Those of the received bytes that the network had marked (ECN)",
        |f| f.received.marked_bytes,
    ),
    counter(
        "late_packets",
        "Packets that arrived after the deadline of their object",
        |f| f.received.late_packets,
    ),
    counter(
        "late_layers",
        "Layers that were complete after their frame had been shown without them",
        |f| f.received.frames.late_objects,
    ),
    counter(
        "frames_lesser_encoding",
        "Frames of which some camera had another than the best encoding",
        |f| f.received.frames.lesser_encoding,
    ),
    counter("frames_decoded", "Frames that were decoded", |f| {
        f.decoded.frames
    }),
    counter(
        "frames_not_decoded",
        "Frames that were not decoded because earlier ones still were",
        |f| f.received.not_decoded + f.decoded.passed_over,
    ),
    counter(
        "receive_drops",
        "Datagrams that the kernel dropped because they were not read in time",
        |f| f.received.kernel_drops,
    ),
    counter(
        "send_failures",
        "Messages that the kernel did not send",
        |f| f.received.send_failures,
    ),
    counter(
        "unreachable",
        "Errors of the network on the way to the publisher",
        |f| f.received.unreachable,
    ),
];

const FRAMES: [Metric<u64>; 1] = counts(
    "frames",
    "Frames of which something arrived, by how much of them did",
);

const DAMAGED: [Metric<u64>; 1] = counts(
    "frames_damaged",
    "Authentic frames that were not decoded for what is in them, by reason",
);

const REFUSED: [Metric<u64>; 1] = counts(
    "datagrams_refused",
    "Datagrams that were refused, by reason",
);

fn write(figures: &Figures, sink: &mut Sink<'_>) -> fmt::Result {
    sink.write(&PROGRAM, || [(NO_LABELS, figures)])?;
    let frames = &figures.received.frames;
    sink.write(&FRAMES, || {
        [
            ([("arrived", "whole")], &frames.whole),
            ([("arrived", "without_refinement")], &frames.reduced),
            ([("arrived", "without_camera")], &frames.without_track),
            ([("arrived", "without_base")], &frames.undecodable),
        ]
    })?;
    let damaged = figures.decoded.damaged.by_reason();
    sink.write(&DAMAGED, || by_reason(&damaged))?;
    let refused = figures.received.refused.by_reason();
    sink.write(&REFUSED, || by_reason(&refused))
}

fn seconds(time: Option<Duration>) -> f64 {
    time.map_or(f64::NAN, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_metrics::checks::{documented, served};

    const DOCUMENTATION: &str = include_str!("../../../docs/push.md");

    #[test]
    fn the_metrics_are_those_of_the_documentation() {
        let served = served(&text(Figures::default()));
        assert_eq!(served, documented(DOCUMENTATION, "hawser_view"));
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let page = text(Figures::default());
        assert!(
            page.contains("hawser_view_frame_delay_seconds{} NaN\n"),
            "{page}"
        );
        let delay = Some(Duration::from_millis(40));
        let mut figures = Figures::default();
        figures.decoded.delay = delay;
        figures.received.frames.reduced = 3;
        figures.received.refused.packets.duplicate = 2;
        figures.decoded.damaged.too_many_points = 4;
        let page = text(figures);
        for sample in [
            "hawser_view_frame_delay_seconds{} 0.04",
            "hawser_view_frames_total{arrived=\"without_refinement\"} 3",
            "hawser_view_datagrams_refused_total{reason=\"repeated\"} 2",
            "hawser_view_frames_damaged_total{reason=\"too_many_points\"} 4",
        ] {
            assert!(page.lines().any(|line| line == sample), "{sample}: {page}");
        }
    }
}
