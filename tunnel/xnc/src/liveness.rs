//! Whether a path delivers, judged by its acknowledgements.

use hawser_units::{Instant, PathId};
use std::fmt;
use std::time::Duration;

/// The time without acknowledgements after which a path no longer counts as delivering. A path that
/// delivers gets new packets, even if the acknowledged ones are old because of a pause.
pub(crate) const QUIET_AFTER: Duration = Duration::from_millis(50);

/// Whether a path delivers, according to the acknowledgements of what was sent over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Liveness {
    /// Nothing was acknowledged yet.
    #[default]
    Unproven,
    /// The last acknowledgement is more recent than [`QUIET_AFTER`].
    Delivering,
    /// There were no acknowledgements for a while, but nothing is overdue. The path may be idle.
    Paused,
    /// An acknowledgement is overdue. The path is probed with single packets, and takes no others
    /// as long as another path delivers.
    Silent,
}

impl Liveness {
    /// Returns the name in reports, such as `delivering`.
    pub const fn name(self) -> &'static str {
        match self {
            Liveness::Unproven => "unproven",
            Liveness::Delivering => "delivering",
            Liveness::Paused => "paused",
            Liveness::Silent => "silent",
        }
    }
}

impl fmt::Display for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A change of a path's liveness.
///
/// Pauses are no events. An idle path is paused between any two probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The path.
    pub path: PathId,
    /// Its liveness before.
    pub from: Liveness,
    /// Its liveness now.
    pub to: Liveness,
}

/// The state of a path's acknowledgements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evidence {
    /// When the largest acknowledged number last increased.
    pub(crate) acknowledged_at: Option<Instant>,
    /// When the first transmission beyond the largest acknowledged one was sent.
    pub(crate) unacked_since: Option<Instant>,
    /// The time after which that transmission counts as lost.
    pub(crate) loss_timeout: Duration,
}

impl Evidence {
    /// Returns when the path counts as silent, if nothing is acknowledged before. While there are
    /// acknowledgements, the path delivers, whatever the age of the acknowledged packets: after a
    /// pause, the delayed packets arrive first.
    fn silent_from(&self) -> Option<Instant> {
        let overdue = self.unacked_since? + self.loss_timeout;
        let paused = paused_from(self.acknowledged_at);
        Some(paused.map_or(overdue, |paused| paused.max(overdue)))
    }
}

/// Returns when a path stops to count as delivering, if nothing is acknowledged before; `None` if
/// nothing was ever acknowledged.
pub(crate) fn paused_from(acknowledged_at: Option<Instant>) -> Option<Instant> {
    acknowledged_at.map(|at| at + QUIET_AFTER)
}

/// Returns the liveness of a path that is not silent.
fn unless_silent(now: Instant, acknowledged_at: Option<Instant>) -> Liveness {
    match paused_from(acknowledged_at) {
        Some(from) if from > now => Liveness::Delivering,
        Some(_) => Liveness::Paused,
        None => Liveness::Unproven,
    }
}

/// The owner of a path's liveness. A path becomes silent when it is checked; the other states
/// follow from the time of the last acknowledgement.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    /// The liveness at the last check.
    checked: Liveness,
}

impl Monitor {
    /// Returns the liveness at this time of a path with the last acknowledgement at
    /// `acknowledged_at`.
    pub(crate) fn liveness(&self, now: Instant, acknowledged_at: Option<Instant>) -> Liveness {
        match unless_silent(now, acknowledged_at) {
            Liveness::Unproven | Liveness::Paused if self.checked == Liveness::Silent => {
                Liveness::Silent
            }
            liveness => liveness,
        }
    }

    /// Updates the liveness, and returns the one before and the one after a change other than a
    /// pause.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        evidence: Evidence,
    ) -> Option<(Liveness, Liveness)> {
        let before = self.checked;
        let silent_from = evidence.silent_from();
        self.checked = match silent_from.is_some_and(|from| from <= now) {
            true => Liveness::Silent,
            false => unless_silent(now, evidence.acknowledged_at),
        };
        let is_pause = |liveness| matches!(liveness, Liveness::Delivering | Liveness::Paused);
        let is_same = before == self.checked || is_pause(before) && is_pause(self.checked);
        (!is_same).then_some((before, self.checked))
    }

    /// Returns when the path has to be checked because it may become silent.
    pub(crate) fn next_check(&self, evidence: Evidence) -> Option<Instant> {
        let silent_from = evidence.silent_from();
        silent_from.filter(|_| self.checked != Liveness::Silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// Something was sent at `sent` and nothing later was acknowledged. The loss timeout is 100 ms.
    fn evidence(acknowledged: Option<u64>, sent: Option<u64>) -> Evidence {
        Evidence {
            acknowledged_at: acknowledged.map(at),
            unacked_since: sent.map(at),
            loss_timeout: Duration::from_millis(100),
        }
    }

    fn check(monitor: &mut Monitor, ms: u64, evidence: Evidence) -> Option<(Liveness, Liveness)> {
        monitor.check(at(ms), evidence)
    }

    fn liveness(monitor: &Monitor, ms: u64, evidence: Evidence) -> Liveness {
        monitor.liveness(at(ms), evidence.acknowledged_at)
    }

    #[test]
    fn a_path_proves_itself_pauses_falls_silent_and_returns() {
        use Liveness::*;
        let mut monitor = Monitor::default();
        let sent = evidence(None, Some(0));
        assert_eq!(check(&mut monitor, 40, sent), None);
        assert_eq!(liveness(&monitor, 40, sent), Unproven);

        let acknowledged = evidence(Some(50), None);
        let change = check(&mut monitor, 50, acknowledged);
        assert_eq!(change, Some((Unproven, Delivering)));
        assert_eq!(liveness(&monitor, 99, acknowledged), Delivering);
        assert_eq!(liveness(&monitor, 100, acknowledged), Paused);

        let sent = evidence(Some(50), Some(200));
        let due = monitor.next_check(sent);
        assert_eq!(
            due,
            Some(at(300)),
            "the loss timeout after the transmission"
        );
        assert_eq!(check(&mut monitor, 299, sent), None, "a pause is no event");
        assert_eq!(check(&mut monitor, 300, sent), Some((Paused, Silent)));
        assert_eq!(monitor.next_check(sent), None);
        assert_eq!(liveness(&monitor, 301, sent), Silent);

        let late = evidence(Some(400), Some(210));
        assert_eq!(liveness(&monitor, 400, late), Delivering);
        assert_eq!(check(&mut monitor, 400, late), Some((Silent, Delivering)));
        assert_eq!(
            check(&mut monitor, 449, late),
            None,
            "although more is overdue"
        );
        assert_eq!(check(&mut monitor, 450, late), Some((Delivering, Silent)));
    }

    #[test]
    fn a_path_that_never_delivered_falls_silent_too() {
        let mut monitor = Monitor::default();
        let sent = evidence(None, Some(0));
        let change = check(&mut monitor, 100, sent);
        assert_eq!(change, Some((Liveness::Unproven, Liveness::Silent)));
        let change = check(&mut monitor, 120, evidence(Some(120), None));
        assert_eq!(change, Some((Liveness::Silent, Liveness::Delivering)));
    }
}
