//! The rival: media over WebRTC, with the congestion control of `str0m`, in virtual time.

mod endpoint;
mod packet;
mod receiver;
mod sender;
mod session;

use super::flow::{Flow, Outgoing, Traffic};
use super::frames::Frame;
use hawser_units::{Bitrate, Ecn, Instant};
use receiver::Receiver;
use sender::Sender;
use std::time;

/// The name of the congestion control: there are others that implement GCC.
pub(super) const CONTROL: &str = "GCC of str0m 0.25";

/// Both ends.
pub(super) struct WebRtc {
    frames: Vec<Frame>,
    sender: Sender,
    receiver: Receiver,
}

impl WebRtc {
    /// Creates both ends. The first frame is captured at `first`.
    pub(super) fn new(seed: u64, first: Instant) -> Self {
        let origin = time::Instant::now();
        WebRtc {
            frames: Vec::new(),
            sender: Sender::new(origin, seed, first),
            receiver: Receiver::new(origin),
        }
    }
}

impl Flow for WebRtc {
    fn is_open(&self) -> bool {
        self.sender.is_open() && self.receiver.is_open()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let viewer = self.receiver.poll_timeout();
        Some(self.sender.poll_timeout().min(viewer))
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.sender.handle_timeout(now, &mut self.frames);
        self.receiver.handle_timeout(now);
    }

    fn handle_at_viewer(&mut self, now: Instant, datagram: &[u8], _ecn: Ecn) {
        self.receiver
            .handle_datagram(now, datagram, &mut self.frames);
    }

    fn handle_at_publisher(&mut self, now: Instant, message: &[u8]) {
        self.sender.handle_datagram(now, message);
    }

    fn poll_publisher(&mut self, now: Instant) -> Option<Outgoing> {
        let datagram = self.sender.poll_transmit(now, &mut self.frames)?;
        Some(Outgoing {
            datagram: datagram.into(),
            ecn: Ecn::NotEct,
        })
    }

    fn poll_viewer(&mut self, _now: Instant) -> Option<Vec<u8>> {
        self.receiver.poll_transmit()
    }

    fn target(&self, _now: Instant) -> Bitrate {
        self.sender.target()
    }

    /// The pacer keeps its rate to itself.
    fn pacing_rate(&self) -> Option<Bitrate> {
        None
    }

    fn traffic(&self) -> Traffic {
        self.sender.traffic()
    }

    fn into_frames(self: Box<Self>) -> Vec<Frame> {
        self.frames
    }
}
