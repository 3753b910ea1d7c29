//! Whether a path delivers.

use std::time::Duration;

/// The time without an acknowledgement after which a path no longer counts as working.
pub const PAUSED_AFTER: Duration = Duration::from_millis(500);

/// The time without an acknowledgement after which a path is silent. If all paths are, other
/// servers are tried as well.
pub const SILENT_AFTER: Duration = Duration::from_secs(1);

/// The time without an acknowledgement after which another connection is tried beside the silent
/// one: a NAT may have lost its mapping.
pub const FAILED_AFTER: Duration = Duration::from_secs(3);

/// The state of a path, by the time for which sent packets have not been acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathState {
    /// It has joined the session, and no figures of it are known yet.
    Unproven,
    /// It acknowledges.
    Delivering,
    /// It has not acknowledged for [`PAUSED_AFTER`]; other paths have to do without it.
    Paused,
    /// It has not acknowledged for [`SILENT_AFTER`].
    Silent,
    /// It has not acknowledged for [`FAILED_AFTER`]; it needs another connection.
    Failed,
}

impl PathState {
    /// Returns the state of a path that has not acknowledged sent packets for `unacknowledged`.
    pub fn of(unacknowledged: Duration) -> PathState {
        match unacknowledged {
            time if time >= FAILED_AFTER => PathState::Failed,
            time if time >= SILENT_AFTER => PathState::Silent,
            time if time >= PAUSED_AFTER => PathState::Paused,
            _ => PathState::Delivering,
        }
    }

    /// Returns whether other paths need not help. A path has just exchanged messages when it joins.
    pub fn works(self) -> bool {
        self <= PathState::Delivering
    }

    /// Returns whether the session still receives acknowledgements over the path.
    pub fn is_heard(self) -> bool {
        self <= PathState::Paused
    }
}

/// The state of one path, and when it is tried again.
#[derive(Debug, Clone)]
pub(crate) struct Liveness {
    state: PathState,
    /// The time without an acknowledgement after which the next connection is tried.
    redial_after: Duration,
}

impl Liveness {
    pub(crate) fn new() -> Liveness {
        Liveness {
            state: PathState::Unproven,
            redial_after: FAILED_AFTER,
        }
    }

    pub(crate) fn state(&self) -> PathState {
        self.state
    }

    /// Updates the state; returns the new one if it has changed.
    pub(crate) fn update(&mut self, unacknowledged: Duration) -> Option<PathState> {
        let state = PathState::of(unacknowledged);
        if state != PathState::Failed {
            self.redial_after = FAILED_AFTER;
        }
        (std::mem::replace(&mut self.state, state) != state).then_some(state)
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
    use PathState::{Delivering, Failed, Paused, Silent, Unproven};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_path_goes_through_its_states_as_it_falls_silent() {
        let mut path = Liveness::new();
        assert_eq!(path.state(), Unproven);
        let times = [0, 499, 500, 999, 1000, 2999, 3000, 60_000, 10];
        let changes = times.map(|ms| path.update(ms * MS));
        let expected = [
            Some(Delivering),
            None,
            Some(Paused),
            None,
            Some(Silent),
            None,
            Some(Failed),
            None,
            Some(Delivering),
        ];
        assert_eq!(changes, expected);
    }

    #[test]
    fn a_failed_path_is_redialed_ever_more_rarely_until_it_recovers() {
        let mut path = Liveness::new();
        let redials = |path: &mut Liveness, ms: &[u32]| {
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
