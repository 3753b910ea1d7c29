//! The competing flows.

use crate::rivals::bulk::{Acknowledgement, CubicWindow, PragueWindow, Receiver, Segment, Sender};
use hawser_units::{ByteSize, Instant};

/// Both ends of a bulk flow.
pub(super) struct Rival {
    starts_at: Instant,
    sender: AnySender,
    receiver: Receiver,
}

enum AnySender {
    Cubic(Sender<CubicWindow>),
    Prague(Sender<PragueWindow>),
}

impl Rival {
    pub(super) fn cubic(starts_at: Instant) -> Self {
        Rival::new(starts_at, AnySender::Cubic(Sender::cubic()))
    }

    pub(super) fn prague(starts_at: Instant) -> Self {
        Rival::new(starts_at, AnySender::Prague(Sender::prague()))
    }

    fn new(starts_at: Instant, sender: AnySender) -> Self {
        Rival {
            starts_at,
            sender,
            receiver: Receiver::default(),
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let due = match &self.sender {
            AnySender::Cubic(sender) => sender.poll_timeout(),
            AnySender::Prague(sender) => sender.poll_timeout(),
        };
        due.map(|due| due.max(self.starts_at))
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        match &mut self.sender {
            AnySender::Cubic(sender) => sender.handle_timeout(now),
            AnySender::Prague(sender) => sender.handle_timeout(now),
        }
    }

    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Segment> {
        if now < self.starts_at {
            return None;
        }
        match &mut self.sender {
            AnySender::Cubic(sender) => sender.poll_transmit(now),
            AnySender::Prague(sender) => sender.poll_transmit(now),
        }
    }

    /// Takes a segment at the receiver. Returns its acknowledgement.
    pub(super) fn receive(&mut self, segment: &Segment) -> Acknowledgement {
        self.receiver.handle_segment(segment)
    }

    pub(super) fn handle_acknowledgement(
        &mut self,
        now: Instant,
        acknowledgement: Acknowledgement,
    ) {
        match &mut self.sender {
            AnySender::Cubic(sender) => sender.handle_acknowledgement(now, acknowledgement),
            AnySender::Prague(sender) => sender.handle_acknowledgement(now, acknowledgement),
        }
    }

    /// Returns the bytes of the packets received so far.
    pub(super) fn received(&self) -> ByteSize {
        self.receiver.received()
    }
}
