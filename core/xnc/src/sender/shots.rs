//! Recovery in one shot: what of a range was lost is sent again as combinations, over all paths at once.

use super::{CODED_OVERHEAD, Sender, Transmit};
use crate::config::Config;
use crate::outstanding::Content;
use crate::path::Path;
use crate::pool::{Fate, Original, Shot};
use crate::recovery::ShotRule;
use crate::scheme::{Recovery, expected, is_open};
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
            self.next_shot = None;
        }
    }

    /// A combination of `count` packets from `start` on arrived or was lost.
    pub(super) fn coded_decided(&mut self, now: Instant, start: u64, count: u8, arrived: bool) {
        let Some((number, range)) = self.pool.range_of(start) else {
            return;
        };
        // One of an earlier shot, for other packets, says nothing of these.
        if (range.shot.first, range.shot.count) == (start, count) {
            range.shot.in_flight = range.shot.in_flight.saturating_sub(1);
            range.shot.arrived += usize::from(arrived);
            self.judge(now, number);
        }
    }

    /// Whether what was shot for a range sufficed, or is known not to suffice.
    pub(super) fn judge(&mut self, now: Instant, number: u64) {
        let Some(range) = self.pool.range(number) else {
            return;
        };
        let shot = range.shot;
        let unknown = self
            .pool
            .members(range)
            .filter(|(id, original)| shot.ids().contains(id) && original.fate != Fate::Delivered);
        // As many combinations as unknowns fail to be independent once in 254 times, one more once in 65,000 (theorem 4.1).
        let suffices = shot.arrived >= unknown.count() + self.config.extra_packets.min(1);
        let recovering: Vec<(u64, u32)> = self
            .pool
            .members(range)
            .filter(|(_, original)| original.fate == Fate::Recovering)
            .map(|(id, original)| (id, original.in_flight))
            .collect();
        for (id, copies) in recovering {
            if suffices && shot.arrived > 0 {
                self.settle_delivered(id);
            } else if shot.in_flight == 0 && shot.owed == 0 && copies == 0 {
                if shot.fired < self.config.shots {
                    self.mark_lost(now, id)
                } else {
                    self.give_up(id)
                }
            }
        }
    }

    /// Fires the shots that are due and that the windows take. Until windows, losses or the time change, nothing can be sent
    /// for a range that was passed by.
    pub(super) fn poll_shot(&mut self, now: Instant) -> Option<Transmit> {
        let mut from = self
            .next_shot
            .filter(|(at, _)| *at == now)
            .map_or(0, |(_, number)| number);
        while let Some(&number) = self.shots.range(from..).next() {
            self.next_shot = Some((now, number));
            let due = self
                .pool
                .range(number)
                .map(|range| range.recover_at.is_some_and(|at| at <= now));
            if due != Some(false) {
                if self.shoot(now, number) {
                    self.unload(now, number);
                }
                if let Some(transmit) = self.poll_planned(now) {
                    return Some(transmit);
                }
            }
            from = number + 1;
        }
        self.next_shot = Some((now, from));
        None
    }

    /// Gives up the shots for the oldest packets, as long as these are of no use any more.
    pub(super) fn drop_stale_shots(&mut self, now: Instant) {
        self.next_shot = None;
        while let Some(&number) = self.shots.first()
            && self.is_stale(now, number)
        {
            self.abandon(number);
            self.unload(now, number);
        }
    }

    /// Whether something is still to be recovered of a range, and all of it is of no use any more.
    fn is_stale(&self, now: Instant, number: u64) -> bool {
        let Some(range) = self.pool.range(number) else {
            return false;
        };
        let mut missing = self
            .pool
            .members(range)
            .filter(|(_, original)| original.is_missing())
            .peekable();
        missing.peek().is_some() && missing.all(|(_, original)| self.is_expired(now, original))
    }

    fn is_expired(&self, now: Instant, original: &Original) -> bool {
        original.since + self.config.expiry <= now
    }

    /// Gives up what is still to be recovered of a range.
    fn abandon(&mut self, number: u64) {
        let Some(range) = self.pool.range(number) else {
            return;
        };
        let missing = self
            .pool
            .members(range)
            .filter(|(_, original)| original.is_missing());
        let missing: Vec<u64> = missing.map(|(id, _)| id).collect();
        missing.into_iter().for_each(|id| self.give_up(id));
        if let Some(range) = self.pool.range_mut(number) {
            range.shot.owed = 0;
        }
    }

    /// Whether what was planned is of use when it is handed out.
    pub(super) fn is_wanted(&self, now: Instant, content: Content) -> bool {
        let ids = match content {
            Content::Ping => return true,
            Content::Original(id) => id..id + 1,
            Content::Coded { start, count } => start..start + u64::from(count),
        };
        let is_reliable = self.parts.recovery == Recovery::Resend;
        let mut originals = ids.filter_map(|id| self.pool.get(id));
        originals.any(|original| is_reliable || !self.is_expired(now, original))
    }

    /// Something that was planned is not sent.
    pub(super) fn drop_planned(&mut self, now: Instant, content: Content) {
        match content {
            Content::Coded { start, count } => self.coded_decided(now, start, count, false),
            Content::Original(id) => {
                if let Some((number, _)) = self.pool.range_of(id) {
                    self.judge(now, number);
                }
            }
            Content::Ping => {}
        }
    }

    /// Plans what the windows take of the shot for a range; true when nothing remains of it.
    ///
    /// The paper waits until the windows take the whole shot (Ni, section 4.5.2). While packets wait, windows never open
    /// that far, and the shot would not be fired before it is of no use; so it begins with the first window, before all
    /// packets that are new.
    fn shoot(&mut self, now: Instant, number: u64) -> bool {
        let is_owed = self
            .pool
            .range(number)
            .is_some_and(|range| range.shot.owed > 0);
        if is_owed && self.is_stale(now, number) {
            self.abandon(number);
            return true;
        }
        if !is_owed && !self.load(now, number) {
            return true;
        }
        let Some(mut shot) = self.pool.range(number).map(|range| range.shot) else {
            return true;
        };
        let Shot {
            first,
            count,
            lost,
            owed,
            fired,
            ..
        } = shot;
        let lengths = shot
            .ids()
            .filter_map(|id| self.pool.get(id))
            .map(|original| original.bytes.len());
        let rule = self.shot_rule(fired);
        let left =
            |shot: &Shot, path: PathId| rule.most(lost).saturating_sub(shot.by_path[path.index()]);
        let mut rooms = self.rooms(now, lengths.max().unwrap_or(0) + CODED_OVERHEAD);
        rooms
            .iter_mut()
            .for_each(|(path, room)| *room = left(&shot, *path).min(*room));
        let coded = self.parts.recovery == Recovery::OneShot { coded: true } && lost > 1;
        let recovering = |id: &u64| {
            self.pool
                .get(*id)
                .is_some_and(|o| o.fate == Fate::Recovering)
        };
        let originals: Vec<u64> = if coded {
            Vec::new()
        } else {
            shot.ids().filter(recovering).collect()
        };
        if !coded && originals.is_empty() {
            return true;
        }
        let mut sent = 0;
        for (path, share) in rule.shares(lost, owed, &rooms) {
            for turn in owed - sent..owed - sent + share {
                let content = match coded {
                    true => Content::Coded {
                        start: first,
                        count,
                    },
                    false => Content::Original(originals[turn % originals.len()]),
                };
                self.planned.push_back((path, content));
            }
            sent += share;
            shot.by_path[path.index()] += share;
        }
        shot.in_flight += if coded { sent } else { 0 };
        shot.owed -= sent;
        let may_more = self.paths.iter().any(|path| left(&shot, path.id) > 0);
        let is_spent = sent == 0 && !may_more && self.paths.iter().next().is_some();
        if is_spent {
            shot.owed = 0;
        }
        if let Some(range) = self.pool.range_mut(number) {
            range.shot = shot;
        }
        if is_spent {
            // What was under way of it may have been decided while some was owed.
            self.judge(now, number);
        }
        shot.owed == 0
    }

    /// A shot is over. What was lost since it began needs another.
    fn unload(&mut self, now: Instant, number: u64) {
        let Some(range) = self.pool.range(number) else {
            self.shots.remove(&number);
            return;
        };
        let is_over = self
            .pool
            .members(range)
            .all(|(_, original)| original.fate != Fate::Lost);
        let again = now + self.config.gather;
        if let Some(range) = self.pool.range_mut(number) {
            range.shot.owed = 0;
            range.recover_at = (!is_over).then_some(again);
        }
        if is_over {
            self.shots.remove(&number);
        }
    }

    /// Takes what was lost of a range into a new shot; false when there is nothing to shoot for. What an earlier shot was
    /// for is part of it, as long as it is not known to have been recovered.
    fn load(&mut self, now: Instant, number: u64) -> bool {
        let Some(range) = self.pool.range(number) else {
            return false;
        };
        let before = range.shot;
        let missing = self
            .pool
            .members(range)
            .filter(|(_, original)| original.is_missing());
        let missing: Vec<(u64, &Original)> = missing.collect();
        // Of a flow packets are sent in the order in which they came: one that is still of use keeps those before it.
        let is_of_use = |(_, original): &&(u64, &Original)| {
            let of_flow = missing
                .iter()
                .filter(|(_, other)| other.hint.flow_hash == original.hint.flow_hash);
            of_flow
                .into_iter()
                .any(|(_, other)| !self.is_expired(now, other))
        };
        let is_new = |(_, original): &&(u64, &Original)| original.fate == Fate::Lost;
        if !missing.iter().any(|lost| is_new(&lost)) {
            return false;
        }
        let (wanted, stale): (Vec<_>, Vec<_>) = missing.iter().partition(is_of_use);
        let is_new = wanted.iter().any(|lost| is_new(&lost));
        let [missing, stale] =
            [wanted, stale].map(|ids| ids.iter().map(|(id, _)| *id).collect::<Vec<u64>>());
        stale.into_iter().for_each(|id| self.give_up(id));
        let (Some(&first), Some(&last), true) = (missing.first(), missing.last(), is_new) else {
            return false;
        };
        for id in &missing {
            if let Some(original) = self.pool.get_mut(*id) {
                original.fate = Fate::Recovering;
            }
        }
        self.stats.recoveries += 1;
        let (lost, fired) = (missing.len(), before.fired + 1);
        let rule = self.shot_rule(fired);
        let owed = rule
            .total(lost)
            .min(rule.most(lost).saturating_mul(self.paths.iter().count()))
            .max(rule.needed(lost));
        let mut shot = Shot {
            first,
            count: (last - first + 1) as u8,
            lost,
            owed,
            fired,
            ..Shot::default()
        };
        if shot.ids() == before.ids() {
            (shot.in_flight, shot.arrived) = (before.in_flight, before.arrived);
        }
        if let Some(range) = self.pool.range_mut(number) {
            range.shot = shot;
            range.recover_at = Some(now);
        }
        true
    }

    /// What shot number `fired` for the same packets may be.
    fn shot_rule(&self, fired: u32) -> ShotRule {
        let Config {
            path_share,
            total_share,
            ..
        } = self.config;
        let is_first = fired <= 1;
        let extra = match is_first && self.queue.is_pressed() {
            true => self.config.extra_packets_waiting,
            false => self.config.extra_packets,
        };
        let copies = if is_first {
            self.config.copies
        } else {
            self.config.copies_again
        };
        ShotRule {
            extra,
            path_share,
            total_share,
            copies,
        }
    }

    /// How many frames of `size` each path takes, the best path first: what is lost once more is too late for its frame. So
    /// those that lost everything of late are left out, as long as there are others, and those that were not heard of lately
    /// come last.
    fn rooms(&self, now: Instant, size: usize) -> Vec<(PathId, usize)> {
        let mut paths: Vec<_> = self
            .paths
            .iter()
            .filter(|path| is_open(path, now, &self.config))
            .collect();
        let is_doubted = |path: &&Path| path.outstanding.is_doubted();
        if !paths.iter().all(is_doubted) {
            paths.retain(|path| !is_doubted(path));
        }
        paths.sort_by_key(|path| {
            (
                !path.was_heard(now, &self.config),
                expected(path, now, &self.config, size),
            )
        });
        paths
            .into_iter()
            .map(|path| (path.id, path.room_within(size, self.config.queue_target)))
            .collect()
    }
}

#[cfg(test)]
mod tests;
