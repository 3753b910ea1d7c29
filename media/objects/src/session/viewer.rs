use super::EndReason;
use super::channel::UsedUp;
use super::client::{Accepted, Client, SenderMessage, SessionTimes, ViewerError, ViewerStats};
use crate::keys::TrackSecret;
use crate::receiver::{Receiver, ReceiverConfig, ReceiverEvent};
use hawser_packets::feedback::Pose;
use hawser_packets::media::VERSION;
use hawser_packets::session::{Accept, Announcement, Goodbye};
use hawser_units::{Ecn, Instant};
use std::collections::VecDeque;

/// The settings of a [`Viewer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ViewerConfig {
    /// The settings of the receiver.
    pub receiver: ReceiverConfig,
    /// The times of the session.
    pub times: SessionTimes,
}

/// A viewer's session: requests it, receives media, sends reports.
#[derive(Debug)]
pub struct Viewer {
    config: ViewerConfig,
    secret: TrackSecret,
    client: Client,
    /// The receiver of a session that is open, or was when it ended.
    receiver: Option<Box<Receiver>>,
    /// The receiver of a session that another one has replaced.
    replaced: Option<Box<Receiver>>,
    events: VecDeque<ViewerEvent>,
}

/// An event of a [`Viewer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewerEvent {
    /// The session is open. The sender sends no media until the viewer subscribes. It replaces an open
    /// session ([`Viewer::take_replaced`]) if the sender has restarted.
    Opened(Announcement),
    /// The session has ended.
    Ended(EndReason),
}

impl Viewer {
    /// Creates a viewer that requests a session. `random` has 16 random bytes, new for each session.
    pub fn new(config: ViewerConfig, secret: TrackSecret, random: [u8; 16]) -> Self {
        Viewer {
            config,
            client: Client::new(config.times, secret.access(), random),
            secret,
            receiver: None,
            replaced: None,
            events: VecDeque::new(),
        }
    }

    /// Takes a datagram from the sender's address, with its ECN field.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        datagram: &[u8],
        ecn: Ecn,
    ) -> Result<(), ViewerError> {
        let taken = if datagram.first() == Some(&VERSION) {
            self.handle_packet(now, datagram, ecn)
        } else {
            self.handle_message(now, datagram)
        };
        taken.inspect_err(|error| self.client.count(error))
    }

    /// Selects the tracks and the number of their layers, once the session is open.
    pub fn subscribe(&mut self, now: Instant, tracks: Vec<(u32, u8)>) {
        self.client.subscribe(now, tracks, false);
    }

    /// Selects the tracks and the number of their layers, once the session is open, and lets the sender
    /// choose one of those with the same name: they are encodings of the same source.
    pub fn subscribe_to_any_encoding(&mut self, now: Instant, tracks: Vec<(u32, u8)>) {
        self.client.subscribe(now, tracks, true);
    }

    /// Sets the pose that reports have.
    pub fn set_pose(&mut self, pose: Option<Pose>) {
        self.client.set_pose(pose);
    }

    /// Takes word of the network that nobody receives at the sender's address.
    pub fn handle_refused(&mut self, now: Instant) {
        self.client.handle_refused(now);
    }

    /// Leaves the session.
    pub fn close(&mut self, reason: Goodbye) {
        self.client.close(reason);
    }

    /// Returns the next datagram to the sender.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        let receiver = &mut self.receiver;
        let report = |pose| receiver.as_mut()?.poll_report(now, pose);
        let sent = self.client.poll_transmit(now, report);
        sent.unwrap_or_else(|UsedUp| {
            self.end(EndReason::KeyUsedUp);
            None
        })
    }

    /// Returns the next event of the session.
    pub fn poll_event(&mut self) -> Option<ViewerEvent> {
        self.events.pop_front()
    }

    /// Returns the next event of the media, also of a session that has ended.
    pub fn poll_media(&mut self) -> Option<ReceiverEvent> {
        self.receiver.as_mut()?.poll_event()
    }

    /// Returns the next time at which [`Viewer::handle_timeout`] and [`Viewer::poll_transmit`] have
    /// to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let receiver = self.receiver.as_ref().filter(|_| self.client.is_open());
        let of_receiver = receiver.and_then(|receiver| receiver.poll_timeout());
        let times = [self.client.poll_timeout(), of_receiver];
        times.into_iter().flatten().min()
    }

    /// Gives up late objects, and ends the session if no authentic datagram arrives.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(receiver) = self.receiver.as_mut().filter(|_| self.client.is_open()) {
            receiver.handle_timeout(now);
        }
        if self.client.has_timed_out(now) {
            self.end(EndReason::TimedOut);
        }
    }

    /// Returns the receiver of a session that is open, or was when it ended.
    pub fn receiver(&self) -> Option<&Receiver> {
        self.receiver.as_deref()
    }

    /// Takes the receiver of the previous session, when another one has replaced it.
    pub fn take_replaced(&mut self) -> Option<Box<Receiver>> {
        self.replaced.take()
    }

    /// Returns the counts.
    pub const fn stats(&self) -> &ViewerStats {
        self.client.stats()
    }

    fn handle_packet(
        &mut self,
        now: Instant,
        datagram: &[u8],
        ecn: Ecn,
    ) -> Result<(), ViewerError> {
        let receiver = self.receiver.as_mut().filter(|_| self.client.is_open());
        let receiver = receiver.ok_or(ViewerError::Unexpected)?;
        receiver.handle_packet(now, datagram, ecn)?;
        self.client.hear(now);
        Ok(())
    }

    fn handle_message(&mut self, now: Instant, datagram: &[u8]) -> Result<(), ViewerError> {
        match self.client.handle_message(now, datagram)? {
            SenderMessage::Handled => {}
            SenderMessage::Accept(plaintext, accepted) => {
                self.handle_accept(now, &plaintext, accepted)?
            }
            SenderMessage::Status(status) => {
                let receiver = self.receiver.as_mut();
                if receiver.is_some_and(|r| r.handle_status(now, &status).is_err()) {
                    self.client.count_impossible_time();
                }
            }
            SenderMessage::Goodbye(reason) => self.end(EndReason::Left(reason)),
        }
        Ok(())
    }

    fn handle_accept(
        &mut self,
        now: Instant,
        plaintext: &[u8],
        accepted: Accepted,
    ) -> Result<(), ViewerError> {
        let accept = Accept::parse(plaintext)?;
        let announcement = self.secret.verify(accept.announcement)?;
        let receiver = Receiver::new(self.config.receiver, &self.secret, &announcement, &accept);
        self.replaced = self.receiver.replace(Box::new(receiver));
        self.client.open(now, accepted);
        self.events.push_back(ViewerEvent::Opened(announcement));
        Ok(())
    }

    fn end(&mut self, reason: EndReason) {
        self.client.end();
        self.events.push_back(ViewerEvent::Ended(reason));
    }
}
