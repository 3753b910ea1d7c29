//! The encoding ranges of sent packets (Ni, section 4.4.2), and when their losses are recovered.

use super::shot::Shot;
use crate::Config;
use crate::memory::shrink_if_sparse;
use hawser_units::Instant;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// A contiguous range of packets that are encoded together.
#[derive(Debug)]
pub(super) struct EncodingRange {
    start: u64,
    count: u64,
    opened: Instant,
    is_closed: bool,
    /// The number of packets whose fate is not final.
    pub(super) unsettled: u64,
    pub(super) shot: Shot,
    /// When to recover the losses in the range, if there are any.
    recover_at: Option<Instant>,
}

impl EncodingRange {
    fn new(now: Instant, start: u64) -> Self {
        EncodingRange {
            start,
            count: 0,
            opened: now,
            is_closed: false,
            unsettled: 0,
            shot: Shot::default(),
            recover_at: None,
        }
    }

    pub(super) fn ids(&self) -> Range<u64> {
        self.start..self.start + self.count
    }

    pub(super) fn len(&self) -> usize {
        self.count as usize
    }
}

/// The ranges of all packets that were sent and may have to be recovered, by number.
#[derive(Debug)]
pub(super) struct EncodingRanges {
    ranges: VecDeque<EncodingRange>,
    /// The number of the first element of `ranges`.
    first: u64,
    /// The numbers of the ranges with losses, those with `recover_at`.
    with_losses: BTreeSet<u64>,
    max_packets: u64,
    max_span: Duration,
}

impl EncodingRanges {
    pub(super) fn new(config: &Config) -> Self {
        EncodingRanges {
            ranges: VecDeque::new(),
            first: 0,
            with_losses: BTreeSet::new(),
            max_packets: config.experiment.range_packets.clamp(1, 63) as u64,
            max_span: config.experiment.range_span,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(super) fn get(&self, number: u64) -> Option<&EncodingRange> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.ranges.get(index)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut EncodingRange> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.ranges.get_mut(index)
    }

    pub(super) fn oldest(&self) -> Option<&EncodingRange> {
        self.ranges.front()
    }

    /// Adds packet `id`, which follows the last one, and returns the number of its range.
    pub(super) fn add_packet(&mut self, now: Instant, id: u64, end_of_frame: bool) -> u64 {
        if self.is_last_full(now) {
            self.ranges.push_back(EncodingRange::new(now, id));
        }
        if let Some(range) = self.ranges.back_mut() {
            range.count += 1;
            range.unsettled += 1;
            range.is_closed = end_of_frame;
        }
        self.first + self.ranges.len() as u64 - 1
    }

    /// Returns whether the next packet begins another range.
    pub(super) fn is_last_full(&self, now: Instant) -> bool {
        self.ranges.back().is_none_or(|range| {
            range.is_closed
                || range.count >= self.max_packets
                || now.saturating_since(range.opened) >= self.max_span
        })
    }

    /// Counts a packet of a range whose fate has become final.
    pub(super) fn count_settled(&mut self, number: u64) {
        if let Some(range) = self.get_mut(number) {
            range.unsettled -= 1;
        }
    }

    /// Removes the oldest range.
    pub(super) fn pop_oldest(&mut self) -> Option<EncodingRange> {
        let range = self.ranges.pop_front()?;
        self.with_losses.remove(&self.first);
        self.first += 1;
        shrink_if_sparse(&mut self.ranges);
        Some(range)
    }

    /// Schedules the recovery of a range for `at`, unless it is scheduled.
    pub(super) fn schedule(&mut self, number: u64, at: Instant) {
        let recover_at = self.get(number).and_then(|range| range.recover_at);
        self.set_recovery(number, Some(recover_at.unwrap_or(at)));
    }

    /// Sets when a range is recovered. With `None`, it has no losses.
    pub(super) fn set_recovery(&mut self, number: u64, at: Option<Instant>) {
        let Some(range) = self.get_mut(number) else {
            return;
        };
        range.recover_at = at;
        match at {
            Some(_) => self.with_losses.insert(number),
            None => self.with_losses.remove(&number),
        };
    }

    /// Returns whether the recovery of a range is due.
    pub(super) fn is_due(&self, number: u64, now: Instant) -> bool {
        let recover_at = self.get(number).and_then(|range| range.recover_at);
        recover_at.is_some_and(|at| at <= now)
    }

    /// Returns the first range with losses, of those from number `from` on.
    pub(super) fn next_with_losses(&self, from: u64) -> Option<u64> {
        self.with_losses.range(from..).next().copied()
    }

    /// Returns when the next recovery is due, of those that are due after `after`.
    pub(super) fn next_recovery(&self, after: Instant) -> Option<Instant> {
        let numbers = self.with_losses.iter();
        let times = numbers.filter_map(|number| self.get(*number)?.recover_at);
        times.filter(|at| *at > after).min()
    }
}
