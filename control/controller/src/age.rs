//! Ages that no clock can change.
//!
//! A date may be wrong, and what is deleted for a wrong date does not come back. So nothing is deleted
//! by its date, but by the time for which a leader has run since it was written: the leader adds
//! monotonic time to a record of the store, and marks the revisions that it had reached by then.

use crate::store::Revision;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The number of marks within the age at which entries are deleted.
const MARKS: u32 = 30;

/// The time for which the leaders of a store have run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunTime {
    /// The sum, seconds.
    total_s: u64,
    /// The last revision and the sum at some earlier times, oldest first.
    marks: Vec<(Revision, u64)>,
}

impl RunTime {
    /// Adds the time that has passed since it was last added. Everything up to the revision `reached` is
    /// in the store. Forgets what [`RunTime::older_than`] does not need for ages up to `longest`.
    pub(crate) fn add(&mut self, passed: Duration, reached: Revision, longest: Duration) {
        self.total_s += passed.as_secs();
        let last = self.marks.last().map(|(_, total_s)| *total_s);
        if last.is_none_or(|last| self.age(last) >= longest / MARKS) {
            self.marks.push((reached, self.total_s));
        }
        let old = self
            .marks
            .iter()
            .take_while(|mark| self.age(mark.1) >= longest);
        let surplus = old.count().saturating_sub(1);
        self.marks.drain(..surplus);
    }

    /// Returns the last revision that is known to be at least that old; 0 if none is.
    pub(crate) fn older_than(&self, age: Duration) -> Revision {
        let mut old = self.marks.iter().rev();
        old.find(|mark| self.age(mark.1) >= age)
            .map_or(0, |(revision, _)| *revision)
    }

    /// Returns the sum, seconds, from which [`RunTime::age`] is counted.
    pub(crate) fn total_s(&self) -> u64 {
        self.total_s
    }

    /// Returns the time for which leaders have run since the sum was `total_s`.
    pub(crate) fn age(&self, total_s: u64) -> Duration {
        Duration::from_secs(self.total_s.saturating_sub(total_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// Returns the time after that many days, in each of which ten revisions are written.
    fn after(days: u64) -> RunTime {
        let mut time = RunTime::default();
        for day in 0..=days {
            time.add(DAY, day * 10, 90 * DAY);
        }
        time
    }

    #[test]
    fn a_new_store_has_nothing_old() {
        assert_eq!(RunTime::default().older_than(Duration::ZERO), 0);
        assert_eq!(after(89).older_than(90 * DAY), 0);
    }

    #[test]
    fn entries_grow_old_by_the_time_that_leaders_run() {
        for days in [93, 200, 5_000] {
            let oldest = after(days).older_than(90 * DAY);
            let exact = (days - 90) * 10;
            assert!(
                (exact.saturating_sub(30)..=exact).contains(&oldest),
                "{days}: {oldest}"
            );
        }
    }

    #[test]
    fn the_number_of_marks_is_limited() {
        assert!(after(5_000).marks.len() <= 32);
    }
}
