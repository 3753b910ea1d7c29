//! The figures of a publisher as metrics.

use crate::report::{Captured, Sent};
use hawser_metrics::{Family, Metrics, Page, server};
use hawser_objects::ViewerStatus;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// The newest figures of a publisher.
#[derive(Debug, Clone, Default, Metrics)]
pub(crate) struct Figures {
    #[metrics]
    pub(crate) captured: Captured,
    /// The sums over all viewers, also those that have left.
    #[metrics]
    pub(crate) sent: Sent,
    /// The number of viewers that have selected something.
    #[gauge("viewers", help = "Viewers at present")]
    pub(crate) watching: usize,
    /// The states of the flows, also to viewers that have selected nothing.
    #[metrics(of = |viewers| viewers.iter().cloned().map(Viewer).collect::<Vec<_>>())]
    pub(crate) viewers: Vec<ViewerStatus>,
}

/// The state of the flow to a viewer.
struct Viewer(ViewerStatus);

impl Metrics for Viewer {
    fn write(&self, page: &mut Page, _: Option<Family>, _: &[&'static str]) {
        let Viewer(v) = self;
        let depth = page.depth();
        page.enter("viewer", v.address);
        page.gauge(
            "viewer_target_bits_per_second",
            "Rate at which to encode for a viewer, with all headers",
            v.target.bps(),
        );
        page.gauge(
            "viewer_pacing_bits_per_second",
            "Rate at which packets leave",
            v.pacing_rate.bps(),
        );
        page.gauge("viewer_rtt_seconds", "Smoothed round-trip time", v.rtt);
        page.gauge(
            "viewer_one_way_delay_seconds",
            "Newest one-way delay",
            v.one_way,
        );
        page.gauge(
            "viewer_queue_delay_seconds",
            "Newest one-way delay less the smallest so far",
            v.queue,
        );
        page.gauge(
            "viewer_in_flight_bytes",
            "Bytes that are sent and neither acknowledged nor lost",
            v.in_flight.0,
        );
        page.gauge(
            "viewer_waiting_bytes",
            "Bytes that wait to be sent",
            v.waiting.0,
        );
        page.gauge(
            "viewer_app_limited",
            "1 if the encoder uses so little of the target that the rate does not grow",
            v.is_app_limited,
        );
        page.gauge(
            "viewer_kernel_paced",
            "1 if the kernel holds packets until they are to leave",
            v.is_kernel_paced,
        );
        page.leave(depth);
    }
}

/// Serves the figures at an address.
///
/// # Errors
/// If the address is not free.
pub(crate) fn serve(address: SocketAddr, figures: &Arc<Mutex<Figures>>) -> io::Result<SocketAddr> {
    let figures = Arc::clone(figures);
    server::serve_in_thread(address, "hawser_publish", move || figures.lock().clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_metrics::checks::check_reference;
    use hawser_metrics::page;
    use hawser_units::{Bitrate, ByteSize};
    use std::time::Duration;

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
    fn the_metrics_are_those_of_the_reference() {
        check_reference("hawser_publish", &page("hawser_publish", &figures()));
    }

    #[test]
    fn values_and_labels_are_those_of_the_figures() {
        let page = page("hawser_publish", &figures());
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
