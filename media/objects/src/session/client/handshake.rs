use super::{Accepted, SenderMessage, ViewerError};
use crate::keys::AccessSecret;
use crate::session::channel::Channel;
use hawser_packets::session::{COOKIE, Hello, MAC, Retry, Sealed};
use hawser_units::Instant;
use std::time::Duration;

/// The maximum number of cookies that are answered.
const MAX_COOKIES: u8 = 8;

/// A request for a session, which is repeated until the sender accepts it.
#[derive(Debug)]
pub(super) struct Handshake {
    random: [u8; 16],
    cookie: [u8; COOKIE],
    cookies: u8,
    /// The time of the next request, the time after it, and the longest one.
    pub(super) due: Instant,
    backoff: Duration,
    longest: Duration,
    pub(super) started: Option<Instant>,
}

impl Handshake {
    /// Creates a request that is repeated after `retry`, and then after twice that time: a sender that is
    /// full or restarts should soon receive one.
    pub(super) fn new(random: [u8; 16], retry: Duration) -> Self {
        Handshake {
            random,
            cookie: [0; COOKIE],
            cookies: 0,
            due: Instant::ZERO,
            backoff: retry,
            longest: retry * 2,
            started: None,
        }
    }

    /// Repeats the request at this time at the latest.
    pub(super) fn hasten(&mut self, at: Instant) {
        self.due = self.due.min(at);
    }

    /// Returns whether a message accepts this request.
    pub(super) fn is_answer(&self, sealed: &Sealed<'_>) -> bool {
        let randoms = sealed.randoms.as_ref();
        randoms.is_some_and(|randoms| randoms[0] == self.random)
    }

    pub(super) fn poll_hello(&mut self, now: Instant, access: &AccessSecret) -> Option<Vec<u8>> {
        if now < self.due {
            return None;
        }
        self.started.get_or_insert(now);
        self.due = now + self.backoff;
        self.backoff = (self.backoff * 2).min(self.longest);
        let hello = access.authenticate(Hello {
            broadcast: access.broadcast(),
            viewer_random: self.random,
            cookie: self.cookie,
            mac: [0; MAC],
        });
        Some(hello.emit())
    }

    pub(super) fn handle_retry(
        &mut self,
        now: Instant,
        retry: &Retry,
    ) -> Result<SenderMessage, ViewerError> {
        if retry.viewer_random != self.random || self.cookies == MAX_COOKIES {
            return Err(ViewerError::Unexpected);
        }
        self.cookies += 1;
        self.cookie = retry.cookie;
        self.due = now;
        Ok(SenderMessage::Handled)
    }

    pub(super) fn handle_accept(
        &mut self,
        sealed: &Sealed<'_>,
        access: &AccessSecret,
    ) -> Result<SenderMessage, ViewerError> {
        let randoms = sealed.randoms.filter(|_| self.is_answer(sealed));
        let randoms = randoms.ok_or(ViewerError::Unexpected)?;
        let mut channel = Channel::of_viewer(sealed.session, access.session(&randoms));
        let plaintext = channel.open(sealed)?;
        Ok(SenderMessage::Accept(
            plaintext,
            Accepted(Box::new(channel)),
        ))
    }
}
