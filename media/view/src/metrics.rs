//! The figures of a viewer as metrics.

use crate::summary::{Damaged, Received};
use hawser_metrics::{Metrics, server};
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The newest figures of a viewer.
#[derive(Debug, Clone, Copy, Default, Metrics)]
#[counter("frames_not_decoded", help = "Frames that were not decoded because earlier ones still were",
    of = |figures: &Self| figures.received.not_decoded + figures.decoded.passed_over)]
pub(crate) struct Figures {
    /// 1 while a session is open.
    #[gauge("session_open")]
    pub(crate) is_open: bool,
    /// 0 while what is shown is out of the viewer's view, otherwise 1.
    #[gauge("looked_at")]
    pub(crate) is_looked_at: bool,
    /// Smallest round-trip time of late, which relates the clocks.
    #[gauge("rtt_seconds")]
    pub(crate) round_trip: Option<Duration>,
    /// The sums over all sessions.
    #[metrics]
    pub(crate) received: Received,
    #[metrics]
    pub(crate) decoded: DecodedFrames,
}

/// The newest figures of the decoder.
#[derive(Debug, Clone, Copy, Default, Metrics)]
pub(crate) struct DecodedFrames {
    /// Frames that were decoded.
    #[counter("frames_decoded")]
    pub(crate) frames: u64,
    /// Authentic frames that were not decoded for what is in them, by reason.
    #[counter("frames_damaged", "reason", of = Damaged::by_reason)]
    pub(crate) damaged: Damaged,
    /// Frames that were late and not decoded because later ones waited.
    pub(crate) passed_over: u64,
    /// Time from the capture of the newest frame to the end of its decoding.
    #[gauge("frame_delay_seconds")]
    pub(crate) delay: Option<Duration>,
}

/// Serves figures at an address, with those of the decoder. Returns the others, to be updated.
///
/// # Errors
/// If the address is not free.
pub(crate) fn serve(
    address: SocketAddr,
    decoded: &Arc<Mutex<DecodedFrames>>,
) -> io::Result<Arc<Mutex<Figures>>> {
    let figures: Arc<Mutex<Figures>> = Arc::default();
    let (shared, decoded) = (Arc::clone(&figures), Arc::clone(decoded));
    let newest = move || Figures {
        decoded: *decoded.lock(),
        ..*shared.lock()
    };
    let address = server::serve_in_thread(address, "hawser_view", newest)?;
    tracing::info!(%address, "serving metrics");
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_metrics::checks::check_reference;
    use hawser_metrics::page;

    fn text(figures: Figures) -> String {
        page("hawser_view", &figures)
    }

    #[test]
    fn the_metrics_are_those_of_the_reference() {
        check_reference("hawser_view", &text(Figures::default()));
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
