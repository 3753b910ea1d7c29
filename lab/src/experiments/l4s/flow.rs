//! The media flow: what the experiment wants of a publisher and its viewer.

use super::frames::Frame;
use super::publisher::Publisher;
use super::scenario::Controller;
use super::viewer::Viewer;
use hawser_units::{Bitrate, Ecn, Instant};
use serde::Serialize;

pub(super) use super::publisher::Outgoing;

/// A publisher, and its viewer at the other end of the network.
pub(super) trait Flow {
    /// Returns whether frames can be sent.
    fn is_open(&self) -> bool;

    /// Returns when [`handle_timeout`](Flow::handle_timeout) or a transmission is due.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Captures a frame, and does what else is due at either end.
    fn handle_timeout(&mut self, now: Instant);

    /// Takes a datagram of the publisher at the viewer.
    fn handle_at_viewer(&mut self, now: Instant, datagram: &[u8], ecn: Ecn);

    /// Takes a message of the viewer at the publisher.
    fn handle_at_publisher(&mut self, now: Instant, message: &[u8]);

    /// Returns the next datagram that leaves the publisher now.
    fn poll_publisher(&mut self, now: Instant) -> Option<Outgoing>;

    /// Returns the next message that leaves the viewer now.
    fn poll_viewer(&mut self, now: Instant) -> Option<Vec<u8>>;

    /// Returns the rate that the encoder may have, with all headers.
    fn target(&self) -> Bitrate;

    /// Returns the rate at which packets leave, where it is known.
    fn pacing_rate(&self) -> Option<Bitrate>;

    /// Returns the counters of the publisher.
    fn traffic(&self) -> Traffic;

    /// Returns all frames that were captured.
    fn into_frames(self: Box<Self>) -> Vec<Frame>;
}

/// Counts of packets that the publisher sent, and of refusals.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Traffic {
    /// Packets of media that were sent for the first time, and again.
    pub(super) packets: u64,
    pub(super) repeated: u64,
    /// Objects that the in-flight buffer had no room for.
    pub(super) refused_no_room: u64,
    /// Items of feedback that the rate control refused.
    pub(super) refused_feedback: u64,
}

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

    fn target(&self) -> Bitrate {
        self.publisher.target()
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
