mod config;
mod error;
mod session;
mod strangers;

pub use config::HostConfig;
pub use error::{HostError, HostStats};

use super::EndReason;
use super::allowance::Allowance;
use super::channel::{Channel, UsedUp};
use super::cookie::Cookies;
use crate::keys::Seed;
use hawser_packets::feedback::{ClockStamp, Feedback};
use hawser_packets::session::{
    Accept, Announcement, Goodbye, Hello, Kind, Message, Retry, Sealed, Status, Subscribe,
};
use hawser_units::{BoundedQueue, ByteSize, Instant};
use session::Session;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroU8;
use strangers::Strangers;

/// The maximum number of answers to one request, however often it is repeated.
const MAX_ACCEPTS: u8 = 4;

/// The maximum number of bytes of queued messages to viewers: 3000 of the longest ones.
const MESSAGES: ByteSize = ByteSize(4 << 20);

/// The sender's end of the sessions of all viewers.
///
/// A viewer gets only cookies until it has proved its address and the secret, and no media until it has
/// proved that it has the keys of the session.
#[derive(Debug)]
pub struct Host {
    config: HostConfig,
    broadcast: [u8; 16],
    cookies: Cookies,
    seed: Seed,
    opened: u64,
    /// The number of layers of each announced track.
    tracks: BTreeMap<u32, u8>,
    sessions: BTreeMap<u32, Session>,
    shared: SharedStatus,
    /// Messages of sessions.
    messages: BoundedQueue<(SocketAddr, Vec<u8>)>,
    strangers: Strangers,
    events: VecDeque<HostEvent>,
    stats: HostStats,
}

/// The part of a status that is the same for all viewers.
#[derive(Debug, Default)]
struct SharedStatus {
    hop: u16,
    publisher_ahead_nanos: i64,
    relays: Vec<u64>,
    epochs: Vec<(u32, u16)>,
}

/// An event of a [`Host`].
#[derive(Debug, Clone, PartialEq)]
pub enum HostEvent {
    /// A viewer has opened a session.
    Opened {
        /// The session.
        session: u32,
        /// The viewer's address.
        address: SocketAddr,
    },
    /// A viewer has selected tracks.
    Subscribed {
        /// The session.
        session: u32,
        /// The aliases, and the number of layers of each, as far as they were announced.
        tracks: Vec<(u32, u8)>,
        /// Whether one track of each name is enough, and the sender chooses.
        any_encoding: bool,
    },
    /// A viewer has reported. The sender answers with [`Host::send_status`].
    Report {
        /// The session.
        session: u32,
        /// The number of the message.
        number: u64,
        /// The report.
        report: Feedback,
    },
    /// A session has ended.
    Ended {
        /// The session.
        session: u32,
        /// The reason.
        reason: EndReason,
    },
}

impl Host {
    /// Creates a host without sessions.
    pub fn new(config: HostConfig) -> Self {
        Host {
            cookies: Cookies::new(config.seed.part(b"cookies"), config.cookie_lifetime),
            seed: config.seed.part(b"sessions"),
            strangers: Strangers::new(&config.seed),
            broadcast: config.access.broadcast(),
            tracks: layers_by_alias(&config.announcement),
            config,
            opened: 0,
            sessions: BTreeMap::new(),
            shared: SharedStatus::default(),
            messages: BoundedQueue::new(MESSAGES),
            events: VecDeque::new(),
            stats: HostStats::default(),
        }
    }

    /// Returns the publisher's announcement with its authenticator.
    pub fn announced(&self) -> &[u8] {
        &self.config.announcement
    }

    /// Sets the numbers of the keys in use, for viewers that join and for the next status.
    /// `epochs` is ascending by alias.
    pub fn set_keys(&mut self, hop: u16, epochs: Vec<(u32, u16)>) {
        self.shared.hop = hop;
        self.shared.epochs = epochs;
    }

    /// Sets the publisher's clock less the own one; it is 0 at the publisher.
    pub fn set_publisher_clock(&mut self, ahead_nanos: i64) {
        self.shared.publisher_ahead_nanos = ahead_nanos;
    }

    /// Sets the relays between the publisher and the viewers, the publisher's neighbour first; there are
    /// none at the publisher.
    pub fn set_relays(&mut self, relays: Vec<u64>) {
        self.shared.relays = relays;
    }

    /// Takes a datagram from an address.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        datagram: &[u8],
    ) -> Result<(), HostError> {
        let message = Message::parse(datagram).map_err(HostError::from);
        let taken = message.and_then(|message| match message {
            Message::Hello(hello) => self.handle_hello(now, from, &hello),
            Message::Retry(_) => Err(HostError::Unexpected),
            Message::Sealed(sealed) => self.handle_sealed(now, from, &sealed),
        });
        taken.inspect_err(|error| self.stats.count(error))
    }

    /// Tells a viewer clock and keys.
    pub fn send_status(&mut self, session: u32, clock: ClockStamp) {
        let Some(open) = self.sessions.get_mut(&session) else {
            return;
        };
        let status = self
            .shared
            .status(clock, open.subscription, self.config.report_interval_ms);
        let sealed = open.channel.seal(Kind::Status, status.emit());
        self.send_or_end(session, sealed);
    }

    /// Records that a report was the first to acknowledge packets: the viewer may send more
    /// messages.
    pub fn handle_acknowledged(&mut self, session: u32, packets: usize) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.allowance.earn(packets);
        }
    }

    /// Ends a session, without an event.
    pub fn close(&mut self, session: u32, reason: Goodbye) {
        self.send_goodbye(session, reason);
        self.sessions.remove(&session);
    }

    /// Ends all sessions, without events. Their viewers are told, whether they have selected tracks or not.
    pub fn close_all(&mut self, reason: Goodbye) {
        let sessions: Vec<u32> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.close(session, reason);
        }
    }

    /// Returns the next datagram and the address to which it is sent.
    pub fn poll_transmit(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.poll_message().or_else(|| self.poll_answer())
    }

    /// Returns the next datagram to a verified address. It has priority over media.
    pub fn poll_message(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.messages.pop()
    }

    /// Returns the next datagram to an unverified address. Media has priority over it.
    pub fn poll_answer(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.strangers.poll_answer()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// Returns the next time at which [`Host::handle_timeout`] has to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sessions = self.sessions.values();
        sessions.map(|session| session.ends_at(&self.config)).min()
    }

    /// Ends sessions that have timed out.
    pub fn handle_timeout(&mut self, now: Instant) {
        let config = &self.config;
        let silent = self
            .sessions
            .iter()
            .filter(|(_, session)| session.ends_at(config) <= now);
        let silent: Vec<u32> = silent.map(|(number, _)| *number).collect();
        for session in silent {
            self.end(session, EndReason::TimedOut);
        }
    }

    /// Returns the viewer's address.
    pub fn address(&self, session: u32) -> Option<SocketAddr> {
        self.sessions.get(&session).map(|session| session.address)
    }

    /// Returns the number of sessions, with those that are not confirmed.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the counts.
    pub const fn stats(&self) -> HostStats {
        HostStats {
            not_sent: self.messages.refused().total() + self.strangers.refused().total(),
            ..self.stats
        }
    }

    fn handle_hello(
        &mut self,
        now: Instant,
        from: SocketAddr,
        hello: &Hello,
    ) -> Result<(), HostError> {
        if hello.broadcast != self.broadcast {
            return Err(HostError::Unauthorised);
        }
        let random = &hello.viewer_random;
        let has_cookie = self.cookies.accept(now, from, random, &hello.cookie);
        // Before any step that costs more than sending the request.
        if !self.strangers.has_share(now, from, has_cookie) {
            return Err(HostError::TooManyRequests);
        }
        if !self.config.access.has_made(hello) {
            return Err(HostError::Unauthorised);
        }
        self.strangers.take(now, from, has_cookie);
        if !has_cookie {
            self.retry(now, from, random);
            return Ok(());
        }
        let mut sessions = self.sessions.iter();
        let known = sessions.find(|(_, s)| s.address == from && s.randoms[0] == *random);
        match known.map(|(number, _)| *number) {
            Some(session) => self.accept(now, session),
            None => self.open(now, from, random),
        }
    }

    fn retry(&mut self, now: Instant, from: SocketAddr, random: &[u8; 16]) {
        let retry = Retry {
            viewer_random: *random,
            cookie: self.cookies.make(now, from, random),
        };
        self.stats.retries += 1;
        self.strangers.answer(from, retry.emit());
    }

    fn open(&mut self, now: Instant, from: SocketAddr, viewer: &[u8; 16]) -> Result<(), HostError> {
        if self.sessions.len() >= self.config.sessions {
            self.make_room(now)?;
        }
        self.opened += 1;
        let number = self.opened as u32;
        let randoms = [*viewer, self.seed.mac(&[&self.opened.to_be_bytes()])];
        let keys = self.config.access.session(&randoms);
        let session = Session {
            address: from,
            randoms,
            channel: Channel::of_sender(number, keys),
            allowance: Allowance::new(),
            accepts: 0,
            is_confirmed: false,
            heard: now,
            subscription: 0,
            subscribed_by: None,
        };
        self.sessions.insert(number, session);
        self.stats.accepted += 1;
        self.accept(now, number)
    }

    /// Ends the session that has been silent for too long first, if there is one.
    fn make_room(&mut self, now: Instant) -> Result<(), HostError> {
        let yields =
            |(number, session): (&u32, &Session)| (session.yields_at(&self.config), *number);
        let first = self.sessions.iter().map(yields).min();
        let (_, silent) = first
            .filter(|(yields, _)| *yields <= now)
            .ok_or(HostError::Full)?;
        self.stats.displaced += 1;
        self.end(silent, EndReason::Displaced);
        Ok(())
    }

    /// Sends the answer to a request.
    fn accept(&mut self, now: Instant, number: u32) -> Result<(), HostError> {
        let session = self.sessions.get_mut(&number);
        let session = session.ok_or(HostError::UnknownSession)?;
        if session.accepts == MAX_ACCEPTS || session.is_confirmed {
            return Err(HostError::Unexpected);
        }
        session.accepts += 1;
        let clock = ClockStamp {
            sent: now,
            echo: None,
        };
        let accept = Accept {
            status: self
                .shared
                .status(clock, session.subscription, self.config.report_interval_ms),
            hop_salt: self.config.hop_salt,
            announcement: &self.config.announcement,
        };
        let randoms = Some(session.randoms);
        let sealed = session
            .channel
            .seal_with(Kind::Accept, randoms, accept.emit());
        self.send_or_end(number, sealed);
        Ok(())
    }

    fn handle_sealed(
        &mut self,
        now: Instant,
        from: SocketAddr,
        sealed: &Sealed<'_>,
    ) -> Result<(), HostError> {
        let session = self.sessions.get_mut(&sealed.session);
        let session = session
            .filter(|session| session.address == from)
            .ok_or(HostError::UnknownSession)?;
        if !session.allowance.has_room(now) {
            return Err(HostError::TooMany);
        }
        let plaintext = session.channel.open(sealed)?;
        // Only authentic messages are charged: others cannot use up the viewer's allowance.
        let length = Sealed::LEN + sealed.ciphertext.len();
        session.allowance.take(now, length);
        session.heard = now;
        if !session.is_confirmed {
            self.confirm(sealed.session);
        }
        self.handle_plaintext(sealed, &plaintext)
    }

    fn handle_plaintext(&mut self, sealed: &Sealed<'_>, plaintext: &[u8]) -> Result<(), HostError> {
        let Sealed {
            session, number, ..
        } = *sealed;
        match sealed.kind {
            Kind::Subscribe => self.handle_subscribe(sealed, plaintext)?,
            Kind::Feedback => {
                let report = Feedback::parse(plaintext)?;
                self.events.push_back(HostEvent::Report {
                    session,
                    number,
                    report,
                });
            }
            Kind::Goodbye => {
                let reason = Goodbye::parse(plaintext)?;
                self.end(session, EndReason::Left(reason));
            }
            _ => return Err(HostError::Unexpected),
        }
        Ok(())
    }

    /// Begins a session whose viewer has proved that it has the keys, in place of an earlier one.
    fn confirm(&mut self, number: u32) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        session.is_confirmed = true;
        let address = session.address;
        let others = self.sessions.iter();
        let others = others.filter(|(other, s)| **other != number && s.address == address);
        let others: Vec<u32> = others.map(|(other, _)| *other).collect();
        for other in others {
            self.end(other, EndReason::Replaced);
        }
        self.events.push_back(HostEvent::Opened {
            session: number,
            address,
        });
    }

    fn handle_subscribe(&mut self, sealed: &Sealed<'_>, plaintext: &[u8]) -> Result<(), HostError> {
        let Subscribe {
            number,
            tracks,
            any_encoding,
        } = Subscribe::parse(plaintext)?;
        let session = self.sessions.get_mut(&sealed.session);
        let session = session.ok_or(HostError::UnknownSession)?;
        let is_newer = session.subscribed_by < Some(sealed.number);
        if is_newer {
            session.subscribed_by = Some(sealed.number);
        }
        if is_newer && session.subscription != number {
            session.subscription = number;
            let announced = |(alias, layers): (u32, u8)| {
                let announced = *self.tracks.get(&alias)?;
                Some((alias, layers.min(announced)))
            };
            let tracks = tracks.into_iter().filter_map(announced).collect();
            self.events.push_back(HostEvent::Subscribed {
                session: sealed.session,
                tracks,
                any_encoding,
            });
        }
        Ok(())
    }

    fn send_or_end(&mut self, session: u32, sealed: Result<Vec<u8>, UsedUp>) {
        match (sealed, self.address(session)) {
            (Ok(datagram), Some(address)) => self.send(address, datagram),
            _ => {
                self.send_goodbye(session, Goodbye::Restarting);
                self.end(session, EndReason::KeyUsedUp);
            }
        }
    }

    fn send_goodbye(&mut self, session: u32, reason: Goodbye) {
        if let Some(open) = self.sessions.get_mut(&session)
            && let Ok(goodbye) = open.channel.seal(Kind::Goodbye, reason.emit().to_vec())
        {
            let address = open.address;
            self.send(address, goodbye);
        }
    }

    /// Adds a message. The queue counts a message that it has no room for, which then counts as lost.
    fn send(&mut self, to: SocketAddr, message: Vec<u8>) {
        let _ = self.messages.push((to, message));
    }

    fn end(&mut self, session: u32, reason: EndReason) {
        let ended = self.sessions.remove(&session);
        // A session that was not confirmed had no event.
        if ended.is_some_and(|ended| ended.is_confirmed) {
            self.events.push_back(HostEvent::Ended { session, reason });
        }
    }
}

/// Returns the number of layers of each track of an announcement with its authenticator; none if it is not
/// valid.
fn layers_by_alias(announced: &[u8]) -> BTreeMap<u32, u8> {
    let parsed =
        Announcement::split(announced).and_then(|(covered, _)| Announcement::parse(covered));
    let tracks = parsed.map(|announcement| announcement.tracks);
    let tracks = tracks.unwrap_or_default().into_iter();
    tracks.map(|track| (track.alias, track.layers)).collect()
}

impl SharedStatus {
    fn status(&self, clock: ClockStamp, subscription: u8, report_interval_ms: NonZeroU8) -> Status {
        Status {
            clock,
            publisher_ahead_nanos: self.publisher_ahead_nanos,
            hop: self.hop,
            subscription,
            report_interval_ms,
            relays: self.relays.clone(),
            epochs: self.epochs.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::TrackSecret;

    #[test]
    fn a_viewer_is_told_when_the_key_of_its_session_is_used_up() {
        let access = TrackSecret::new([1; 32]).access();
        let keys = || access.session(&[[2; 16]; 2]);
        let config = HostConfig::new(access.clone(), Vec::new(), [3; 16], Seed::new([4; 32]));
        let mut host = Host::new(config);
        let mut channel = Channel::of_sender(1, keys());
        channel.use_up();
        let session = Session {
            address: ([192, 0, 2, 1], 9).into(),
            randoms: [[2; 16]; 2],
            channel,
            allowance: Allowance::new(),
            accepts: 1,
            is_confirmed: true,
            heard: Instant::ZERO,
            subscription: 0,
            subscribed_by: None,
        };
        host.sessions.insert(1, session);
        let clock = ClockStamp {
            sent: Instant::ZERO,
            echo: None,
        };
        host.send_status(1, clock);
        host.send_status(1, clock);
        let mut viewer = Channel::of_viewer(1, keys());
        let sent = std::iter::from_fn(|| host.poll_transmit());
        let opened = sent.map(|(_, datagram)| match Message::parse(&datagram) {
            Ok(Message::Sealed(sealed)) => (sealed.kind, viewer.open(&sealed).unwrap()),
            other => panic!("{other:?}"),
        });
        let opened: Vec<(Kind, Vec<u8>)> = opened.collect();
        let goodbye = Goodbye::Restarting.emit().to_vec();
        assert_eq!(opened[0].0, Kind::Status);
        assert_eq!(opened[1..], [(Kind::Goodbye, goodbye)]);
        let ended = HostEvent::Ended {
            session: 1,
            reason: EndReason::KeyUsedUp,
        };
        assert_eq!(host.poll_event(), Some(ended));
    }
}
