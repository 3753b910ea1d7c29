//! What all sessions of a server keep of packets together, and how much that may be.

use crate::quic::STREAM_BYTES;
use hawser_units::ByteSize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The cost of an idle session, bytes: its tasks. Measured with one idle connection, it is less than this.
const IDLE: u64 = 128 << 10;

/// A session begins with one connection.
const FIRST: u64 = IDLE + STREAM_BYTES;

/// The memory of all sessions. Beyond two thirds of it nobody else is let in, and only sessions that keep less than their
/// share of the last third may keep more: a greedy one leaves the others room. What connections may have received and nobody has
/// read fills the two thirds too, but takes nobody's share: it is no figure but the most that it can be.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
    /// The part of `used` that may be unread.
    unread: AtomicU64,
    sessions: AtomicU64,
}

/// What one session keeps.
#[derive(Debug)]
pub(crate) struct Claim {
    of: Arc<Budget>,
    /// For being there, and for packets.
    fixed: u64,
    kept: u64,
    /// Bytes that its connections may hold for it to read: an upper bound.
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

    /// Whether another session may begin.
    pub(crate) fn has_room(&self) -> bool {
        self.used.load(Relaxed) + FIRST <= self.limit / 3 * 2
    }

    /// A session begins.
    pub(crate) fn claim(self: &Arc<Self>) -> Claim {
        self.sessions.fetch_add(1, Relaxed);
        self.used.fetch_add(FIRST, Relaxed);
        Claim {
            of: Arc::clone(self),
            fixed: FIRST,
            kept: 0,
            unread: 0,
        }
    }

    /// What all of them keep.
    pub(crate) fn used(&self) -> ByteSize {
        ByteSize(self.used.load(Relaxed))
    }
}

impl Claim {
    /// The session keeps `kept` bytes of packets now, and has so many connections, each of which may keep what its stream may, and
    /// all of which may have received `unread` bytes that it has not read.
    pub(crate) fn set(&mut self, kept: u64, connections: usize, unread: u64) {
        let fixed = IDLE + connections as u64 * STREAM_BYTES;
        // Both wrap around to less where it is less.
        self.of
            .used
            .fetch_add((fixed + kept + unread).wrapping_sub(self.all()), Relaxed);
        self.of
            .unread
            .fetch_add(unread.wrapping_sub(self.unread), Relaxed);
        (self.fixed, self.kept, self.unread) = (fixed, kept, unread);
    }

    /// Whether the session may keep more than it does.
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
        // Other sessions change the two sums meanwhile, one after the other.
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

    /// Keeps one step more, if that is allowed; returns whether it is.
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
        // Fewer and fewer, which have larger shares.
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
        assert_eq!(sessions.len() as u64, LIMIT / 3 * 2 / FIRST);
        sessions.pop();
        assert!(budget.has_room());
        sessions[0].set(10 * FIRST, 1, 0);
        assert!(!budget.has_room());
        sessions[0].set(0, 1, 0);
        assert!(budget.has_room());
    }

    #[test]
    fn those_who_are_there_and_keep_little_may_keep_more_though_many_have_filled_two_thirds() {
        let budget = Budget::new(ByteSize(LIMIT));
        let mut sessions = Vec::new();
        while budget.has_room() {
            sessions.push((budget.claim(), 0));
        }
        // Further connections nobody has to ask for.
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
    fn what_may_be_unread_keeps_new_sessions_out_and_takes_nobodys_share() {
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
