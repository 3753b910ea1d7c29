use crate::Share;
use hawser_packets::media::{Header, PacketId};
use hawser_units::{Bitrate, ByteSize, Instant};

/// The number of levels of priority that budgets distinguish. Level 0 is the most important; the
/// last one has all priorities from 7 on.
pub const LEVELS: usize = 8;

/// The highest rate of a budget, in bytes per second. Together with [`LONGEST_PAUSE_NANOS`] it keeps
/// all products within 64 bits.
const HIGHEST_RATE: u64 = 1 << 31;

/// The largest depth of a bucket, in bytes.
const LARGEST_DEPTH: u64 = 1 << 40;

/// The time of a pause that a bucket is filled for, at most.
const LONGEST_PAUSE_NANOS: u64 = 8_000_000_000;

/// The rate at which a bucket is filled, and the number of bytes that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    bytes_per_second: u64,
    depth_bytes: u64,
}

/// The budget of one level of priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Level {
    /// The number of bytes that must be left in the subscriber's bucket when an object of this level
    /// begins. More than zero is a reserve for other levels. Less than zero is a debt that objects
    /// of this level may begin with: a temporary overflow.
    pub floor: i64,
    /// A bucket of this level alone, which must not be empty either.
    pub limit: Option<Rate>,
}

/// The bytes that a subscriber may be sent. They are checked when an object begins, which is then sent
/// whole, so a bucket may owe up to an object of each track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// The subscriber's bucket. `None`: there is no limit.
    pub total: Option<Rate>,
    /// The levels of priority.
    pub levels: [Level; LEVELS],
    /// The least important priority that is sent; 255 is all.
    pub least_priority: u8,
    /// The share of groups of which objects of this priority are sent; of objects whose packets decode alone, the
    /// share of their packets.
    pub share: Share,
}

/// Bytes that may be sent. `spent` only rises, so sending needs no lock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bucket {
    granted: u64,
    spent: u64,
    /// The time up to which bytes have been granted.
    filled_nanos: u64,
}

impl Rate {
    /// Returns a bucket that holds the bytes of `depth`; of at least a byte per second and at most
    /// 17 Gb/s.
    pub fn new(rate: Bitrate, depth: ByteSize) -> Self {
        Rate {
            bytes_per_second: (rate.bps() / 8).clamp(1, HIGHEST_RATE),
            depth_bytes: depth.0.min(LARGEST_DEPTH),
        }
    }

    /// Returns the bytes that are granted in a second.
    pub const fn bytes_per_second(self) -> u64 {
        self.bytes_per_second
    }

    /// Returns the bytes that the bucket holds.
    pub const fn depth_bytes(self) -> u64 {
        self.depth_bytes
    }
}

impl Budget {
    /// No limit.
    pub const UNLIMITED: Budget = Budget {
        total: None,
        levels: [Level {
            floor: 0,
            limit: None,
        }; LEVELS],
        least_priority: u8::MAX,
        share: Share::ALL,
    };

    /// Returns the budget of a bucket without reserves, the same for all levels.
    pub const fn of(total: Rate) -> Self {
        Budget {
            total: Some(total),
            ..Budget::UNLIMITED
        }
    }

    /// Returns whether the object of a packet is in the share.
    pub(crate) fn has_object(&self, header: &Header) -> bool {
        header.flags.packets_alone
            || header.priority != self.least_priority
            || self.share.contains(header.id.object.group)
    }

    /// Returns whether a packet of an object that is served is in the share.
    pub fn has_packet(&self, header: &Header) -> bool {
        !header.flags.packets_alone
            || header.priority != self.least_priority
            || self.share.contains(number(&header.id))
    }

    /// Returns the level of a priority.
    pub fn level(priority: u8) -> usize {
        usize::from(priority).min(LEVELS - 1)
    }
}

/// Returns the number of a packet that decides whether it is in a share. Each group begins with another one, so
/// that also of short objects a share is exact over some groups.
const fn number(id: &PacketId) -> u32 {
    let step = id.object.group.wrapping_mul(159);
    step.wrapping_add(id.index as u32)
}

impl Default for Budget {
    fn default() -> Self {
        Budget::UNLIMITED
    }
}

impl Bucket {
    /// Grants the bytes of the time since the last call.
    pub(crate) fn fill(&mut self, rate: Option<Rate>, now: Instant) {
        let now = now.as_nanos();
        let Some(rate) = rate else {
            self.granted = self.spent;
            self.filled_nanos = now;
            return;
        };
        let Some(pause) = now.checked_sub(self.filled_nanos) else {
            return;
        };
        let elapsed = pause.min(LONGEST_PAUSE_NANOS);
        let earned = elapsed * rate.bytes_per_second / 1_000_000_000;
        if earned == 0 {
            return;
        }
        let limit = self.spent + rate.depth_bytes;
        if pause > LONGEST_PAUSE_NANOS || self.granted + earned >= limit {
            self.filled_nanos = now;
        } else {
            self.filled_nanos += earned * 1_000_000_000 / rate.bytes_per_second;
        }
        self.granted = (self.granted + earned).min(limit);
    }

    /// Returns the bytes that are left; negative if more was sent.
    pub(crate) const fn balance(&self) -> i64 {
        self.granted.wrapping_sub(self.spent).cast_signed()
    }

    pub(crate) const fn spend(&mut self, bytes: u64) {
        self.spent += bytes;
    }

    pub(crate) const fn spent(&self) -> u64 {
        self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn rate(bytes_per_second: u64, depth: u64) -> Option<Rate> {
        Some(Rate::new(
            Bitrate::from_bps(bytes_per_second * 8),
            ByteSize(depth),
        ))
    }

    #[test]
    fn a_bucket_begins_full_and_holds_no_more_than_its_depth() {
        let mut bucket = Bucket::default();
        bucket.fill(rate(1_000, 500), at(100 * SECOND));
        assert_eq!(bucket.balance(), 500);
        bucket.spend(2_000);
        bucket.fill(rate(1_000, 500), at(101 * SECOND));
        assert_eq!(bucket.balance(), -500);
        bucket.fill(rate(1_000, 500), at(200 * SECOND));
        assert_eq!(bucket.balance(), 500);
    }

    #[test]
    fn what_was_sent_without_a_limit_is_not_owed_later() {
        let mut bucket = Bucket::default();
        bucket.fill(None, at(SECOND));
        bucket.spend(1 << 40);
        bucket.fill(None, at(2 * SECOND));
        bucket.spend(100);
        bucket.fill(rate(1_000, 500), at(2 * SECOND));
        assert_eq!(bucket.balance(), -100);
    }

    #[test]
    fn rates_stay_within_their_range() {
        let highest = Rate::new(Bitrate::from_bps(u64::MAX), ByteSize(u64::MAX));
        assert_eq!(highest.bytes_per_second(), HIGHEST_RATE);
        let lowest = Rate::new(Bitrate::from_bps(0), ByteSize(0));
        assert_eq!((lowest.bytes_per_second(), lowest.depth_bytes()), (1, 0));
        let mut bucket = Bucket::default();
        bucket.fill(Some(highest), at(u64::MAX));
        bucket.fill(Some(highest), at(u64::MAX));
        assert!(bucket.balance() > 0);
    }

    proptest! {
        /// However often a bucket is filled, it grants its rate, but for a nanosecond each time.
        #[test]
        fn nothing_is_lost_between_fillings(
            bytes_per_second in 1..1u64 << 31,
            pauses in proptest::collection::vec(1..SECOND / 10, 1..100),
        ) {
            let rate = rate(bytes_per_second, 1 << 40);
            let mut bucket = Bucket::default();
            let start = 100 * SECOND;
            bucket.fill(rate, at(start));
            let before = bucket.balance();
            let mut now = start;
            let fillings = pauses.len() as u128;
            for pause in pauses {
                now += pause;
                bucket.fill(rate, at(now));
            }
            let earned = u128::from(now - start) * u128::from(bytes_per_second) / u128::from(SECOND);
            let granted = (bucket.balance() - before) as u128;
            let excess = u128::from(bytes_per_second.div_ceil(SECOND)) * fillings;
            prop_assert!(
                granted + 1 >= earned && granted <= earned + excess,
                "{} of {}", granted, earned
            );
        }
    }
}
