//! Recovery in one shot: what of a range was lost is sent again as combinations, over all paths at once.

use super::{CODED_OVERHEAD, Sender, Transmit};
use crate::outstanding::Content;
use crate::pool::Fate;
use crate::scheme::{Recovery, expected};
use hawser_units::{Instant, PathId};

impl Sender {
    /// A packet was lost for the first time.
    pub(super) fn mark_lost(&mut self, now: Instant, id: u64) {
        if let Some(original) = self.pool.get_mut(id) {
            original.fate = Fate::Lost;
        }
        if let Some((number, range)) = self.pool.range_of(id) {
            range.recover_at.get_or_insert(now + self.config.gather);
            self.shots.insert(number);
        }
    }

    /// A combination that begins with packet `start` arrived or was lost.
    pub(super) fn coded_decided(&mut self, now: Instant, start: u64, arrived: bool) {
        let Some((number, range)) = self.pool.range_of(start) else { return };
        range.coded_in_flight = range.coded_in_flight.saturating_sub(1);
        range.coded_arrived += u32::from(arrived);
        self.judge(now, number);
    }

    /// Whether what was shot for a range sufficed, or is known not to suffice.
    pub(super) fn judge(&mut self, now: Instant, number: u64) {
        let Some(range) = self.pool.range(number) else { return };
        let recovering: Vec<(u64, u32)> = self
            .pool
            .members(range)
            .filter(|(_, original)| original.fate == Fate::Recovering)
            .map(|(id, original)| (id, original.in_flight))
            .collect();
        let suffices = range.coded_arrived as usize >= recovering.len() && range.coded_arrived > 0;
        let under_way = range.coded_in_flight > 0;
        let may_repeat = range.shots < self.config.shots;
        for (id, copies) in recovering {
            if suffices {
                self.settle_delivered(id);
            } else if !under_way && copies == 0 {
                if may_repeat { self.mark_lost(now, id) } else { self.give_up(id) }
            }
        }
    }

    /// Fires the shots that are due and that the windows take.
    pub(super) fn poll_shot(&mut self, now: Instant) -> Option<Transmit> {
        let numbers: Vec<u64> = self.shots.iter().copied().collect();
        for number in numbers {
            let due = self.pool.range(number).map(|range| range.recover_at.is_some_and(|at| at <= now));
            if due == Some(false) {
                continue;
            }
            if self.shoot(now, number) {
                self.shots.remove(&number);
            }
            if let Some(transmit) = self.poll_planned(now) {
                return Some(transmit);
            }
        }
        None
    }

    /// Plans the shot for a range; false when the windows do not take it.
    fn shoot(&mut self, now: Instant, number: u64) -> bool {
        let Some(range) = self.pool.range(number) else { return true };
        let lost: Vec<u64> =
            self.pool.members(range).filter(|(_, o)| o.fate == Fate::Lost).map(|(id, _)| id).collect();
        let (Some(&first), Some(&last)) = (lost.first(), lost.last()) else { return true };
        let expired = self.pool.get(last).is_none_or(|original| original.since + self.config.expiry <= now);
        if expired {
            lost.into_iter().for_each(|id| self.give_up(id));
            return true;
        }
        let longest = (first..=last).filter_map(|id| self.pool.get(id)).map(|original| original.bytes.len());
        let size = longest.max().unwrap_or(0) + CODED_OVERHEAD;
        let Some(shares) = self.rule.shares(lost.len(), &self.rooms(now, size)) else { return false };
        let coded = self.parts.recovery == Recovery::OneShot { coded: true } && lost.len() > 1;
        let count = (last - first + 1) as u8;
        let mut number_of_coded = 0;
        for (path, share) in shares {
            let contents = (0..share).map(|turn| match coded {
                true => Content::Coded { start: first, count },
                false => Content::Original(lost[turn % lost.len()]),
            });
            self.planned.extend(contents.map(|content| (path, content)));
            number_of_coded += if coded { share as u32 } else { 0 };
        }
        self.stats.recoveries += 1;
        for id in lost {
            if let Some(original) = self.pool.get_mut(id) {
                original.fate = Fate::Recovering;
            }
        }
        if let Some(range) = self.pool.range_mut(number) {
            range.shots += 1;
            range.recover_at = None;
            range.coded_in_flight += number_of_coded;
        }
        true
    }

    /// How many frames of `size` each path takes, the best path first. Silent ones are left alone.
    fn rooms(&self, now: Instant, size: usize) -> Vec<(PathId, usize)> {
        let mut paths: Vec<_> = self.paths.iter().filter(|path| !path.silent && path.fits(size)).collect();
        paths.sort_by_key(|path| expected(path, now));
        paths.into_iter().map(|path| (path.id, path.room(size))).collect()
    }
}
