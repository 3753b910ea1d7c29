//! The media flow: what the experiment wants of a publisher and its viewer.

use super::frames::Frame;
use hawser_units::{Bitrate, Ecn, Instant};
use serde::Serialize;
use std::sync::Arc;

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
    fn target(&self, now: Instant) -> Bitrate;

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

/// A datagram that leaves.
pub(super) struct Outgoing {
    pub(super) datagram: Arc<[u8]>,
    pub(super) ecn: Ecn,
}
