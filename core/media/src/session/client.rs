use super::channel::{Channel, OpenError, UsedUp};
use crate::keys::{AccessSecret, Seed};
use crate::refusal::Refusal;
use hawser_units::Instant;
use hawser_wire::feedback::Feedback;
use hawser_wire::session::{
    COOKIE, Goodbye, Hello, Kind, MAC, Message, MessageError, Retry, Sealed, Subscribe,
};
use std::time::Duration;

/// The number of cookies that are answered, so that nobody makes the client send without end.
const MAX_COOKIES: u8 = 8;

/// The times of a session that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionTimes {
    /// The time after which a request is repeated at first. It doubles up to eight times that.
    pub retry: Duration,
    /// The time without an authentic datagram after which another session is asked for, while this one
    /// is still there: the sender may have started again. It answers each report, of which there is one
    /// in a second.
    pub renew: Duration,
    /// The time without an authentic datagram after which the session has ended.
    pub idle: Duration,
}

/// The end of a session that asks for it, without what is received in it: of a viewer, or of a relay
/// towards the publisher.
#[derive(Debug)]
pub(crate) struct Client {
    times: SessionTimes,
    access: AccessSecret,
    /// The source of the random bytes of further requests.
    seed: Seed,
    requests: u64,
    state: State,
    stats: ViewerStats,
}

#[derive(Debug)]
enum State {
    Asking(Asking),
    Open(Box<Open>),
    Ended,
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
    heard: Instant,
    wanted: Option<Subscribe>,
    repeat_at: Option<Instant>,
    /// The request for a session in place of this one.
    renewal: Option<Asking>,
}

/// A message of the sender.
#[derive(Debug)]
pub(crate) enum Said {
    /// It concerns the client only.
    Nothing,
    /// The plaintext of [`Kind::Accept`]. If it is right, [`Client::open`] opens the session.
    Accept(Vec<u8>, Accepted),
    /// The plaintext of [`Kind::Status`].
    Status(Vec<u8>),
    /// The sender leaves.
    Goodbye(Goodbye),
}

/// A session that can be opened.
#[derive(Debug)]
pub(crate) struct Accepted(Box<Channel>);

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

/// Counts of a viewer's session.
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

impl Default for SessionTimes {
    fn default() -> Self {
        SessionTimes {
            retry: Duration::from_millis(250),
            renew: Duration::from_millis(1500),
            idle: Duration::from_secs(10),
        }
    }
}

impl Client {
    /// Asks for a session. `random` has 16 random bytes, new for each session.
    pub(crate) fn new(times: SessionTimes, access: AccessSecret, random: [u8; 16]) -> Self {
        let mut seed = [0; 32];
        seed[..16].copy_from_slice(&random);
        Client {
            times,
            access,
            seed: Seed::new(seed),
            requests: 0,
            state: State::Asking(Asking::new(random, times.retry)),
            stats: ViewerStats::default(),
        }
    }

    /// Takes a message of the sender.
    pub(crate) fn handle_message(
        &mut self,
        now: Instant,
        datagram: &[u8],
    ) -> Result<Said, ViewerError> {
        match (Message::parse(datagram)?, &mut self.state) {
            (Message::Retry(retry), State::Asking(asking)) => asking.handle_retry(now, &retry),
            (Message::Sealed(sealed), State::Asking(asking)) => {
                asking.handle_accept(&sealed, &self.access)
            }
            (Message::Retry(retry), State::Open(open)) => match &mut open.renewal {
                Some(renewal) => renewal.handle_retry(now, &retry),
                None => Err(ViewerError::Unexpected),
            },
            (Message::Sealed(sealed), State::Open(open)) => match &mut open.renewal {
                Some(renewal) if renewal.is_answer(&sealed) => {
                    renewal.handle_accept(&sealed, &self.access)
                }
                _ => open.handle_sealed(now, &sealed),
            },
            _ => Err(ViewerError::Unexpected),
        }
    }

    /// Opens a session that the sender has accepted.
    pub(crate) fn open(&mut self, now: Instant, Accepted(channel): Accepted) {
        self.state = State::Open(Box::new(Open {
            channel: *channel,
            heard: now,
            wanted: None,
            repeat_at: None,
            renewal: None,
        }));
    }

    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Records that an authentic packet arrived.
    pub(crate) fn hear(&mut self, now: Instant) {
        if let State::Open(open) = &mut self.state {
            open.hear(now);
        }
    }

    /// Selects tracks and the number of their layers, if the session is open.
    pub(crate) fn subscribe(&mut self, now: Instant, tracks: Vec<(u32, u8)>) {
        if let State::Open(open) = &mut self.state {
            let number = open.wanted.as_ref().map_or(0, |wanted| wanted.number);
            // Zero is the number before the first selection.
            let number = number.wrapping_add(1).max(1);
            open.wanted = Some(Subscribe { number, tracks });
            open.repeat_at = Some(now);
        }
    }

    /// Takes the number of the selection that is in force.
    pub(crate) fn confirm(&mut self, subscription: u8) {
        if let State::Open(open) = &mut self.state {
            let wanted = open.wanted.as_ref().map(|wanted| wanted.number);
            if wanted == Some(subscription) {
                open.repeat_at = None;
            }
        }
    }

    /// Ends the session. Returns the goodbye to the sender, if it was open.
    pub(crate) fn close(&mut self, reason: Goodbye) -> Option<Vec<u8>> {
        let goodbye = match &mut self.state {
            State::Open(open) => open
                .channel
                .seal(Kind::Goodbye, reason.emit().to_vec())
                .ok(),
            _ => None,
        };
        self.end();
        goodbye
    }

    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
    }

    /// Returns the next request or selection that is due.
    pub(crate) fn poll_message(&mut self, now: Instant) -> Result<Option<Vec<u8>>, UsedUp> {
        let retry = self.times.retry;
        match &mut self.state {
            State::Asking(asking) => Ok(asking.poll_hello(now, &self.access, retry)),
            State::Open(open) => {
                if open.renewal.is_none() && now >= open.heard + self.times.renew {
                    self.requests += 1;
                    let random = self.seed.numbered(self.requests).mac(&[b"viewer"]);
                    open.renewal = Some(Asking::new(random, retry));
                }
                let renewal = open.renewal.as_mut();
                // Who starts again should find a request soon.
                let hello = renewal.and_then(|r| r.poll_hello(now, &self.access, retry / 4));
                if hello.is_some() {
                    return Ok(hello);
                }
                match &open.wanted {
                    Some(wanted) if open.repeat_at.is_some_and(|at| at <= now) => {
                        open.repeat_at = Some(now + retry);
                        open.channel.seal(Kind::Subscribe, wanted.emit()).map(Some)
                    }
                    _ => Ok(None),
                }
            }
            State::Ended => Ok(None),
        }
    }

    /// Seals a report, if the session is open.
    pub(crate) fn seal_report(&mut self, report: &Feedback) -> Result<Option<Vec<u8>>, UsedUp> {
        match &mut self.state {
            State::Open(open) => open.channel.seal(Kind::Feedback, report.emit()).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the next time at which [`Client::poll_message`] or [`Client::has_timed_out`] has
    /// something to say.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Asking(asking) => Some(asking.due),
            State::Open(open) => {
                let renewal = match &open.renewal {
                    Some(renewal) => renewal.due,
                    None => open.heard + self.times.renew,
                };
                let times = [
                    Some(open.heard + self.times.idle),
                    Some(renewal),
                    open.repeat_at,
                ];
                times.into_iter().flatten().min()
            }
            State::Ended => None,
        }
    }

    /// Returns whether nothing came for so long that the session has ended.
    pub(crate) fn has_timed_out(&mut self, now: Instant) -> bool {
        let last = match &mut self.state {
            State::Asking(asking) => *asking.started.get_or_insert(now),
            State::Open(open) => open.heard,
            State::Ended => return false,
        };
        now.saturating_since(last) >= self.times.idle
    }

    pub(crate) const fn stats(&self) -> &ViewerStats {
        &self.stats
    }

    pub(crate) fn count(&mut self, error: &ViewerError) {
        match error {
            ViewerError::Packet(_) => {}
            ViewerError::Message(_) => self.stats.invalid += 1,
            ViewerError::Open(OpenError::Forged) => self.stats.forged += 1,
            ViewerError::Open(OpenError::Replayed) => self.stats.replayed += 1,
            ViewerError::Unexpected => self.stats.unexpected += 1,
        }
    }

    pub(crate) fn count_impossible_time(&mut self) {
        self.stats.impossible_times += 1;
    }
}

impl Asking {
    fn new(random: [u8; 16], retry: Duration) -> Self {
        Asking {
            random,
            cookie: [0; COOKIE],
            cookies: 0,
            due: Instant::ZERO,
            backoff: retry,
            started: None,
        }
    }

    /// Returns whether a message accepts this request.
    fn is_answer(&self, sealed: &Sealed<'_>) -> bool {
        let randoms = sealed.randoms.as_ref();
        randoms.is_some_and(|randoms| randoms[0] == self.random)
    }

    fn poll_hello(
        &mut self,
        now: Instant,
        access: &AccessSecret,
        retry: Duration,
    ) -> Option<Vec<u8>> {
        if now < self.due {
            return None;
        }
        self.started.get_or_insert(now);
        self.due = now + self.backoff;
        self.backoff = (self.backoff * 2).min(retry * 8);
        let hello = access.authenticate(Hello {
            broadcast: access.broadcast(),
            viewer_random: self.random,
            cookie: self.cookie,
            mac: [0; MAC],
        });
        Some(hello.emit())
    }

    fn handle_retry(&mut self, now: Instant, retry: &Retry) -> Result<Said, ViewerError> {
        if retry.viewer_random != self.random || self.cookies == MAX_COOKIES {
            return Err(ViewerError::Unexpected);
        }
        self.cookies += 1;
        self.cookie = retry.cookie;
        self.due = now;
        Ok(Said::Nothing)
    }

    fn handle_accept(
        &mut self,
        sealed: &Sealed<'_>,
        access: &AccessSecret,
    ) -> Result<Said, ViewerError> {
        let randoms = sealed.randoms.filter(|_| self.is_answer(sealed));
        let randoms = randoms.ok_or(ViewerError::Unexpected)?;
        let mut channel = Channel::of_viewer(sealed.session, access.session(&randoms));
        let plaintext = channel.open(sealed)?;
        Ok(Said::Accept(plaintext, Accepted(Box::new(channel))))
    }
}

impl Open {
    /// Records that the sender is there.
    fn hear(&mut self, now: Instant) {
        self.heard = now;
        self.renewal = None;
    }

    fn handle_sealed(&mut self, now: Instant, sealed: &Sealed<'_>) -> Result<Said, ViewerError> {
        let plaintext = self.channel.open(sealed)?;
        self.hear(now);
        match sealed.kind {
            Kind::Status => Ok(Said::Status(plaintext)),
            Kind::Goodbye => Ok(Said::Goodbye(Goodbye::parse(&plaintext)?)),
            // A repeated answer to a repeated request.
            Kind::Accept => Ok(Said::Nothing),
            _ => Err(ViewerError::Unexpected),
        }
    }
}
