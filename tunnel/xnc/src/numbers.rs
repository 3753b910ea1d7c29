//! Numbers of packets and transmissions: expansion of truncated ones, acknowledged and received
//! ranges, and the replay window.

use crate::frame::MAX_RANGES;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Range, RangeInclusive};

/// Returns the number whose low `bits` bits are `truncated` and that is nearest to the successor of
/// `largest` (RFC 9000, appendix A.3).
pub(crate) fn expand(truncated: u64, bits: u32, largest: Option<u64>) -> u64 {
    let expected = largest.map_or(0, |largest| largest.saturating_add(1));
    let window = 1u64 << bits;
    let half = window / 2;
    let candidate = expected & !(window - 1) | truncated;
    if candidate.saturating_add(half) <= expected {
        candidate.saturating_add(window)
    } else if candidate > expected.saturating_add(half) && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

/// The result of [`ReceivedRanges::insert`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Insert {
    New,
    /// The number was received before.
    Repeated,
    /// The number precedes all remembered ranges, so it may have been received before.
    TooOld,
}

/// The highest ranges of received numbers, as sent in acknowledgements.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReceivedRanges {
    /// Highest first. No two ranges are adjacent.
    ranges: VecDeque<RangeInclusive<u64>>,
}

impl ReceivedRanges {
    /// Inserts a number.
    pub(crate) fn insert(&mut self, number: u64) -> Insert {
        let index = self
            .ranges
            .iter()
            .position(|range| *range.start() <= number.saturating_add(1));
        let Some(index) = index else {
            if self.ranges.len() >= MAX_RANGES {
                return Insert::TooOld;
            }
            self.ranges.push_back(number..=number);
            return Insert::New;
        };
        let (start, end) = self.ranges[index].clone().into_inner();
        if (start..=end).contains(&number) {
            return Insert::Repeated;
        }
        if number + 1 == start {
            self.ranges[index] = number..=end;
            self.join_below(index);
        } else if end + 1 == number {
            self.ranges[index] = start..=number;
        } else {
            self.ranges.insert(index, number..=number);
            self.ranges.truncate(MAX_RANGES);
        }
        Insert::New
    }

    fn join_below(&mut self, index: usize) {
        let Some(below) = self.ranges.get(index + 1).cloned() else {
            return;
        };
        if below.end() + 1 == *self.ranges[index].start() {
            self.ranges[index] = *below.start()..=*self.ranges[index].end();
            self.ranges.remove(index + 1);
        }
    }

    pub(crate) fn largest(&self) -> Option<u64> {
        self.ranges.front().map(|range| *range.end())
    }

    pub(crate) fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.ranges.iter().cloned().collect()
    }
}

/// Numbers that were acknowledged before, so that repeated ranges of acknowledgements cost nothing.
#[derive(Debug, Default)]
pub(crate) struct AckedRanges {
    /// Maps the first number of each range to the one after its last. No two ranges are adjacent.
    ranges: BTreeMap<u64, u64>,
}

impl AckedRanges {
    /// Inserts a range and returns the parts of it that are new, the lowest first.
    pub(crate) fn add(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut new, mut joined, mut end) = (Vec::new(), range.clone(), range.end);
        while let Some((start, known)) = self
            .ranges
            .range(..=range.end)
            .next_back()
            .map(|(s, e)| (*s, *e))
            && known >= range.start
        {
            self.ranges.remove(&start);
            new.push(known..end);
            joined = joined.start.min(start)..joined.end.max(known);
            end = start;
        }
        self.ranges.insert(joined.start, joined.end);
        new.push(range.start..end);
        new.retain(|part| !part.is_empty());
        new.reverse();
        new
    }

    /// Forgets the ranges that end before `number`.
    pub(crate) fn forget_before(&mut self, number: u64) {
        while let Some(first) = self
            .ranges
            .first_entry()
            .filter(|first| *first.get() < number)
        {
            first.remove();
        }
    }
}

/// The replay window: a bit for each of the last [`ReplayWindow::SPAN`] packet numbers, set if the
/// packet was delivered.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplayWindow {
    words: VecDeque<u64>,
    /// The number of the lowest bit, a multiple of 64.
    base: u64,
}

impl ReplayWindow {
    /// The length of the window: 0.7 s of 1400-byte packets at 1.5 Gbit/s, rounded up to a power of
    /// two.
    pub(crate) const SPAN: u64 = 1 << 17;

    /// Inserts a number. Returns `true` if the packet is to be delivered, `false` if it was
    /// delivered before or is too old to tell.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        let Some(offset) = number.checked_sub(self.base) else {
            return false;
        };
        let mut word = offset / 64;
        let span = ReplayWindow::SPAN / 64;
        if word >= span {
            let surplus = word + 1 - span;
            let gone = self
                .words
                .len()
                .min(usize::try_from(surplus).unwrap_or(usize::MAX));
            self.words.drain(..gone);
            self.base += surplus * 64;
            word -= surplus;
        }
        let word = word as usize;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let bit = 1 << (number % 64);
        let first = self.words[word] & bit == 0;
        self.words[word] |= bit;
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(expand(0x9b32, 16, Some(0xa82f_30ea)), 0xa82f_9b32);
    }

    proptest! {
        #[test]
        fn a_number_near_the_largest_is_found(largest in any::<u32>(), ahead in -32_000i64..32_000) {
            let number = i64::from(largest) + ahead;
            prop_assume!(number >= 0);
            let number = number as u64;
            prop_assert_eq!(expand(number & 0xffff, 16, Some(largest.into())), number);
        }

        #[test]
        fn expanding_never_overflows(truncated in 0u64..1 << 24, largest in any::<Option<u64>>()) {
            expand(truncated, 24, largest);
        }

        #[test]
        fn ranges_hold_what_arrived(numbers in proptest::collection::vec(0u64..60, 0..80)) {
            let mut arrived = ReceivedRanges::default();
            let mut seen = BTreeSet::new();
            for number in numbers {
                prop_assert_eq!(arrived.insert(number) == Insert::New, seen.insert(number));
                let ranges = arrived.ranges();
                prop_assert!(ranges.windows(2).all(|pair| pair[1].end() + 1 < *pair[0].start()));
                let held: BTreeSet<u64> = ranges.into_iter().flatten().collect();
                prop_assert_eq!(&held, &seen);
                prop_assert_eq!(arrived.largest(), seen.last().copied());
            }
        }

        #[test]
        fn what_was_named_is_not_new(ranges in proptest::collection::vec((0u64..100, 1u64..30), 0..40)) {
            let (mut acked, mut seen) = (AckedRanges::default(), BTreeSet::new());
            for (start, count) in ranges {
                let range = start..start + count;
                let expected: Vec<u64> = range.clone().filter(|number| seen.insert(*number)).collect();
                prop_assert_eq!(acked.add(range).into_iter().flatten().collect::<Vec<_>>(), expected);
                let held = acked.ranges.iter().flat_map(|(start, end)| *start..*end);
                prop_assert_eq!(held.collect::<BTreeSet<_>>(), seen.clone());
                let ends = acked.ranges.values().zip(acked.ranges.keys().skip(1));
                prop_assert!(ends.into_iter().all(|(end, next)| end < next));
            }
            acked.forget_before(50);
            prop_assert!(acked.ranges.values().all(|end| *end >= 50));
        }

        #[test]
        fn a_packet_is_delivered_once(numbers in proptest::collection::vec(0u64..400_000, 0..300)) {
            let mut delivered = ReplayWindow::default();
            let mut seen = BTreeSet::new();
            let mut largest = 0;
            for number in numbers {
                largest = largest.max(number);
                let first = delivered.insert(number);
                prop_assert!(!first || !seen.contains(&number));
                if number + ReplayWindow::SPAN > largest + 64 {
                    prop_assert_eq!(first, !seen.contains(&number));
                }
                seen.insert(number);
                prop_assert!(delivered.words.len() as u64 <= ReplayWindow::SPAN / 64);
            }
        }
    }
}
