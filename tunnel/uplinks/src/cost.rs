//! The cost classes in use.

use hawser_units::Instant;
use std::time::Duration;

/// The highest cost class in use: the lowest one with a working path, and higher ones while packets
/// wait.
#[derive(Debug)]
pub(crate) struct CostLevel {
    level: u8,
    waiting_since: Option<Instant>,
    /// The time since which no packets have waited.
    idle_since: Instant,
    raised_at: Option<Instant>,
    /// The time for which a higher level stays in use without need.
    hold: Duration,
}

/// The time that packets wait before another class is added.
const RAISE_AFTER: Duration = Duration::from_millis(500);

/// The initial and the largest time for which an added class stays in use without need.
const HOLD: Duration = Duration::from_secs(10);
const MAX_HOLD: Duration = Duration::from_secs(300);

/// The class of a path, and whether the path works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) cost: u8,
    pub(crate) works: bool,
}

impl CostLevel {
    pub(crate) fn new(now: Instant) -> CostLevel {
        CostLevel {
            level: 0,
            waiting_since: None,
            idle_since: now,
            raised_at: None,
            hold: HOLD,
        }
    }

    /// Returns the highest class to use, given the paths and whether packets wait.
    pub(crate) fn update(&mut self, now: Instant, paths: &[Candidate], waits: bool) -> u8 {
        let working = paths.iter().filter(|path| path.works).map(|path| path.cost);
        let lowest = working.min().or(paths.iter().map(|path| path.cost).min());
        let Some(lowest) = lowest else {
            return self.level;
        };
        if self.level < lowest {
            self.level = lowest;
            self.idle_since = now;
        }
        if waits {
            self.idle_since = now;
            self.help(now, paths);
        } else {
            self.waiting_since = None;
            if self.level > lowest && now.saturating_since(self.idle_since) >= self.hold {
                self.level = lowest;
            }
        }
        self.level
    }

    /// Adds the next class with a working path once packets have waited for long enough.
    fn help(&mut self, now: Instant, paths: &[Candidate]) {
        let since = *self.waiting_since.get_or_insert(now);
        let above = paths.iter().filter(|p| p.works && p.cost > self.level);
        let Some(above) = above.map(|path| path.cost).min() else {
            return;
        };
        if now.saturating_since(since) < RAISE_AFTER {
            return;
        }
        // The class was dropped only recently: hold it longer this time.
        let is_recent = self
            .raised_at
            .is_some_and(|raised| now.saturating_since(raised) < self.hold * 2);
        self.hold = if is_recent {
            (self.hold * 2).min(MAX_HOLD)
        } else {
            HOLD
        };
        self.raised_at = Some(now);
        self.level = above;
        self.waiting_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn paths(free_works: bool) -> [Candidate; 2] {
        [
            Candidate {
                cost: 0,
                works: free_works,
            },
            Candidate {
                cost: 3,
                works: true,
            },
        ]
    }

    fn at(ms: u32) -> Instant {
        Instant::ZERO + ms * MS
    }

    #[test]
    fn the_cheapest_that_works_is_used() {
        let mut level = CostLevel::new(at(0));
        assert_eq!(level.update(at(0), &paths(true), false), 0);
        assert_eq!(level.update(at(100), &paths(false), false), 3);
        assert_eq!(
            level.update(at(200), &paths(true), false),
            3,
            "not for every hiccup"
        );
        assert_eq!(level.update(at(11_000), &paths(true), false), 0);
    }

    #[test]
    fn what_does_not_suffice_gets_help_for_a_while() {
        let mut level = CostLevel::new(at(0));
        assert_eq!(level.update(at(0), &paths(true), true), 0);
        assert_eq!(level.update(at(600), &paths(true), true), 3);
        assert_eq!(level.update(at(700), &paths(true), false), 3);
        assert_eq!(level.update(at(10_700), &paths(true), false), 0);
    }

    #[test]
    fn need_that_comes_back_is_helped_longer() {
        let mut level = CostLevel::new(at(0));
        level.update(at(0), &paths(true), true);
        assert_eq!(level.update(at(600), &paths(true), true), 3);
        assert_eq!(level.update(at(10_700), &paths(true), false), 0);
        level.update(at(10_800), &paths(true), true);
        assert_eq!(level.update(at(11_400), &paths(true), true), 3);
        assert_eq!(level.update(at(22_000), &paths(true), false), 3);
        assert_eq!(level.update(at(31_500), &paths(true), false), 0);
    }

    #[test]
    fn without_paths_nothing_changes() {
        assert_eq!(CostLevel::new(at(0)).update(at(0), &[], true), 0);
    }
}
