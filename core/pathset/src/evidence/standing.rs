use hawser_units::Instant;
use std::time::Duration;

/// A path is of no use when it was for none of so many packets in a row.
pub(super) const USELESS_AFTER: u32 = 200;

/// A path that leaves again so soon after it came back waits longer the next time.
const SOON: Duration = Duration::from_secs(10);

/// How long a path waits that left soon once; twice as long each further time.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// The most that it waits.
const LONGEST_WAIT: Duration = Duration::from_secs(64);

/// So many copies have to be missing before a path is silent.
const SILENT_COPIES: u32 = 8;

/// How much one packet moves the mean skew.
const SKEW_SHARE: f64 = 1.0 / 64.0;

/// What one path has done lately.
#[derive(Debug, Clone, Default)]
pub(super) struct Standing {
    /// Packets in a row to which the path was of no use.
    pub(super) useless: u32,
    /// Packets to which the path was of use, since the judge began.
    pub(super) useful: u64,
    /// Whether each of the last 16 packets sent over it was one of them; the newest is bit 0.
    recent: u16,
    /// Packets to which it was of use since it last stopped to be.
    contributed: u32,
    /// Mean skew of its copies, seconds.
    pub(super) skew: f64,
    /// Since when, and how many copies, all have been missing.
    missing: Option<(Instant, u32)>,
    silent: bool,
    /// The number and the time of the copy judged last.
    last: Option<(u64, Instant)>,
    /// When every packet came to take it, while that is so.
    used_since: Option<Instant>,
    /// Whether it was taken back because it was to help.
    is_help: bool,
    pub(super) wait: Wait,
}

/// When something that failed may be tried again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wait {
    pub(super) failures: u32,
    until: Instant,
}

impl Wait {
    /// It failed, and had been tried `tried` ago.
    pub(super) fn fail(&mut self, now: Instant, tried: Duration) {
        self.failures = if tried < SOON { self.failures + 1 } else { 0 };
        if self.failures > 0 {
            let doubled = FIRST_WAIT.saturating_mul(1 << (self.failures - 1).min(16));
            self.until = now + doubled.min(LONGEST_WAIT);
        }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until <= now
    }
}

/// How a path changed with a copy that came or did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Silent,
    Restored,
    /// It was of use to many packets and now was to none of [`USELESS_AFTER`].
    Stopped,
}

impl Standing {
    /// A copy that should have come did so, `skew` after the first, or did not.
    pub(super) fn expected(
        &mut self,
        at: Instant,
        skew: Option<Duration>,
        silent_after: Duration,
    ) -> Option<Change> {
        if let Some(skew) = skew {
            self.missing = None;
            self.skew += (skew.as_secs_f64() - self.skew) * SKEW_SHARE;
            return std::mem::take(&mut self.silent).then_some(Change::Restored);
        }
        let (since, copies) = self.missing.get_or_insert((at, 0));
        *copies += 1;
        let for_long = at.saturating_since(*since) >= silent_after && *copies >= SILENT_COPIES;
        if !for_long || self.silent {
            return None;
        }
        self.silent = true;
        Some(Change::Silent)
    }

    /// Whether the copy of a packet came out of order with the one judged before, if there was one.
    pub(super) fn follows(&mut self, sequence: u64, at: Instant) -> Option<bool> {
        let (last, last_at) = self.last.replace((sequence, at))?;
        let is_later_packet = sequence.wrapping_sub(last) < 1 << 63;
        Some(is_later_packet != (at >= last_at))
    }

    /// The path was of use to a packet or not; that nothing of it arrived does not tell which path is better.
    pub(super) fn judged(&mut self, of_use: bool, is_gap: bool) -> Option<Change> {
        self.recent = self.recent << 1 | u16::from(of_use);
        if is_gap {
            return None;
        }
        if of_use {
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

    /// To how many of the last 16 packets the path was of use.
    pub(super) fn recent(&self) -> u32 {
        self.recent.count_ones()
    }

    /// The share of the last 16 packets to which the path was of use.
    pub(super) fn recent_use(&self) -> f64 {
        f64::from(self.recent()) / 16.0
    }

    /// Every packet takes the path from now on; it `is_help` when it was asked for here.
    pub(super) fn enter(&mut self, now: Instant, is_help: bool) {
        self.used_since = Some(now);
        self.is_help = is_help;
        self.useless = 0;
    }

    /// Only probes take the path from now on. One that was of no use, or no longer helps, has failed.
    pub(super) fn leave(&mut self, now: Instant) {
        let Some(since) = self.used_since.take() else {
            return;
        };
        if self.is_help || self.useless >= USELESS_AFTER / 2 {
            self.wait.fail(now, now.saturating_since(since));
        }
        self.useless = 0;
    }
}
