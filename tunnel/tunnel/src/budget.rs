//! The memory that all sessions of a server use for packets, and its limit.

use crate::quic::STREAM_BYTES;
use hawser_units::ByteSize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The memory of an idle session without its connections, in bytes: mainly its tasks. An upper
/// bound: an idle session measured with one connection takes less.
const IDLE_SESSION_BYTES: u64 = 128 << 10;

/// The memory of a new session, which has one connection.
const NEW_SESSION_BYTES: u64 = IDLE_SESSION_BYTES + STREAM_BYTES;

/// The memory of all sessions.
///
/// Above two thirds of the limit no new client is admitted, and only sessions that use less than
/// their share of the last third may use more, so that one session cannot take the memory of the
/// others. Data that connections may have received and that has not been read counts towards the
/// two thirds but not towards a session's share, because it is only an upper bound.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
    /// The part of `used` that is an upper bound of unread data.
    unread: AtomicU64,
    sessions: AtomicU64,
}

/// The memory of one session.
#[derive(Debug)]
pub(crate) struct Claim {
    of: Arc<Budget>,
    /// The memory independent of packets, and that of packets.
    fixed: u64,
    kept: u64,
    /// An upper bound of the bytes received by its connections and not read.
    unread: u64,
}

impl Budget {
    pub(crate) fn new(limit: ByteSize) -> Arc<Budget> {
        Arc::new(Budget {
            limit: limit.0,
            used: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            sessions: AtomicU64::new(0),
        })
    }

    /// Returns whether another session may be opened.
    pub(crate) fn has_room(&self) -> bool {
        self.used.load(Relaxed) + NEW_SESSION_BYTES <= self.limit / 3 * 2
    }

    /// Adds a session, which is removed when the claim is dropped.
    pub(crate) fn claim(self: &Arc<Self>) -> Claim {
        self.sessions.fetch_add(1, Relaxed);
        self.used.fetch_add(NEW_SESSION_BYTES, Relaxed);
        Claim {
            of: Arc::clone(self),
            fixed: NEW_SESSION_BYTES,
            kept: 0,
            unread: 0,
        }
    }

    /// Returns the memory of all sessions.
    pub(crate) fn used(&self) -> ByteSize {
        ByteSize(self.used.load(Relaxed))
    }
}

impl Claim {
    /// Sets the memory of the session: `kept` bytes of packets, the stream buffers of
    /// `connections`, and up to `unread` received bytes that it has not read.
    pub(crate) fn set(&mut self, kept: u64, connections: usize, unread: u64) {
        let fixed = IDLE_SESSION_BYTES + connections as u64 * STREAM_BYTES;
        // A decrease wraps around.
        self.of
            .used
            .fetch_add((fixed + kept + unread).wrapping_sub(self.all()), Relaxed);
        self.of
            .unread
            .fetch_add(unread.wrapping_sub(self.unread), Relaxed);
        (self.fixed, self.kept, self.unread) = (fixed, kept, unread);
    }

    /// Returns whether the session may use more memory.
    pub(crate) fn may_grow(&self) -> bool {
        let Budget {
            limit,
            used,
            unread,
            sessions,
        } = &*self.of;
        let (used, share) = (
            used.load(Relaxed),
            limit / 3 / sessions.load(Relaxed).max(1),
        );
        // Other sessions may update the two sums in between, one after the other.
        let known = used.saturating_sub(unread.load(Relaxed));
        used < limit / 3 * 2 || known < *limit && self.kept < share
    }

    fn all(&self) -> u64 {
        self.fixed + self.kept + self.unread
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.of.sessions.fetch_sub(1, Relaxed);
        self.of.used.fetch_sub(self.all(), Relaxed);
        self.of.unread.fetch_sub(self.unread, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::RECEIVED_BYTES;

    const LIMIT: u64 = 30 << 20;
    const STEP: u64 = 100_000;

    /// Grows the session by one step if allowed; returns whether it was.
    fn grow(session: &mut (Claim, u64)) -> bool {
        let may = session.0.may_grow();
        if may {
            session.1 += STEP;
            session.0.set(session.1, 1, 0);
        }
        may
    }

    #[test]
    fn all_sessions_together_keep_no_more_than_is_allowed() {
        let budget = Budget::new(ByteSize(LIMIT));
        let mut sessions: Vec<_> = (0..20).map(|_| (budget.claim(), 0)).collect();
        // With fewer sessions each has a larger share.
        while !sessions.is_empty() {
            sessions
                .iter_mut()
                .for_each(|session| while grow(session) {});
            assert!(
                (LIMIT / 2..LIMIT + STEP).contains(&budget.used().0),
                "{:?} of {LIMIT}",
                budget.used()
            );
            drop(sessions.swap_remove(0));
        }
        assert_eq!(budget.used(), ByteSize(0));
    }

    #[test]
    fn a_greedy_session_leaves_the_others_room() {
        let budget = Budget::new(ByteSize(LIMIT));
        let mut greedy = (budget.claim(), 0);
        let mut modest = (budget.claim(), 0);
        while grow(&mut greedy) {}
        assert!(greedy.1 > LIMIT / 2);
        assert!((0..10).all(|_| grow(&mut modest)), "a megabyte");
        assert!(!grow(&mut greedy));
    }

    #[test]
    fn nobody_else_is_let_in_when_memory_is_short_until_it_is_not() {
        let budget = Budget::new(ByteSize(LIMIT));
        let mut sessions = Vec::new();
        while budget.has_room() {
            sessions.push(budget.claim());
        }
        assert_eq!(sessions.len() as u64, LIMIT / 3 * 2 / NEW_SESSION_BYTES);
        sessions.pop();
        assert!(budget.has_room());
        sessions[0].set(10 * NEW_SESSION_BYTES, 1, 0);
        assert!(!budget.has_room());
        sessions[0].set(0, 1, 0);
        assert!(budget.has_room());
    }

    #[test]
    fn sessions_below_their_share_may_use_the_last_third() {
        let budget = Budget::new(ByteSize(LIMIT));
        let mut sessions = Vec::new();
        while budget.has_room() {
            sessions.push((budget.claim(), 0));
        }
        // Further connections need no permission.
        sessions
            .iter_mut()
            .take(10)
            .for_each(|session| session.0.set(0, 2, 0));
        assert!(budget.used().0 > LIMIT / 3 * 2);
        let share = LIMIT / 3 / sessions.len() as u64;
        assert!(sessions.iter_mut().all(|session| session.0.may_grow()));
        sessions[0].0.set(share, 1, 0);
        assert!(!sessions[0].0.may_grow() && sessions[1].0.may_grow());
    }

    #[test]
    fn unread_memory_keeps_only_new_sessions_out() {
        const SESSIONS: u64 = 8;
        let budget = Budget::new(ByteSize(LIMIT));
        let mut sessions: Vec<_> = (0..SESSIONS).map(|_| budget.claim()).collect();
        let (unread, share) = (2 * RECEIVED_BYTES, LIMIT / 3 / SESSIONS);
        sessions
            .iter_mut()
            .for_each(|session| session.set(share - 1, 2, unread));
        assert!(
            budget.used().0 > LIMIT,
            "two connections of each may fill it"
        );
        assert!(!budget.has_room());
        assert!(sessions.iter().all(Claim::may_grow));
        sessions[0].set(share, 2, unread);
        assert!(
            !sessions[0].may_grow() && sessions[1].may_grow(),
            "no more than its share"
        );
        sessions
            .iter_mut()
            .for_each(|session| session.set(share, 2, 0));
        assert!(budget.has_room());
        assert!(sessions.iter().all(Claim::may_grow), "all was read");
        sessions[0].set(0, 2, unread);
        drop(sessions);
        assert_eq!(budget.used(), ByteSize(0));
        assert_eq!(budget.unread.load(Relaxed), 0);
    }

    #[test]
    fn known_memory_has_its_limit_whatever_may_be_unread() {
        let budget = Budget::new(ByteSize(LIMIT));
        let (mut greedy, mut modest) = (budget.claim(), budget.claim());
        greedy.set(LIMIT, 1, RECEIVED_BYTES);
        modest.set(0, 1, RECEIVED_BYTES);
        assert!(!greedy.may_grow() && !modest.may_grow());
    }
}
