use super::floor::Floor;
use hawser_units::Instant;
use std::time::Duration;

/// A path is useless after this many packets in a row without a useful copy over it.
pub(super) const USELESS_AFTER: u32 = 200;

/// A path that is removed again within this time after its return is backed off for longer the next
/// time.
const SHORT_USE: Duration = Duration::from_secs(10);

/// The first backoff after a short use; it doubles each further time.
const FIRST_BACKOFF: Duration = Duration::from_secs(2);

/// The maximum backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(64);

/// Minimum number of missing copies before a path counts as silent.
const MIN_SILENT_COPIES: u32 = 8;

/// Minimum number of copies, probes included, from which something is known about a path.
const MIN_KNOWN_COPIES: u32 = 16;

/// A path is useful if this many of its last 16 copies were...
const USEFUL: u32 = 14;

/// ...and not any more if only this many were.
const NOT_USEFUL: u32 = 6;

/// Nothing is known about a path over which no copy was sent for this long.
const STALE_AFTER: Duration = Duration::from_secs(10);

/// The weight of one packet in the mean skew.
const SKEW_WEIGHT: f64 = 1.0 / 64.0;

/// The recent history of one path.
#[derive(Debug, Clone, Default)]
pub(super) struct PathHistory {
    /// Packets in a row without a useful copy over the path.
    pub(super) useless: u32,
    /// Packets with a useful copy over the path since the judge was created.
    pub(super) useful: u64,
    /// Whether the copy of each of the last 16 packets sent over the path was useful; bit 0 is the
    /// newest.
    recent: u16,
    /// Packets with a useful copy over the path since it last became useless.
    contributed: u32,
    /// Mean skew of the copies, in seconds.
    pub(super) skew: f64,
    /// The start of the current run of missing copies, and its length.
    missing: Option<(Instant, u32)>,
    silent: bool,
    /// The sequence number and the arrival time of the copy judged last.
    last: Option<(u64, Instant)>,
    /// The time since when every packet takes the path, if it does.
    used_since: Option<Instant>,
    /// Whether this judge added the path to help the flow.
    is_helper: bool,
    /// Copies that were expected so far, and the time of the last one.
    expected: (u32, Instant),
    /// Whether copies over the path were useful when that was last asked.
    was_useful: bool,
    pub(super) floor: Floor,
    pub(super) backoff: Backoff,
}

/// A backoff after failures.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Backoff {
    pub(super) failures: u32,
    until: Instant,
}

impl Backoff {
    /// Notes a failure after a use of duration `used`.
    pub(super) fn fail(&mut self, now: Instant, used: Duration) {
        self.failures = if used < SHORT_USE {
            self.failures + 1
        } else {
            0
        };
        if self.failures > 0 {
            let doubled = FIRST_BACKOFF.saturating_mul(1 << (self.failures - 1).min(16));
            self.until = now + doubled.min(MAX_BACKOFF);
        }
    }

    /// Notes a failure. The time until the next try doubles, except after a use that was long.
    pub(super) fn fail_again(&mut self, now: Instant, was_long: bool) {
        self.failures = if was_long { 1 } else { self.failures + 1 };
        let doubled = FIRST_BACKOFF.saturating_mul(1 << (self.failures - 1).min(16));
        self.until = now + doubled.min(MAX_BACKOFF);
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until <= now
    }

    /// Returns the time that is left.
    pub(super) fn left(&self, now: Instant) -> Duration {
        self.until.saturating_since(now)
    }
}

/// A change of a path's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Silent,
    Restored,
    /// The path had contributed to many packets and then to none of [`USELESS_AFTER`].
    Stopped,
}

impl PathHistory {
    /// Records an expected copy that arrived `skew` after the first one, or did not arrive.
    pub(super) fn record_copy(
        &mut self,
        at: Instant,
        skew: Option<Duration>,
        silent_after: Duration,
    ) -> Option<Change> {
        self.expected = (self.expected.0.saturating_add(1), at);
        if let Some(skew) = skew {
            self.missing = None;
            self.skew += (skew.as_secs_f64() - self.skew) * SKEW_WEIGHT;
            return std::mem::take(&mut self.silent).then_some(Change::Restored);
        }
        let (since, copies) = self.missing.get_or_insert((at, 0));
        *copies += 1;
        let is_long = at.saturating_since(*since) >= silent_after && *copies >= MIN_SILENT_COPIES;
        if !is_long || self.silent {
            return None;
        }
        self.silent = true;
        Some(Change::Silent)
    }

    /// Records the order of a copy. Returns whether it arrived out of order relative to the one
    /// judged before, if there was one.
    pub(super) fn record_order(&mut self, sequence: u64, at: Instant) -> Option<bool> {
        let (last, last_at) = self.last.replace((sequence, at))?;
        let is_later_packet = sequence.wrapping_sub(last) < 1 << 63;
        Some(is_later_packet != (at >= last_at))
    }

    /// Records whether the path's copy of a packet was useful. A gap says nothing about which path
    /// is better.
    pub(super) fn record_use(&mut self, useful: bool, is_gap: bool) -> Option<Change> {
        self.recent = self.recent << 1 | u16::from(useful);
        if is_gap {
            return None;
        }
        if useful {
            self.useless = 0;
            self.useful += 1;
            self.contributed = self.contributed.saturating_add(1);
            return None;
        }
        self.useless += 1;
        if self.useless != USELESS_AFTER {
            return None;
        }
        let contributed = std::mem::take(&mut self.contributed);
        (contributed >= USELESS_AFTER).then_some(Change::Stopped)
    }

    /// Returns how many of the last 16 packets had a useful copy over the path.
    pub(super) fn recent(&self) -> u32 {
        self.recent.count_ones()
    }

    /// Returns the share of the last 16 packets that had a useful copy over the path.
    pub(super) fn recent_use(&self) -> f64 {
        f64::from(self.recent()) / 16.0
    }

    /// Returns whether copies over the path have become useful since this was last asked.
    pub(super) fn has_become_useful(&mut self) -> bool {
        let before = self.was_useful;
        self.was_useful = match self.recent() {
            0..=NOT_USEFUL => false,
            USEFUL.. => true,
            _ => before,
        };
        self.was_useful && !before
    }

    /// Returns whether enough copies were sent over the path recently to know something about it.
    pub(super) fn is_known(&self, now: Instant) -> bool {
        let (copies, last) = self.expected;
        copies >= MIN_KNOWN_COPIES && now.saturating_since(last) <= STALE_AFTER
    }

    /// Notes that every packet takes the path from now on. `is_helper` is set if this judge
    /// proposed it.
    pub(super) fn enter(&mut self, now: Instant, is_helper: bool) {
        self.used_since = Some(now);
        self.is_helper = is_helper;
        self.useless = 0;
    }

    /// Notes that only probes take the path from now on. A path that was useless, or that no longer
    /// helps, has failed.
    pub(super) fn leave(&mut self, now: Instant) {
        let Some(since) = self.used_since.take() else {
            return;
        };
        if self.is_helper || self.useless >= USELESS_AFTER / 2 {
            self.backoff.fail(now, now.saturating_since(since));
        }
        self.useless = 0;
    }
}
