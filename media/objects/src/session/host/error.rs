use crate::session::channel::OpenError;
use hawser_packets::feedback::FeedbackError;
use hawser_packets::session::MessageError;
use std::ops::AddAssign;

/// The reason why a datagram is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The message is not valid.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The report is not valid.
    #[error(transparent)]
    Report(#[from] FeedbackError),
    /// The message cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The request is for other tracks, or its authenticator is wrong.
    #[error("the request is not from a holder of the secret")]
    Unauthorised,
    /// The maximum number of sessions is reached.
    #[error("there are too many sessions")]
    Full,
    /// More requests for sessions arrive from the address than are processed.
    #[error("too many requests for sessions come from this network")]
    TooManyRequests,
    /// The session does not exist, or is of another address.
    #[error("the session does not exist at this address")]
    UnknownSession,
    /// The viewer sends more messages than it may. They are not opened.
    #[error("the viewer sends too many messages")]
    TooMany,
    /// The kind of message is not one of a viewer, or is repeated too often.
    #[error("the message is not expected")]
    Unexpected,
}

/// Counts of a [`Host`](super::Host).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostStats {
    /// Cookies that were sent.
    pub retries: u64,
    /// Sessions that were accepted.
    pub accepted: u64,
    /// Sessions ended with [`EndReason::Displaced`](crate::EndReason::Displaced), and unconfirmed ones
    /// whose place another viewer took.
    pub displaced: u64,
    /// Messages and reports that were not valid.
    pub invalid: u64,
    /// Datagrams refused with [`OpenError::Forged`].
    pub forged: u64,
    /// Datagrams refused with [`OpenError::Replayed`].
    pub replayed: u64,
    /// Datagrams refused with [`HostError::Unauthorised`].
    pub unauthorised: u64,
    /// Datagrams refused with [`HostError::Full`].
    pub full: u64,
    /// Datagrams refused with [`HostError::TooManyRequests`].
    pub too_many_requests: u64,
    /// Answers and messages for which there was no room until they could be sent.
    pub not_sent: u64,
    /// Datagrams refused with [`HostError::UnknownSession`].
    pub unknown_session: u64,
    /// Datagrams refused with [`HostError::TooMany`].
    pub too_many: u64,
    /// Datagrams refused with [`HostError::Unexpected`].
    pub unexpected: u64,
}

impl AddAssign for HostStats {
    fn add_assign(&mut self, other: HostStats) {
        self.retries += other.retries;
        self.accepted += other.accepted;
        self.displaced += other.displaced;
        self.invalid += other.invalid;
        self.forged += other.forged;
        self.replayed += other.replayed;
        self.unauthorised += other.unauthorised;
        self.full += other.full;
        self.too_many_requests += other.too_many_requests;
        self.not_sent += other.not_sent;
        self.unknown_session += other.unknown_session;
        self.too_many += other.too_many;
        self.unexpected += other.unexpected;
    }
}

impl HostStats {
    pub(super) fn count(&mut self, error: &HostError) {
        match error {
            HostError::Message(_) | HostError::Report(_) => self.invalid += 1,
            HostError::Open(OpenError::Forged) => self.forged += 1,
            HostError::Open(OpenError::Replayed) => self.replayed += 1,
            HostError::Unauthorised => self.unauthorised += 1,
            HostError::Full => self.full += 1,
            HostError::TooManyRequests => self.too_many_requests += 1,
            HostError::UnknownSession => self.unknown_session += 1,
            HostError::TooMany => self.too_many += 1,
            HostError::Unexpected => self.unexpected += 1,
        }
    }
}
