//! Whether the peer answers over a path, at the scale of seconds. What a path delivers within
//! milliseconds is judged by `hawser-xnc`.

use std::time::Duration;

/// The time without an acknowledgement after which a path no longer counts as working.
pub const DELAYED_AFTER: Duration = Duration::from_millis(500);

/// The time without an acknowledgement after which the peer counts as unreachable over a path. If it
/// is over all paths, other servers are tried as well.
pub const UNREACHABLE_AFTER: Duration = Duration::from_secs(1);

/// The time without an acknowledgement after which another connection is tried beside the
/// first one: a NAT may have lost its mapping.
pub const FAILED_AFTER: Duration = Duration::from_secs(3);

/// Whether the peer answers over a path, by the time for which sent packets have not been
/// acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reachability {
    /// It has joined the session, and no figures of it are known yet.
    New,
    /// It acknowledges.
    Reachable,
    /// It has not acknowledged for [`DELAYED_AFTER`]; other paths have to do without it.
    Delayed,
    /// It has not acknowledged for [`UNREACHABLE_AFTER`].
    Unreachable,
    /// It has not acknowledged for [`FAILED_AFTER`]; it needs another connection.
    Failed,
}

impl Reachability {
    /// Returns the state of a path that has not acknowledged sent packets for `unacknowledged`.
    pub fn of(unacknowledged: Duration) -> Reachability {
        match unacknowledged {
            time if time >= FAILED_AFTER => Reachability::Failed,
            time if time >= UNREACHABLE_AFTER => Reachability::Unreachable,
            time if time >= DELAYED_AFTER => Reachability::Delayed,
            _ => Reachability::Reachable,
        }
    }

    /// Returns whether other paths need not help. A path has just exchanged messages when it joins.
    pub fn works(self) -> bool {
        self <= Reachability::Reachable
    }

    /// Returns whether the session still receives acknowledgements over the path.
    pub fn is_heard(self) -> bool {
        self <= Reachability::Delayed
    }
}

/// The state of one path, and when it is tried again.
#[derive(Debug, Clone)]
pub(crate) struct Monitor {
    reachability: Reachability,
    /// The time without an acknowledgement after which the next connection is tried.
    redial_after: Duration,
}

impl Monitor {
    pub(crate) fn new() -> Monitor {
        Monitor {
            reachability: Reachability::New,
            redial_after: FAILED_AFTER,
        }
    }

    pub(crate) fn reachability(&self) -> Reachability {
        self.reachability
    }

    /// Updates the state; returns the one before and the new one if it has changed.
    pub(crate) fn update(
        &mut self,
        unacknowledged: Duration,
    ) -> Option<(Reachability, Reachability)> {
        let reachability = Reachability::of(unacknowledged);
        if reachability != Reachability::Failed {
            self.redial_after = FAILED_AFTER;
        }
        let before = std::mem::replace(&mut self.reachability, reachability);
        (before != reachability).then_some((before, reachability))
    }

    /// Returns whether it is time for another connection. The time until the next one doubles.
    pub(crate) fn take_redial(&mut self, unacknowledged: Duration) -> bool {
        let is_due = unacknowledged >= self.redial_after;
        if is_due {
            self.redial_after *= 2;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reachability::{Delayed, Failed, New, Reachable, Unreachable};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_path_changes_state_while_nothing_is_acknowledged() {
        let mut path = Monitor::new();
        assert_eq!(path.reachability(), New);
        let times = [0, 499, 500, 999, 1000, 2999, 3000, 60_000, 10];
        let changes = times.map(|ms| path.update(ms * MS).map(|(_, now)| now));
        let expected = [
            Some(Reachable),
            None,
            Some(Delayed),
            None,
            Some(Unreachable),
            None,
            Some(Failed),
            None,
            Some(Reachable),
        ];
        assert_eq!(changes, expected);
    }

    #[test]
    fn a_failed_path_is_redialed_more_rarely_until_it_recovers() {
        let mut path = Monitor::new();
        let redials = |path: &mut Monitor, ms: &[u32]| {
            let is_due = |ms: &&u32| {
                path.update(**ms * MS);
                path.take_redial(**ms * MS)
            };
            ms.iter().filter(is_due).copied().collect::<Vec<_>>()
        };
        let silence = [2999, 3000, 3250, 6000, 9000, 12_000, 20_000, 24_000];
        assert_eq!(redials(&mut path, &silence), [3000, 6000, 12_000, 24_000]);
        assert_eq!(redials(&mut path, &[0, 3000, 3250]), [3000]);
    }
}
