//! The thread that has the socket: session, reassembly, reports.

use crate::decode::{FrameToDecode, NotTaken, ToDecoder};
use crate::experience::Experienced;
use crate::link::Link;
use crate::measured::CaptureInterval;
use crate::metrics::Figures;
use crate::session::Session;
use crate::speaker::Speaker;
use crate::summary::Received;
use crate::viewpoint::Viewpoint;
use anyhow::Context;
use hawser_experience::{Packet, Protocol};
use hawser_io::clock::SteadyClock;
use hawser_io::failures::Kinds;
use hawser_io::peer::connected_to;
use hawser_io::udp::{self, UdpSocket};
use hawser_keys::{ATTEMPT, Keyring, Origin, Secret};
use hawser_objects::{EndReason, FrameStats, IPV6_UDP, TrackSecret, ViewerEvent};
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_packets::session::Goodbye;
use hawser_units::Instant;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The longest time between two looks at whether to stop.
const STOP_POLL: Duration = Duration::from_millis(50);

/// The time without an answer after which a warning is logged.
const NO_ANSWER: Duration = Duration::from_secs(3);

/// The time without media after which the user is told, and the most bytes of a packet, with the headers of
/// IPv6 and UDP.
const NO_MEDIA: Duration = Duration::from_secs(3);
const MEDIA_MTU: u64 = DEFAULT_DATAGRAM as u64 + IPV6_UDP.0;

/// The time between two updates of the metrics.
const FIGURES_INTERVAL: Duration = Duration::from_millis(100);

/// The time without an authentic datagram after which the viewer looks whether its own address has changed, and
/// the time between two looks. The publisher answers each report, of which there is one in a second.
const QUIET: Duration = Duration::from_millis(1500);
const LOOK: Duration = Duration::from_millis(500);

/// The pause before a new session is asked for.
const PAUSE: Duration = Duration::from_millis(500);

/// The network's end of a viewer.
pub(crate) struct Network {
    clock: SteadyClock,
    origin: Origin,
    keyring: Keyring,
    secret: TrackSecret,
    viewpoint: Viewpoint,
    /// The source of what is shown.
    link: Link,
    /// The source that is to take its place once it serves.
    next: Option<Next>,
    /// The number of sessions that were requested.
    requested: u64,
    to_decoder: Option<ToDecoder>,
    speaker: Option<Speaker>,
    received: Received,
    figures: Option<Arc<Mutex<Figures>>>,
    next_figures: Instant,
    experience: Option<Experienced>,
    /// The counts of a session that the experience has.
    experienced: (u64, FrameStats),
    interval: CaptureInterval,
    /// The time of the warning that there is no answer.
    report_at: Instant,
    /// The time of the warning that no media arrive, if none have in this session.
    media_by: Option<Instant>,
    /// When to look again whether the own address has changed.
    look_at: Instant,
    /// The kinds of errors of sending that have occurred.
    send_errors: Kinds,
}

/// A source that is asked while the one before is kept, so that nothing is missed in between.
struct Next {
    link: Link,
    /// Whether it is needed because the one before does not answer.
    is_needed: bool,
}

impl Network {
    /// Takes a socket that is connected to an address of the publisher.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(crate) fn open(
        clock: SteadyClock,
        origin: Origin,
        connected: (UdpSocket, SocketAddr),
        (keyring, secret): (Keyring, Secret),
        viewpoint: Viewpoint,
        to_decoder: ToDecoder,
        figures: Option<Arc<Mutex<Figures>>>,
    ) -> anyhow::Result<Self> {
        let secret = TrackSecret::new(*secret);
        let now = clock.now();
        let session = Session::new(0, &secret, viewpoint.reported(now), viewpoint.encoding())?;
        Ok(Network {
            link: Link::new(now, connected, session),
            next: None,
            requested: 1,
            clock,
            origin,
            keyring,
            secret,
            viewpoint,
            to_decoder: Some(to_decoder),
            speaker: None,
            received: Received::default(),
            figures,
            next_figures: clock.now(),
            experience: None,
            experienced: (0, FrameStats::default()),
            interval: CaptureInterval::default(),
            report_at: clock.now() + NO_ANSWER,
            media_by: None,
            look_at: clock.now(),
            send_errors: Kinds::default(),
        })
    }

    /// Reports the experience at this socket.
    pub(crate) fn reporting_to(self, socket: Option<&PathBuf>) -> Self {
        Network {
            experience: socket.cloned().map(Experienced::new),
            ..self
        }
    }

    /// Plays the sound, if there is a device for it.
    pub(crate) fn playing_on(self, speaker: Option<Speaker>) -> Self {
        Network { speaker, ..self }
    }

    /// Ends the sound.
    ///
    /// # Errors
    /// If its device has failed.
    pub(crate) fn end_sound(&mut self) -> anyhow::Result<()> {
        let ended = self.speaker.take().map_or(Ok(()), Speaker::finish);
        ended.context("the sound has not been played")
    }

    /// Runs until `is_over`.
    pub(crate) fn run(&mut self, is_over: impl Fn() -> bool) -> anyhow::Result<()> {
        udp::wake_precisely();
        while !is_over() {
            self.link.receive(self.clock, &mut self.received)?;
            let now = self.clock.now();
            self.take_secret(now)?;
            self.link.session.handle_timeout(now);
            self.take_events(now)?;
            self.look(now);
            if !self.hand_over(now) {
                // The decoder has failed, and says why.
                return Ok(());
            }
            self.transmit();
            self.update_figures(now);
            self.report(now);
            let next = self.next.as_ref().map(|next| &next.link.socket);
            let sockets: Vec<&UdpSocket> = next.into_iter().chain([&self.link.socket]).collect();
            UdpSocket::wait_any(&sockets, self.timeout()).context("cannot wait")?;
        }
        Ok(())
    }

    /// Leaves the session, and returns the counts.
    pub(crate) fn finish(&mut self) -> Received {
        self.drop_next();
        self.end_session();
        self.link.session.viewer.close(Goodbye::Ended);
        self.transmit();
        self.to_decoder = None;
        self.received.looked = self.viewpoint.looked();
        self.received
    }

    /// Receives more or less of each track, if what is shown has come into view or is no longer there.
    fn look(&mut self, now: Instant) {
        if !self.viewpoint.is_due(now) {
            return;
        }
        let has_changed = self.viewpoint.look(now);
        let pose = self.viewpoint.reported(now);
        self.link.session.viewer.set_pose(pose);
        if has_changed {
            let (publisher, is_looked_at) = (self.link.publisher, self.viewpoint.is_looked_at());
            let layers = self.viewpoint.layers();
            tracing::debug!(%publisher, is_looked_at, layers, "selecting layers");
            self.link.session.select(now, layers);
        }
    }

    /// Takes a secret that the controller has replaced. An open session continues until the publisher ends it.
    fn take_secret(&mut self, now: Instant) -> anyhow::Result<()> {
        if let Some(secret) = self.keyring.poll()? {
            self.secret = TrackSecret::new(*secret);
            // It is asked for with the secret before.
            self.drop_next();
            if !self.link.session.is_open() {
                self.link.session.again_at = Some(now);
            }
        }
        Ok(())
    }

    fn take_events(&mut self, now: Instant) -> anyhow::Result<()> {
        if self.link.session.is_open() {
            self.report_at = now + NO_ANSWER;
        }
        while let Some(event) = self.link.session.viewer.poll_event() {
            match event {
                ViewerEvent::Opened(announcement) => {
                    self.end_replaced(now);
                    self.viewpoint.begin_again(now);
                    self.media_by = Some(now + NO_MEDIA);
                    self.received.sessions += 1;
                    tracing::info!(publisher = %self.link.publisher, tracks = announcement.tracks.len(), "session opened");
                    self.link
                        .session
                        .subscribe(now, announcement, self.viewpoint.layers());
                }
                ViewerEvent::Ended(reason) => self.ended(now, reason),
            }
        }
        self.look_for_media(now);
        if self.link.session.is_open() && self.has_moved(now) {
            tracing::warn!(publisher = %self.link.publisher, "the own address has changed; asking for another session");
            self.link.session.again_at = Some(now);
        }
        self.choose(now)?;
        if self.link.session.again_at.is_some_and(|at| at <= now) {
            self.begin_again(now)?;
        }
        if !self.link.session.is_open() && self.report_at <= now {
            self.report_at = now + NO_ANSWER * 10;
            let (publisher, network) = (self.link.publisher, self.link.unreachable.take());
            tracing::warn!(%publisher, network, "no answer: is `hawser publish` or a relay running there with the same key, and has it room for one more viewer?");
        }
        Ok(())
    }

    /// Asks for a session at another source, if the controller names one and this one is of no use, or if a relay is
    /// better. What works is kept until the other one serves.
    fn choose(&mut self, now: Instant) -> anyhow::Result<()> {
        if self.next.is_some() {
            return self.take_next(now);
        }
        let contact = self.link.contact(now, self.viewpoint.layers() > 0);
        let leaves = self.origin.has_to_leave(&self.keyring, &contact);
        if leaves && !contact.is_open {
            self.link.session.again_at = Some(now);
            return Ok(());
        }
        let connected = match (leaves, contact.is_open) {
            (true, _) => self.origin.connect().ok(),
            (false, true) => self.origin.better(contact.address),
            (false, false) => None,
        };
        if let Some(connected) = connected {
            let is_needed = leaves && contact.is_silent();
            tracing::info!(from = %contact.address, to = %connected.1, is_needed, "asking another source");
            let link = Link::new(now, connected, self.request(now)?);
            self.next = Some(Next { link, is_needed });
        }
        Ok(())
    }

    /// Looks whether the other source that was asked serves, or is not needed after all.
    fn take_next(&mut self, now: Instant) -> anyhow::Result<()> {
        let (layers, heard) = (self.viewpoint.layers(), self.link.heard);
        let Some(Next { link, is_needed }) = &mut self.next else {
            return Ok(());
        };
        link.receive(self.clock, &mut self.received)?;
        link.session.handle_timeout(now);
        if !self.link.session.is_open() {
            self.adopt(now);
            return Ok(());
        }
        while let Some(event) = link.session.viewer.poll_event() {
            match event {
                ViewerEvent::Opened(announcement) => {
                    self.received.sessions += 1;
                    tracing::info!(publisher = %link.publisher, tracks = announcement.tracks.len(), "session opened");
                    link.session.subscribe(now, announcement, layers);
                }
                ViewerEvent::Ended(_) => link.session.again_at = Some(now),
            }
        }
        let contact = link.contact(now, layers > 0);
        let limit = if contact.is_open { NO_MEDIA } else { ATTEMPT };
        let has_failed = link.session.again_at.is_some()
            || contact.is_refused
            || now.saturating_since(link.asked) >= limit;
        if *is_needed && heard > link.asked {
            self.drop_next();
        } else if contact.is_open && (*is_needed || layers == 0 || link.session.has_frame()) {
            self.adopt(now);
        } else if has_failed {
            self.origin.pass_over(link.publisher);
            self.drop_next();
        }
        Ok(())
    }

    /// Replaces the source of what is shown by the next one.
    fn adopt(&mut self, now: Instant) {
        let Some(Next {
            mut link,
            is_needed,
        }) = self.next.take()
        else {
            return;
        };
        tracing::info!(from = %self.link.publisher, to = %link.publisher, "taking the stream from another source");
        if !link.session.is_of_stream_of(&self.link.session) {
            self.link.session.finish(now);
        }
        self.hand_over(now);
        link.session.go_on_after(&self.link.session);
        link.session.select(now, self.viewpoint.layers());
        self.media_by = is_needed.then_some(now + NO_MEDIA);
        let mut before = std::mem::replace(&mut self.link, link);
        before.session.viewer.close(Goodbye::Ended);
        before.transmit(self.clock, &mut self.received, &mut self.send_errors);
        before.add_to(&mut self.received);
    }

    /// Leaves the source that was asked besides the one of what is shown.
    fn drop_next(&mut self) {
        if let Some(Next { mut link, .. }) = self.next.take() {
            link.session.viewer.close(Goodbye::Ended);
            link.transmit(self.clock, &mut self.received, &mut self.send_errors);
            link.add_to(&mut self.received);
        }
    }

    /// Returns the request for another session.
    fn request(&mut self, now: Instant) -> anyhow::Result<Session> {
        let number = self.requested;
        self.requested += 1;
        let pose = self.viewpoint.reported(now);
        Session::new(number, &self.secret, pose, self.viewpoint.encoding())
    }

    /// Tells the user if messages arrive and packets of media do not: those are longer.
    fn look_for_media(&mut self, now: Instant) {
        let Some(receiver) = self.link.session.viewer.receiver() else {
            return;
        };
        if receiver.totals().packets > 0 || !self.link.session.is_open() {
            self.media_by = None;
        } else if self.media_by.is_some_and(|by| by <= now) {
            self.media_by = None;
            tracing::warn!(publisher = %self.link.publisher, "the session is open, but no packet of media arrives: does the path carry packets of {MEDIA_MTU} bytes?");
        }
    }

    /// Hands over the rest of a session that another one has replaced.
    fn end_replaced(&mut self, now: Instant) {
        let Some(receiver) = self.link.session.viewer.take_replaced() else {
            return;
        };
        tracing::warn!(publisher = %self.link.publisher, "the publisher has started again");
        self.link.session.assembler.finish(now);
        self.hand_over(now);
        self.received.add_receiver(&receiver);
        self.received.frames += *self.link.session.assembler.stats();
        self.received.add_sound(&self.link.session.sound);
        self.link.session.number = self.requested;
        self.requested += 1;
    }

    fn ended(&mut self, now: Instant, reason: EndReason) {
        let publisher = self.link.publisher;
        let is_leaving = match reason {
            EndReason::Left(why) => why != Goodbye::Revoked,
            _ => false,
        };
        let goes_on = is_leaving && self.origin.was_left_by(publisher);
        self.link.session.again_at = Some(if goes_on { now } else { now + PAUSE });
        self.keyring.ask_now();
        if self.link.session.was_open() {
            tracing::warn!(%publisher, %reason, "session ended; asking for another one");
        }
    }

    /// Returns whether packets to the publisher would leave from another address than that of the session,
    /// from which nothing has arrived for some time.
    fn has_moved(&mut self, now: Instant) -> bool {
        if now < self.look_at.max(self.link.heard + QUIET) {
            return false;
        }
        self.look_at = now + LOOK;
        let address = |socket: &UdpSocket| socket.local_address().ok().map(|address| address.ip());
        let new = connected_to(self.link.publisher).ok();
        new.is_some_and(|new| address(&new) != address(&self.link.socket))
    }

    /// Asks for a new session, at the next address if this one has not answered. The socket is a new
    /// one, because the viewer's own address may have changed.
    fn begin_again(&mut self, now: Instant) -> anyhow::Result<()> {
        if !self.link.session.was_open() {
            self.origin.pass_over(self.link.publisher);
        }
        self.origin.refresh();
        match self.origin.connect() {
            Ok(connected) => {
                self.end_session();
                let mut link = Link::new(now, connected, self.request(now)?);
                link.session.go_on_after(&self.link.session);
                self.link = link;
                self.report_at = self.report_at.max(now + NO_ANSWER);
            }
            Err(error) => {
                self.received.unreachable += 1;
                self.link.unreachable = Some(format!("{error:#}"));
                self.link.session.again_at = Some(now + PAUSE);
            }
        }
        Ok(())
    }

    /// Updates the figures of the metrics, if there are any.
    fn update_figures(&mut self, now: Instant) {
        let Some(figures) = self.figures.as_ref().filter(|_| self.next_figures <= now) else {
            return;
        };
        self.next_figures = now + FIGURES_INTERVAL;
        let session = &self.link.session;
        let mut received = self.received;
        self.link.add_to(&mut received);
        received.looked = self.viewpoint.looked();
        let mut figures = figures.lock();
        figures.is_open = session.is_open();
        figures.is_looked_at = self.viewpoint.is_looked_at();
        figures.round_trip = session.round_trip();
        figures.received = received;
    }

    /// Reports what the viewer experiences, while it expects frames.
    fn report(&mut self, now: Instant) {
        let Some(experience) = &mut self.experience else {
            return;
        };
        let frames = *self.link.session.assembler.stats();
        let (session, before) = self.experienced;
        let before = if session == self.link.session.number {
            before
        } else {
            FrameStats::default()
        };
        self.experienced = (self.link.session.number, frames);
        experience.handle_late(
            frames.undecodable.saturating_sub(before.undecodable),
            frames.without_track.saturating_sub(before.without_track),
        );
        if !self.link.session.is_open() || self.viewpoint.layers() == 0 {
            experience.handle_pause();
        }
        let (publisher, socket) = (self.link.publisher, &self.link.socket);
        experience.handle_timeout(now, || {
            Some(Packet {
                protocol: Protocol::Udp,
                source: publisher,
                destination: socket.local_address().ok()?,
            })
        });
    }

    /// Hands chunks, and frames that are ready, to the decoder. Returns `false` if there is none any more.
    fn hand_over(&mut self, now: Instant) -> bool {
        let Some(to_decoder) = &self.to_decoder else {
            return false;
        };
        let session = self.link.session.number;
        for (object, bytes) in self.link.session.chunks.drain(..) {
            to_decoder.send_chunk(session, object, bytes);
        }
        while let Some(packet) = self.link.session.poll_sound(now) {
            if let Some(speaker) = &self.speaker {
                speaker.play(packet.clone());
            }
            to_decoder.send_sound(packet);
        }
        while let Some(frame) = self.link.session.poll_frame() {
            let captured = self.link.session.captured(now, &frame);
            if let Some(experience) = &mut self.experience {
                let (group, _) = frame.id;
                captured.iter().for_each(|captured| {
                    self.interval.record(group.into(), captured.as_nanos());
                });
                let delay = captured.map(|captured| now.saturating_since(captured));
                experience.handle_frame(now, self.interval.get(), delay);
            }
            let to_decode = FrameToDecode {
                session,
                captured,
                deadline: self.link.session.deadline(now, &frame),
                tracks: Arc::clone(&self.link.session.tracks),
                is_looked_at: self.viewpoint.is_looked_at(),
                pose: self.viewpoint.moving(now),
                frame,
            };
            match to_decoder.send_frame(to_decode) {
                Ok(()) => {}
                Err(NotTaken::Busy) => self.received.not_decoded += 1,
                Err(NotTaken::Ended) => return false,
            }
        }
        true
    }

    fn transmit(&mut self) {
        let next = self.next.as_mut().map(|next| &mut next.link);
        for link in [&mut self.link].into_iter().chain(next) {
            link.transmit(self.clock, &mut self.received, &mut self.send_errors);
        }
    }

    fn timeout(&self) -> Duration {
        let next = self
            .next
            .as_ref()
            .and_then(|next| next.link.session.poll_timeout());
        let due = self
            .link
            .session
            .poll_timeout()
            .into_iter()
            .chain(next)
            .min();
        let left = due.map(|due| due.saturating_since(self.clock.now()));
        left.map_or(STOP_POLL, |left| left.min(STOP_POLL))
    }

    /// Hands over what is left of the session, and adds its counts to those of all.
    fn end_session(&mut self) {
        let now = self.clock.now();
        self.link.session.finish(now);
        self.hand_over(now);
        self.link.add_to(&mut self.received);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, decode};
    use hawser_keys::TrackRole;
    use std::sync::mpsc;

    /// Returns a viewer's thread that asks at the address of a socket.
    fn network(publisher: &std::net::UdpSocket) -> Network {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("media.key");
        hawser_publish::generate_secret(&key).unwrap();
        let address = publisher.local_addr().unwrap().to_string();
        let config = Config::new(&address, key);
        let key = Keyring::open(&config.key, TrackRole::Reader).unwrap();
        let mut origin = Origin::parse(Some(&address)).unwrap();
        let connected = origin.find(&key.0, || false).unwrap();
        let (to_decoder, _) = decode::work();
        let clock = SteadyClock::start();
        let viewpoint = Viewpoint::open(&config, clock.now(), mpsc::channel().1).unwrap();
        Network::open(clock, origin, connected, key, viewpoint, to_decoder, None).unwrap()
    }

    fn publisher() -> std::net::UdpSocket {
        std::net::UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    #[test]
    fn missing_answers_are_logged_after_each_session_request() {
        let mut network = network(&publisher());
        let later = network.clock.now() + 10 * NO_ANSWER;
        network.link.session.again_at = Some(later);
        network.take_events(later).unwrap();
        assert_eq!(network.link.session.number, 1);
        assert_eq!(network.report_at, later + NO_ANSWER);
    }

    #[test]
    fn what_is_not_authentic_is_no_sign_of_the_publisher() {
        let publisher = publisher();
        let mut network = network(&publisher);
        let to = network.link.socket.local_address().unwrap();
        let heard = network.link.heard;
        for bytes in [&[0x41; 100][..], &[0; DEFAULT_DATAGRAM + 1]] {
            publisher.send_to(bytes, to).unwrap();
        }
        while network.received.refused.too_long == 0 {
            network.link.socket.wait(Some(STOP_POLL)).unwrap();
            network
                .link
                .receive(network.clock, &mut network.received)
                .unwrap();
        }
        assert_eq!(network.link.heard, heard);
        network.end_session();
        assert_eq!(network.received.refused.total(), 2);
    }
}
