use super::EndReason;
use super::channel::{Channel, OpenError, UsedUp};
use crate::keys::TrackSecret;
use crate::receiver::{Receiver, ReceiverConfig, ReceiverEvent};
use crate::refusal::Refusal;
use hawser_units::{Ecn, Instant};
use hawser_wire::feedback::Pose;
use hawser_wire::media::VERSION;
use hawser_wire::session::{
    Accept, Announcement, COOKIE, Goodbye, Hello, Kind, MAC, Message, MessageError, Retry, Sealed,
    Status, Subscribe,
};
use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

/// The number of cookies that a viewer answers, so that it is not made to send without end.
const MAX_COOKIES: u8 = 8;

/// The settings of a [`Viewer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewerConfig {
    /// The settings of the receiver.
    pub receiver: ReceiverConfig,
    /// The time after which a request is repeated at first. It doubles up to eight times that.
    pub retry: Duration,
    /// The time without an authentic datagram after which the session has ended.
    pub idle: Duration,
}

/// A viewer's session: asks for it, receives, reports.
#[derive(Debug)]
pub struct Viewer {
    config: ViewerConfig,
    secret: TrackSecret,
    state: State,
    pose: Option<Pose>,
    outgoing: VecDeque<Vec<u8>>,
    events: VecDeque<ViewerEvent>,
    stats: ViewerStats,
}

#[derive(Debug)]
enum State {
    Asking(Asking),
    Open(Box<Open>),
    /// With what is left of a session that was open.
    Ended(Option<Box<Open>>),
}

/// A session that the sender has not opened.
#[derive(Debug)]
struct Asking {
    random: [u8; 16],
    cookie: [u8; COOKIE],
    cookies: u8,
    /// The time of the next request, and the time after it.
    due: Instant,
    backoff: Duration,
    started: Option<Instant>,
}

#[derive(Debug)]
struct Open {
    channel: Channel,
    receiver: Receiver,
    heard: Instant,
    wanted: Option<Subscribe>,
    repeat_at: Option<Instant>,
}

/// An event of a [`Viewer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewerEvent {
    /// The session is open. Nothing is sent until the viewer subscribes.
    Opened(Announcement),
    /// The session has ended.
    Ended(EndReason),
}

/// The reason why a viewer does not take a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ViewerError {
    /// A packet of media was refused.
    #[error(transparent)]
    Packet(#[from] Refusal),
    /// The message is not valid.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A message of the session cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The datagram is not expected now, or not from a sender.
    #[error("the datagram is not expected now")]
    Unexpected,
}

/// Counts of a [`Viewer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ViewerStats {
    /// Messages that were not valid.
    pub invalid: u64,
    /// Datagrams refused with [`OpenError::Forged`].
    pub forged: u64,
    /// Datagrams refused with [`OpenError::Replayed`].
    pub replayed: u64,
    /// Datagrams refused with [`ViewerError::Unexpected`].
    pub unexpected: u64,
    /// Time stamps of the sender that are impossible.
    pub impossible_times: u64,
}

impl Default for ViewerConfig {
    fn default() -> Self {
        ViewerConfig {
            receiver: ReceiverConfig::default(),
            retry: Duration::from_millis(250),
            idle: Duration::from_secs(10),
        }
    }
}

impl Viewer {
    /// Creates a viewer that asks for a session. `random` has 16 random bytes, new for each session.
    pub fn new(config: ViewerConfig, secret: TrackSecret, random: [u8; 16]) -> Self {
        let asking = Asking {
            random,
            cookie: [0; COOKIE],
            cookies: 0,
            due: Instant::ZERO,
            backoff: config.retry,
            started: None,
        };
        Viewer {
            config,
            secret,
            state: State::Asking(asking),
            pose: None,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            stats: ViewerStats::default(),
        }
    }

    /// Takes a datagram from the sender's address, with its ECN field.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        datagram: &[u8],
        ecn: Ecn,
    ) -> Result<(), ViewerError> {
        let taken = match (&mut self.state, datagram.first()) {
            (State::Open(open), Some(&VERSION)) => {
                let taken = open.receiver.handle_packet(now, datagram, ecn);
                open.heard = if taken.is_ok() { now } else { open.heard };
                return Ok(taken?);
            }
            (_, Some(&VERSION)) => Err(ViewerError::Unexpected),
            _ => self.handle_message(now, datagram),
        };
        taken.inspect_err(|error| self.stats.count(error))
    }

    /// Selects the tracks and the number of their layers, once the session is open.
    pub fn subscribe(&mut self, now: Instant, tracks: Vec<(u32, u8)>) {
        if let State::Open(open) = &mut self.state {
            let number = open.wanted.as_ref().map_or(0, |wanted| wanted.number);
            // Zero is the number before the first selection.
            let number = number.wrapping_add(1).max(1);
            open.wanted = Some(Subscribe { number, tracks });
            open.repeat_at = Some(now);
        }
    }

    /// Sets the pose that reports have.
    pub fn set_pose(&mut self, pose: Option<Pose>) {
        self.pose = pose;
    }

    /// Leaves the session.
    pub fn close(&mut self, reason: Goodbye) {
        if let State::Open(open) = &mut self.state
            && let Ok(goodbye) = open.channel.seal(Kind::Goodbye, reason.emit().to_vec())
        {
            self.outgoing.push_back(goodbye);
        }
        self.end_state();
    }

    /// Returns the next datagram to the sender.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        if let Some(datagram) = self.outgoing.pop_front() {
            return Some(datagram);
        }
        let made = match &mut self.state {
            State::Asking(asking) => Ok(asking.poll_hello(now, &self.secret, self.config.retry)),
            State::Open(open) => open.poll_message(now, self.pose, self.config.retry),
            State::Ended(_) => Ok(None),
        };
        made.unwrap_or_else(|UsedUp| {
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
        match &mut self.state {
            State::Open(open) | State::Ended(Some(open)) => open.receiver.poll_event(),
            _ => None,
        }
    }

    /// Returns the next time at which [`Viewer::handle_timeout`] and [`Viewer::poll_transmit`] have
    /// to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Asking(asking) => Some(asking.due),
            State::Open(open) => {
                let times = [Some(open.heard + self.config.idle), open.repeat_at];
                let times = times.into_iter().chain([open.receiver.poll_timeout()]);
                times.flatten().min()
            }
            State::Ended(_) => None,
        }
    }

    /// Gives up late objects, and the session if nothing comes.
    pub fn handle_timeout(&mut self, now: Instant) {
        let last = match &mut self.state {
            State::Asking(asking) => *asking.started.get_or_insert(now),
            State::Open(open) => {
                open.receiver.handle_timeout(now);
                open.heard
            }
            State::Ended(_) => return,
        };
        if now.saturating_since(last) >= self.config.idle {
            self.end(EndReason::TimedOut);
        }
    }

    /// Returns the receiver of a session that is open, or was when it ended.
    pub fn receiver(&self) -> Option<&Receiver> {
        match &self.state {
            State::Open(open) | State::Ended(Some(open)) => Some(&open.receiver),
            _ => None,
        }
    }

    /// Returns the counts.
    pub const fn stats(&self) -> &ViewerStats {
        &self.stats
    }

    fn handle_message(&mut self, now: Instant, datagram: &[u8]) -> Result<(), ViewerError> {
        match (Message::parse(datagram)?, &mut self.state) {
            (Message::Retry(retry), State::Asking(asking)) => asking.handle_retry(now, &retry),
            (Message::Sealed(sealed), State::Asking(_)) => self.handle_accept(now, &sealed),
            (Message::Sealed(sealed), State::Open(_)) => self.handle_sealed(now, &sealed),
            _ => Err(ViewerError::Unexpected),
        }
    }

    fn handle_accept(&mut self, now: Instant, sealed: &Sealed<'_>) -> Result<(), ViewerError> {
        let State::Asking(asking) = &self.state else {
            return Err(ViewerError::Unexpected);
        };
        let is_answer = |randoms: &[[u8; 16]; 2]| randoms[0] == asking.random;
        let randoms = sealed.randoms.filter(is_answer);
        let randoms = randoms.ok_or(ViewerError::Unexpected)?;
        let keys = self.secret.access().session(&randoms);
        let mut channel = Channel::of_viewer(sealed.session, keys);
        let plaintext = channel.open(sealed)?;
        let accept = Accept::parse(&plaintext)?;
        let announcement = self.secret.verify(accept.announcement)?;
        let receiver = Receiver::new(self.config.receiver, &self.secret, &announcement, &accept);
        self.state = State::Open(Box::new(Open {
            channel,
            receiver,
            heard: now,
            wanted: None,
            repeat_at: None,
        }));
        self.events.push_back(ViewerEvent::Opened(announcement));
        Ok(())
    }

    fn handle_sealed(&mut self, now: Instant, sealed: &Sealed<'_>) -> Result<(), ViewerError> {
        let State::Open(open) = &mut self.state else {
            return Err(ViewerError::Unexpected);
        };
        let plaintext = open.channel.open(sealed)?;
        open.heard = now;
        match sealed.kind {
            Kind::Status => {
                let status = Status::parse(&plaintext)?;
                let is_possible = open.handle_status(now, &status);
                self.stats.impossible_times += u64::from(!is_possible);
            }
            Kind::Goodbye => {
                let reason = Goodbye::parse(&plaintext)?;
                self.end(EndReason::Left(reason));
            }
            // A repeated answer to a repeated request.
            Kind::Accept => {}
            _ => return Err(ViewerError::Unexpected),
        }
        Ok(())
    }

    fn end_state(&mut self) {
        let left = match mem::replace(&mut self.state, State::Ended(None)) {
            State::Open(open) | State::Ended(Some(open)) => Some(open),
            _ => None,
        };
        self.state = State::Ended(left);
    }

    fn end(&mut self, reason: EndReason) {
        self.end_state();
        self.events.push_back(ViewerEvent::Ended(reason));
    }
}

impl Asking {
    fn poll_hello(
        &mut self,
        now: Instant,
        secret: &TrackSecret,
        retry: Duration,
    ) -> Option<Vec<u8>> {
        if now < self.due {
            return None;
        }
        self.started.get_or_insert(now);
        self.due = now + self.backoff;
        self.backoff = (self.backoff * 2).min(retry * 8);
        let access = secret.access();
        let hello = access.authenticate(Hello {
            broadcast: access.broadcast(),
            viewer_random: self.random,
            cookie: self.cookie,
            mac: [0; MAC],
        });
        Some(hello.emit())
    }

    fn handle_retry(&mut self, now: Instant, retry: &Retry) -> Result<(), ViewerError> {
        if retry.viewer_random != self.random || self.cookies == MAX_COOKIES {
            return Err(ViewerError::Unexpected);
        }
        self.cookies += 1;
        self.cookie = retry.cookie;
        self.due = now;
        Ok(())
    }
}

impl Open {
    fn poll_message(
        &mut self,
        now: Instant,
        pose: Option<Pose>,
        retry: Duration,
    ) -> Result<Option<Vec<u8>>, UsedUp> {
        if let Some(wanted) = &self.wanted
            && self.repeat_at.is_some_and(|at| at <= now)
        {
            self.repeat_at = Some(now + retry);
            let sealed = self.channel.seal(Kind::Subscribe, wanted.emit());
            return sealed.map(Some);
        }
        let report = self.receiver.poll_report(now, pose);
        let sealed = report.map(|report| self.channel.seal(Kind::Feedback, report.emit()));
        sealed.transpose()
    }

    /// Returns whether the time stamps are possible.
    fn handle_status(&mut self, now: Instant, status: &Status) -> bool {
        let wanted = self.wanted.as_ref().map(|wanted| wanted.number);
        if wanted == Some(status.subscription) {
            self.repeat_at = None;
        }
        self.receiver.handle_status(now, status).is_ok()
    }
}

impl ViewerStats {
    fn count(&mut self, error: &ViewerError) {
        match error {
            ViewerError::Packet(_) => {}
            ViewerError::Message(_) => self.invalid += 1,
            ViewerError::Open(OpenError::Forged) => self.forged += 1,
            ViewerError::Open(OpenError::Replayed) => self.replayed += 1,
            ViewerError::Unexpected => self.unexpected += 1,
        }
    }
}
