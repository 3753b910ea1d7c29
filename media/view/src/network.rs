//! The thread that has the socket: session, reassembly, reports.

use crate::decode::{FrameToDecode, NotTaken, ToDecoder};
use crate::experience::Experienced;
use crate::measured::CaptureInterval;
use crate::metrics::Figures;
use crate::session::Session;
use crate::summary::Received;
use crate::viewpoint::Viewpoint;
use anyhow::Context;
use hawser_experience::{Packet, Protocol};
use hawser_io::clock::SteadyClock;
use hawser_io::failures::Kinds;
use hawser_io::peer::connected_to;
use hawser_io::udp::{self, UdpSocket};
use hawser_keys::{Contact, Keyring, Origin, Secret};
use hawser_objects::{EndReason, FrameStats, IPV6_UDP, TrackSecret, ViewerEvent};
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_packets::session::Goodbye;
use hawser_units::{Ecn, Instant};
use parking_lot::Mutex;
use std::io::ErrorKind;
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
    /// The address of the newest session.
    publisher: SocketAddr,
    keyring: Keyring,
    secret: TrackSecret,
    viewpoint: Viewpoint,
    socket: UdpSocket,
    session: Session,
    to_decoder: Option<ToDecoder>,
    received: Received,
    figures: Option<Arc<Mutex<Figures>>>,
    next_figures: Instant,
    experience: Option<Experienced>,
    /// The counts of a session that the experience has.
    experienced: (u64, FrameStats),
    interval: CaptureInterval,
    /// The time of the warning that there is no answer.
    report_at: Instant,
    /// The time at which the newest datagram was handled.
    handled: Instant,
    /// The time of the warning that no media arrive, if none have in this session.
    media_by: Option<Instant>,
    /// The arrival of the newest authentic datagram.
    heard: Instant,
    /// The beginning of the newest request for a session.
    asked: Instant,
    /// Whether the network has said that nobody receives at the address since the newest authentic datagram.
    is_refused: bool,
    /// When to look again whether the own address has changed.
    look_at: Instant,
    /// The kinds of errors of sending that have occurred.
    send_errors: Kinds,
    /// The last error of the network on the way to the publisher.
    unreachable: Option<String>,
}

impl Network {
    /// Takes a socket that is connected to an address of the publisher.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(crate) fn open(
        clock: SteadyClock,
        origin: Origin,
        (socket, publisher): (UdpSocket, SocketAddr),
        (keyring, secret): (Keyring, Secret),
        viewpoint: Viewpoint,
        to_decoder: ToDecoder,
        figures: Option<Arc<Mutex<Figures>>>,
    ) -> anyhow::Result<Self> {
        let secret = TrackSecret::new(*secret);
        Ok(Network {
            session: Session::new(
                0,
                &secret,
                viewpoint.reported(clock.now()),
                viewpoint.encoding(),
            )?,
            clock,
            publisher,
            origin,
            keyring,
            secret,
            viewpoint,
            socket,
            to_decoder: Some(to_decoder),
            received: Received::default(),
            figures,
            next_figures: clock.now(),
            experience: None,
            experienced: (0, FrameStats::default()),
            interval: CaptureInterval::default(),
            report_at: clock.now() + NO_ANSWER,
            media_by: None,
            handled: clock.now(),
            heard: clock.now(),
            asked: clock.now(),
            is_refused: false,
            look_at: clock.now(),
            send_errors: Kinds::default(),
            unreachable: None,
        })
    }

    /// Reports the experience at this socket.
    pub(crate) fn reporting_to(self, socket: Option<&PathBuf>) -> Self {
        Network {
            experience: socket.cloned().map(Experienced::new),
            ..self
        }
    }

    /// Runs until `is_over`.
    pub(crate) fn run(&mut self, is_over: impl Fn() -> bool) -> anyhow::Result<()> {
        udp::wake_precisely();
        while !is_over() {
            self.receive()?;
            let now = self.clock.now();
            self.take_secret(now)?;
            self.session.handle_timeout(now);
            self.take_events(now)?;
            self.look(now);
            if !self.hand_over(now) {
                // The decoder has failed, and says why.
                return Ok(());
            }
            self.transmit();
            self.update_figures(now);
            self.report(now);
            self.socket
                .wait(Some(self.timeout()))
                .context("cannot wait")?;
        }
        Ok(())
    }

    /// Leaves the session, and returns the counts.
    pub(crate) fn finish(&mut self) -> Received {
        self.end_session();
        self.session.viewer.close(Goodbye::Ended);
        self.transmit();
        self.to_decoder = None;
        self.received.kernel_drops += u64::from(self.socket.drops().unwrap_or_default());
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
        self.session.viewer.set_pose(pose);
        if has_changed {
            let (publisher, is_looked_at) = (self.publisher, self.viewpoint.is_looked_at());
            let layers = self.viewpoint.layers();
            tracing::debug!(%publisher, is_looked_at, layers, "selecting layers");
            self.session.select(now, layers);
        }
    }

    /// Takes a secret that the controller has replaced. An open session continues until the publisher ends it.
    fn take_secret(&mut self, now: Instant) -> anyhow::Result<()> {
        if let Some(secret) = self.keyring.poll()? {
            self.secret = TrackSecret::new(*secret);
            if !self.session.is_open() {
                self.session.again_at = Some(now);
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        let Network {
            clock,
            socket,
            session,
            received,
            handled,
            heard,
            is_refused,
            ..
        } = self;
        let taken = socket.receive(|datagram| {
            if datagram.bytes.len() > DEFAULT_DATAGRAM {
                received.refused.too_long += 1;
                return;
            }
            // Never before what was handled already, whatever happens to the time of day.
            *handled = (clock.now() - datagram.age).max(*handled);
            let viewer = &mut session.viewer;
            match viewer.handle_datagram(*handled, datagram.bytes, datagram.ecn) {
                Ok(()) => {
                    *heard = *handled;
                    *is_refused = false;
                    received.longest = received.longest.max(datagram.bytes.len());
                }
                Err(error) => tracing::debug!("datagram refused: {error}"),
            }
        });
        match taken {
            Ok(_) => Ok(()),
            // The network says that the publisher cannot be reached at the moment.
            Err(error) if udp::is_of_a_peer(&error) => {
                self.received.unreachable += 1;
                self.unreachable = Some(error.to_string());
                self.is_refused |= error.kind() == ErrorKind::ConnectionRefused;
                Ok(())
            }
            Err(error) => Err(error).context("cannot receive"),
        }
    }

    fn take_events(&mut self, now: Instant) -> anyhow::Result<()> {
        if self.session.is_open() {
            self.report_at = now + NO_ANSWER;
        }
        while let Some(event) = self.session.viewer.poll_event() {
            match event {
                ViewerEvent::Opened(announcement) => {
                    self.end_replaced(now);
                    self.viewpoint.begin_again(now);
                    self.media_by = Some(now + NO_MEDIA);
                    self.received.sessions += 1;
                    tracing::info!(publisher = %self.publisher, tracks = announcement.tracks.len(), "session opened");
                    self.session
                        .subscribe(now, announcement, self.viewpoint.layers());
                }
                ViewerEvent::Ended(reason) => self.ended(now, reason),
            }
        }
        self.look_for_media(now);
        if self.session.is_open() && self.has_moved(now) {
            tracing::warn!(publisher = %self.publisher, "the own address has changed; asking for another session");
            self.session.again_at = Some(now);
        }
        self.choose(now);
        if self.session.again_at.is_some_and(|at| at <= now) {
            self.begin_again(now)?;
        }
        if !self.session.is_open() && self.report_at <= now {
            self.report_at = now + NO_ANSWER * 10;
            let (publisher, network) = (self.publisher, self.unreachable.take());
            tracing::warn!(%publisher, network, "no answer: is `hawser publish` or a relay running there with the same key, and has it room for one more viewer?");
        }
        Ok(())
    }

    /// Asks for a session at another source, if the controller names one and this one is of no use, or if the
    /// stream comes from the publisher and a relay has room.
    fn choose(&mut self, now: Instant) {
        let publisher = self.publisher;
        let receiver = self.session.viewer.receiver();
        let contact = Contact {
            address: publisher,
            is_open: self.session.is_open(),
            is_refused: self.is_refused,
            silence: now.saturating_since(self.heard.max(self.asked)),
            packets: receiver.map_or(0, |receiver| receiver.totals().packets),
            wants_media: self.viewpoint.layers() > 0,
        };
        if self.origin.has_to_leave(&self.keyring, &contact) {
            self.session.again_at = Some(now);
        } else if self.session.is_open() && self.origin.has_better(publisher) {
            tracing::info!(%publisher, "a relay has room; leaving the publisher");
            self.session.viewer.close(Goodbye::Ended);
            self.transmit();
            self.session.again_at = Some(now);
        }
    }

    /// Tells the user if messages arrive and packets of media do not: those are longer.
    fn look_for_media(&mut self, now: Instant) {
        let Some(receiver) = self.session.viewer.receiver() else {
            return;
        };
        if receiver.totals().packets > 0 || !self.session.is_open() {
            self.media_by = None;
        } else if self.media_by.is_some_and(|by| by <= now) {
            self.media_by = None;
            tracing::warn!(publisher = %self.publisher, "the session is open, but no packet of media arrives: does the path carry packets of {MEDIA_MTU} bytes?");
        }
    }

    /// Hands over the rest of a session that another one has replaced.
    fn end_replaced(&mut self, now: Instant) {
        let Some(receiver) = self.session.viewer.take_replaced() else {
            return;
        };
        tracing::warn!(publisher = %self.publisher, "the publisher has started again");
        self.session.assembler.finish(now);
        self.hand_over(now);
        self.received.add_receiver(&receiver);
        self.received.frames += *self.session.assembler.stats();
        self.session.number += 1;
    }

    fn ended(&mut self, now: Instant, reason: EndReason) {
        self.session.again_at = Some(now + PAUSE);
        self.keyring.ask_now();
        if self.session.was_open() {
            let publisher = self.publisher;
            tracing::warn!(%publisher, %reason, "session ended; asking for another one");
        }
    }

    /// Returns whether packets to the publisher would leave from another address than that of the session,
    /// from which nothing has arrived for some time.
    fn has_moved(&mut self, now: Instant) -> bool {
        if now < self.look_at.max(self.heard + QUIET) {
            return false;
        }
        self.look_at = now + LOOK;
        let address = |socket: &UdpSocket| socket.local_address().ok().map(|address| address.ip());
        let new = connected_to(self.publisher).ok();
        new.is_some_and(|new| address(&new) != address(&self.socket))
    }

    /// Asks for a new session, at the next address if this one has not answered. The socket is a new
    /// one, because the viewer's own address may have changed.
    fn begin_again(&mut self, now: Instant) -> anyhow::Result<()> {
        if !self.session.was_open() {
            self.origin.pass_over(self.publisher);
        }
        self.origin.refresh();
        match self.origin.connect() {
            Ok((socket, publisher)) => {
                self.received.kernel_drops += u64::from(self.socket.drops().unwrap_or_default());
                self.socket = socket;
                self.publisher = publisher;
                self.end_session();
                let number = self.session.number + 1;
                let pose = self.viewpoint.reported(now);
                self.session = Session::new(number, &self.secret, pose, self.viewpoint.encoding())?;
                (self.asked, self.is_refused) = (now, false);
                self.report_at = self.report_at.max(now + NO_ANSWER);
            }
            Err(error) => {
                self.received.unreachable += 1;
                self.unreachable = Some(format!("{error:#}"));
                self.session.again_at = Some(now + PAUSE);
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
        let session = &self.session;
        let mut received = self.received;
        received.add(&session.viewer, session.assembler.stats());
        received.kernel_drops += u64::from(self.socket.drops().unwrap_or_default());
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
        let frames = *self.session.assembler.stats();
        let (session, before) = self.experienced;
        let before = if session == self.session.number {
            before
        } else {
            FrameStats::default()
        };
        self.experienced = (self.session.number, frames);
        experience.handle_late(
            frames.undecodable.saturating_sub(before.undecodable),
            frames.without_track.saturating_sub(before.without_track),
        );
        if !self.session.is_open() || self.viewpoint.layers() == 0 {
            experience.handle_pause();
        }
        let (publisher, socket) = (self.publisher, &self.socket);
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
        let session = self.session.number;
        for (object, bytes) in self.session.chunks.drain(..) {
            to_decoder.send_chunk(session, object, bytes);
        }
        while let Some(frame) = self.session.assembler.poll_frame() {
            let captured = self.session.captured(now, &frame);
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
                deadline: self.session.deadline(now, &frame),
                tracks: Arc::clone(&self.session.tracks),
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
        while let Some(message) = self.session.viewer.poll_transmit(self.clock.now()) {
            if let Err(error) = self.socket.send(self.publisher, Ecn::NotEct, &message) {
                // Messages are repeated, and reports follow each other.
                self.is_refused |= error.kind() == ErrorKind::ConnectionRefused;
                self.received.send_failures += 1;
                if self.send_errors.is_new(&error) {
                    tracing::warn!(publisher = %self.publisher, "cannot send: {error}; further such errors are counted only");
                }
            }
        }
    }

    fn timeout(&self) -> Duration {
        let due = self.session.poll_timeout();
        let left = due.map(|due| due.saturating_since(self.clock.now()));
        left.map_or(STOP_POLL, |left| left.min(STOP_POLL))
    }

    /// Hands over what is left of the session, and adds its counts to those of all.
    fn end_session(&mut self) {
        let now = self.clock.now();
        self.session.finish(now);
        self.hand_over(now);
        let Session {
            viewer, assembler, ..
        } = &self.session;
        self.received.add(viewer, assembler.stats());
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
        network.session.again_at = Some(later);
        network.take_events(later).unwrap();
        assert_eq!(network.session.number, 1);
        assert_eq!(network.report_at, later + NO_ANSWER);
    }

    #[test]
    fn what_is_not_authentic_is_no_sign_of_the_publisher() {
        let publisher = publisher();
        let mut network = network(&publisher);
        let to = network.socket.local_address().unwrap();
        let heard = network.heard;
        for bytes in [&[0x41; 100][..], &[0; DEFAULT_DATAGRAM + 1]] {
            publisher.send_to(bytes, to).unwrap();
        }
        while network.received.refused.too_long == 0 {
            network.socket.wait(Some(STOP_POLL)).unwrap();
            network.receive().unwrap();
        }
        assert_eq!(network.heard, heard);
        network.end_session();
        assert_eq!(network.received.refused.total(), 2);
    }
}
