//! Hawser's media: the publisher's and the viewer's end of the product.

use super::flow::{Flow, Outgoing, Traffic};
use super::frames::Frame;
use super::publisher::Publisher;
use super::scenario::Controller;
use super::viewer::Viewer;
use hawser_units::{Bitrate, Ecn, Instant};

/// Hawser's media, with its own control or the paper's.
pub(super) struct Hawser {
    publisher: Publisher,
    viewer: Viewer,
}

impl Hawser {
    /// Creates both ends. The first frame is captured at `first`.
    pub(super) fn new(controller: Controller, seed: u64, first: Instant) -> Self {
        Hawser {
            publisher: Publisher::new(controller, seed, first),
            viewer: Viewer::new(),
        }
    }
}

impl Flow for Hawser {
    fn is_open(&self) -> bool {
        self.publisher.is_watched()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let ends = [self.publisher.poll_timeout(), self.viewer.poll_timeout()];
        ends.into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.publisher.handle_timeout(now);
        self.viewer.handle_timeout(now);
    }

    fn handle_at_viewer(&mut self, now: Instant, datagram: &[u8], ecn: Ecn) {
        let frames = &mut self.publisher.frames;
        self.viewer.handle_datagram(now, datagram, ecn, frames);
    }

    fn handle_at_publisher(&mut self, now: Instant, message: &[u8]) {
        self.publisher.handle_datagram(now, message);
    }

    fn poll_publisher(&mut self, now: Instant) -> Option<Outgoing> {
        self.publisher.poll_transmit(now)
    }

    fn poll_viewer(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.viewer.poll_transmit(now)
    }

    fn target(&self, now: Instant) -> Bitrate {
        self.publisher.target(now)
    }

    fn pacing_rate(&self) -> Option<Bitrate> {
        self.publisher.pacing_rate()
    }

    fn traffic(&self) -> Traffic {
        self.publisher.traffic()
    }

    fn into_frames(self: Box<Self>) -> Vec<Frame> {
        self.publisher.frames
    }
}
