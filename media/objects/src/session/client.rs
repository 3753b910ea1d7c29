mod handshake;

use super::channel::{Channel, OpenError, UsedUp};
use crate::keys::{AccessSecret, Seed};
use crate::refusal::Refusal;
use handshake::Handshake;
use hawser_packets::feedback::{Feedback, Pose};
use hawser_packets::session::{Goodbye, Kind, Message, MessageError, Sealed, Status, Subscribe};
use hawser_units::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// The times of a session that is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionTimes {
    /// The time after which a request is repeated at first; then it is twice that.
    pub retry: Duration,
    /// The time without an authentic datagram after which another session is requested while this one is
    /// open: the sender may have restarted. It answers each report, of which there are four
    /// in a second.
    pub renew: Duration,
    /// The time without an authentic datagram after which the session has ended.
    pub idle: Duration,
}

/// The end of a session that requests it, without the packets that it receives: of a viewer, or of a relay
/// towards the publisher.
#[derive(Debug)]
pub(crate) struct Client {
    times: SessionTimes,
    access: AccessSecret,
    /// The source of the random bytes of further requests.
    seed: Seed,
    requests: u64,
    state: State,
    pose: Option<Pose>,
    outgoing: VecDeque<Vec<u8>>,
    stats: ViewerStats,
}

#[derive(Debug)]
enum State {
    Handshake(Handshake),
    Open(Box<Open>),
    Ended,
}

#[derive(Debug)]
struct Open {
    channel: Channel,
    heard: Instant,
    /// The time at which another session is requested if nothing is heard until then.
    renew_at: Instant,
    wanted: Option<Subscribe>,
    repeat_at: Option<Instant>,
    /// The request for a session in place of this one.
    renewal: Option<Handshake>,
}

/// A message of the sender.
#[derive(Debug)]
pub(crate) enum SenderMessage {
    /// The client has handled it.
    Handled,
    /// The plaintext of [`Kind::Accept`]. If it is right, [`Client::open`] opens the session.
    Accept(Vec<u8>, Accepted),
    /// The clock and the keys. The client has taken the number of the selection.
    Status(Status),
    /// The sender leaves.
    Goodbye(Goodbye),
}

/// A session that can be opened.
#[derive(Debug)]
pub(crate) struct Accepted(Box<Channel>);

/// The reason why a viewer refuses a datagram.
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
    /// Requests a session. `random` has 16 random bytes, new for each session.
    pub(crate) fn new(times: SessionTimes, access: AccessSecret, random: [u8; 16]) -> Self {
        let mut seed = [0; 32];
        seed[..16].copy_from_slice(&random);
        Client {
            times,
            access,
            seed: Seed::new(seed),
            requests: 0,
            state: State::Handshake(Handshake::new(random, times.retry)),
            pose: None,
            outgoing: VecDeque::new(),
            stats: ViewerStats::default(),
        }
    }

    /// Takes a message of the sender.
    pub(crate) fn handle_message(
        &mut self,
        now: Instant,
        datagram: &[u8],
    ) -> Result<SenderMessage, ViewerError> {
        match (Message::parse(datagram)?, &mut self.state) {
            (Message::Retry(retry), State::Handshake(handshake)) => {
                handshake.handle_retry(now, &retry)
            }
            (Message::Sealed(sealed), State::Handshake(handshake)) => {
                handshake.handle_accept(&sealed, &self.access)
            }
            (Message::Retry(retry), State::Open(open)) => match &mut open.renewal {
                Some(renewal) => renewal.handle_retry(now, &retry),
                None => Err(ViewerError::Unexpected),
            },
            (Message::Sealed(sealed), State::Open(open)) => match &mut open.renewal {
                Some(renewal) if renewal.is_answer(&sealed) => {
                    renewal.handle_accept(&sealed, &self.access)
                }
                _ => open.handle_sealed(now, &sealed, &self.times),
            },
            _ => Err(ViewerError::Unexpected),
        }
    }

    /// Opens a session that the sender has accepted.
    pub(crate) fn open(&mut self, now: Instant, Accepted(channel): Accepted) {
        self.state = State::Open(Box::new(Open {
            channel: *channel,
            heard: now,
            renew_at: now + self.times.renew,
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
            open.hear(now, &self.times);
        }
    }

    /// Takes word of the network that nobody receives at the sender's address. The sender may be starting again, so
    /// the next request for a session is not put off further than the first repetition.
    pub(crate) fn handle_refused(&mut self, now: Instant) {
        let soon = now + self.times.retry;
        match &mut self.state {
            State::Handshake(handshake) => handshake.hasten(soon),
            State::Open(open) => match &mut open.renewal {
                Some(renewal) => renewal.hasten(soon),
                None => open.renew_at = open.renew_at.min(soon),
            },
            State::Ended => {}
        }
    }

    /// Selects tracks and the number of their layers, if the session is open. With `any_encoding`, one track
    /// of each name is enough.
    pub(crate) fn subscribe(&mut self, now: Instant, tracks: Vec<(u32, u8)>, any_encoding: bool) {
        if let State::Open(open) = &mut self.state {
            let number = open.wanted.as_ref().map_or(0, |wanted| wanted.number);
            // Zero is the number before the first selection.
            let number = number.wrapping_add(1).max(1);
            open.wanted = Some(Subscribe {
                number,
                tracks,
                any_encoding,
            });
            open.repeat_at = Some(now);
        }
    }

    /// Sets the pose that reports have.
    pub(crate) fn set_pose(&mut self, pose: Option<Pose>) {
        self.pose = pose;
    }

    /// Ends the session, with a goodbye if it was open.
    pub(crate) fn close(&mut self, reason: Goodbye) {
        if let State::Open(open) = &mut self.state {
            let goodbye = open.channel.seal(Kind::Goodbye, reason.emit().to_vec());
            self.outgoing.extend(goodbye.ok());
        }
        self.end();
    }

    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
    }

    /// Returns the next datagram to the sender: a goodbye, a request, a selection, or what `report`
    /// makes of the pose while the session is open.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        report: impl FnOnce(Option<Pose>) -> Option<Feedback>,
    ) -> Result<Option<Vec<u8>>, UsedUp> {
        if let Some(datagram) = self.outgoing.pop_front() {
            return Ok(Some(datagram));
        }
        let retry = self.times.retry;
        match &mut self.state {
            State::Handshake(handshake) => Ok(handshake.poll_hello(now, &self.access)),
            State::Open(open) => {
                if open.renewal.is_none() && now >= open.renew_at {
                    self.requests += 1;
                    let random = self.seed.numbered(self.requests).mac(&[b"viewer"]);
                    open.renewal = Some(Handshake::new(random, retry));
                }
                let renewal = open.renewal.as_mut();
                let hello = renewal.and_then(|r| r.poll_hello(now, &self.access));
                if hello.is_some() {
                    return Ok(hello);
                }
                if let Some(selection) = open.poll_selection(now, retry) {
                    return selection.map(Some);
                }
                let report = report(self.pose);
                let sealed = report.map(|r| open.channel.seal(Kind::Feedback, r.emit()));
                sealed.transpose()
            }
            State::Ended => Ok(None),
        }
    }

    /// Returns the next time at which [`Client::poll_transmit`] or [`Client::has_timed_out`] has to be
    /// called.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Handshake(handshake) => Some(handshake.due),
            State::Open(open) => {
                let renewal = match &open.renewal {
                    Some(renewal) => renewal.due,
                    None => open.renew_at,
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

    /// Returns whether the session has ended because no authentic datagram arrived.
    pub(crate) fn has_timed_out(&mut self, now: Instant) -> bool {
        let last = match &mut self.state {
            State::Handshake(handshake) => *handshake.started.get_or_insert(now),
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

impl Open {
    /// Records that an authentic datagram arrived.
    fn hear(&mut self, now: Instant, times: &SessionTimes) {
        self.heard = now;
        self.renew_at = now + times.renew;
        self.renewal = None;
    }

    /// Returns the selection if it has to be sent, for the first time or again.
    fn poll_selection(&mut self, now: Instant, retry: Duration) -> Option<Result<Vec<u8>, UsedUp>> {
        let wanted = self.wanted.as_ref()?;
        self.repeat_at.filter(|at| *at <= now)?;
        self.repeat_at = Some(now + retry);
        Some(self.channel.seal(Kind::Subscribe, wanted.emit()))
    }

    /// Stops repeating a selection that is in force.
    fn confirm(&mut self, selection: u8) {
        let wanted = self.wanted.as_ref().map(|wanted| wanted.number);
        if wanted == Some(selection) {
            self.repeat_at = None;
        }
    }

    fn handle_sealed(
        &mut self,
        now: Instant,
        sealed: &Sealed<'_>,
        times: &SessionTimes,
    ) -> Result<SenderMessage, ViewerError> {
        let plaintext = self.channel.open(sealed)?;
        self.hear(now, times);
        match sealed.kind {
            Kind::Status => {
                let status = Status::parse(&plaintext)?;
                self.confirm(status.subscription);
                Ok(SenderMessage::Status(status))
            }
            Kind::Goodbye => Ok(SenderMessage::Goodbye(Goodbye::parse(&plaintext)?)),
            // A repeated answer to a repeated request.
            Kind::Accept => Ok(SenderMessage::Handled),
            _ => Err(ViewerError::Unexpected),
        }
    }
}
