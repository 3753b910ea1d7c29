//! One-shot recovery: the losses of a range are recovered by coded packets over all paths at once.

use super::{CODED_OVERHEAD, Sender, Transmit};
use crate::config::Config;
use crate::path::Path;
use crate::recovery::ShotRule;
use crate::scheme::{Recovery, expected_delay, is_open};
use crate::sent_packets::{Fate, SentPacket, Shot};
use crate::sent_transmissions::Content;
use hawser_units::{Instant, PathId};

impl Sender {
    /// Marks a packet as lost and schedules a shot for its range.
    pub(super) fn schedule_recovery(&mut self, now: Instant, id: u64) {
        if let Some(original) = self.sent_packets.get_mut(id) {
            original.fate = Fate::Lost;
        }
        if let Some((number, range)) = self.sent_packets.range_of(id) {
            range
                .recover_at
                .get_or_insert(now + self.config.recovery_delay);
            self.shots.insert(number);
            self.next_shot = None;
        }
    }

    /// Handles the arrival or loss of a coded packet over `count` packets from `start` on.
    pub(super) fn handle_coded_outcome(
        &mut self,
        now: Instant,
        start: u64,
        count: u8,
        arrived: bool,
    ) {
        let Some((number, range)) = self.sent_packets.range_of(start) else {
            return;
        };
        // A coded packet of an earlier shot for other packets does not count.
        if (range.shot.first, range.shot.count) == (start, count) {
            range.shot.in_flight = range.shot.in_flight.saturating_sub(1);
            range.shot.arrived += usize::from(arrived);
            self.evaluate_shot(now, number);
        }
    }

    /// Settles the packets of a range's shot if the shot sufficed or can no longer suffice.
    pub(super) fn evaluate_shot(&mut self, now: Instant, number: u64) {
        let Some(range) = self.sent_packets.range(number) else {
            return;
        };
        let shot = range.shot;
        let unknown = self
            .sent_packets
            .members(range)
            .filter(|(id, original)| shot.ids().contains(id) && original.fate != Fate::Delivered);
        // As many coded packets as unknowns are linearly dependent once in 254 times, one more once
        // in 65,000 times (theorem 4.1).
        let suffices = shot.arrived >= unknown.count() + self.config.extra_packets.min(1);
        let recovering: Vec<(u64, u32)> = self
            .sent_packets
            .members(range)
            .filter(|(_, original)| original.fate == Fate::Recovering)
            .map(|(id, original)| (id, original.in_flight))
            .collect();
        for (id, copies) in recovering {
            if suffices && shot.arrived > 0 {
                self.settle_delivered(id);
            } else if shot.in_flight == 0 && shot.unsent == 0 && copies == 0 {
                if shot.attempts < self.config.shots {
                    self.schedule_recovery(now, id)
                } else {
                    self.give_up(id)
                }
            }
        }
    }

    /// Sends the packets of due shots for which there is window. A range that was passed over has
    /// nothing to send until the windows, the losses or the time change.
    pub(super) fn poll_shot(&mut self, now: Instant) -> Option<Transmit> {
        let mut from = self
            .next_shot
            .filter(|(at, _)| *at == now)
            .map_or(0, |(_, number)| number);
        while let Some(&number) = self.shots.range(from..).next() {
            self.next_shot = Some((now, number));
            let due = self
                .sent_packets
                .range(number)
                .map(|range| range.recover_at.is_some_and(|at| at <= now));
            if due != Some(false) {
                if self.plan_shot(now, number) {
                    self.finish_shot(now, number);
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

    /// Abandons the oldest shots if their packets have expired.
    pub(super) fn drop_stale_shots(&mut self, now: Instant) {
        self.next_shot = None;
        while let Some(&number) = self.shots.first()
            && self.is_stale(now, number)
        {
            self.abandon(number);
            self.finish_shot(now, number);
        }
    }

    /// Returns whether a range has missing packets and all of them have expired.
    fn is_stale(&self, now: Instant, number: u64) -> bool {
        let Some(range) = self.sent_packets.range(number) else {
            return false;
        };
        let mut missing = self
            .sent_packets
            .members(range)
            .filter(|(_, original)| original.is_missing())
            .peekable();
        missing.peek().is_some() && missing.all(|(_, original)| self.is_expired(now, original))
    }

    fn is_expired(&self, now: Instant, original: &SentPacket) -> bool {
        original.queued_at + self.config.expiry <= now
    }

    /// Gives up the missing packets of a range.
    fn abandon(&mut self, number: u64) {
        let Some(range) = self.sent_packets.range(number) else {
            return;
        };
        let missing = self
            .sent_packets
            .members(range)
            .filter(|(_, original)| original.is_missing());
        let missing: Vec<u64> = missing.map(|(id, _)| id).collect();
        missing.into_iter().for_each(|id| self.give_up(id));
        if let Some(range) = self.sent_packets.range_mut(number) {
            range.shot.unsent = 0;
        }
    }

    /// Returns whether planned content is still useful.
    pub(super) fn is_useful(&self, now: Instant, content: Content) -> bool {
        let ids = match content {
            Content::Ping => return true,
            Content::Original(id) => id..id + 1,
            Content::Coded { start, count } => start..start + u64::from(count),
        };
        let is_reliable = self.parts.recovery == Recovery::Retransmit;
        let mut originals = ids.filter_map(|id| self.sent_packets.get(id));
        originals.any(|original| is_reliable || !self.is_expired(now, original))
    }

    /// Handles planned content that is not sent.
    pub(super) fn drop_planned(&mut self, now: Instant, content: Content) {
        match content {
            Content::Coded { start, count } => self.handle_coded_outcome(now, start, count, false),
            Content::Original(id) => {
                if let Some((number, _)) = self.sent_packets.range_of(id) {
                    self.evaluate_shot(now, number);
                }
            }
            Content::Ping => {}
        }
    }

    /// Plans as much of the shot for a range as the windows allow. Returns `true` if nothing of it
    /// remains.
    ///
    /// The paper waits until the windows allow the whole shot (Ni, section 4.5.2). While packets
    /// wait, windows never open that far, and the shot would expire before it is sent. It therefore
    /// starts with the first window, before all new packets.
    fn plan_shot(&mut self, now: Instant, number: u64) -> bool {
        let has_unsent = self
            .sent_packets
            .range(number)
            .is_some_and(|range| range.shot.unsent > 0);
        if has_unsent && self.is_stale(now, number) {
            self.abandon(number);
            return true;
        }
        if !has_unsent && !self.prepare_shot(now, number) {
            return true;
        }
        let Some(mut shot) = self.sent_packets.range(number).map(|range| range.shot) else {
            return true;
        };
        let Shot {
            first,
            count,
            lost,
            unsent,
            attempts,
            ..
        } = shot;
        let lengths = shot
            .ids()
            .filter_map(|id| self.sent_packets.get(id))
            .map(|original| original.bytes.len());
        let rule = self.shot_rule(attempts);
        let left = |shot: &Shot, path: PathId| {
            rule.max_per_path(lost)
                .saturating_sub(shot.by_path[path.index()])
        };
        let mut rooms = self.rooms(now, lengths.max().unwrap_or(0) + CODED_OVERHEAD);
        rooms
            .iter_mut()
            .for_each(|(path, room)| *room = left(&shot, *path).min(*room));
        let coded = self.parts.recovery == Recovery::OneShot { coded: true } && lost > 1;
        let recovering = |id: &u64| {
            self.sent_packets
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
        for (path, share) in rule.shares(lost, unsent, &rooms) {
            for turn in unsent - sent..unsent - sent + share {
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
        shot.unsent -= sent;
        let may_more = self.paths.iter().any(|path| left(&shot, path.id) > 0);
        let is_spent = sent == 0 && !may_more && self.paths.iter().next().is_some();
        if is_spent {
            shot.unsent = 0;
        }
        if let Some(range) = self.sent_packets.range_mut(number) {
            range.shot = shot;
        }
        if is_spent {
            // The transmissions of the shot may have been settled while a part of it was unsent.
            self.evaluate_shot(now, number);
        }
        shot.unsent == 0
    }

    /// Ends a shot. Packets that were lost since it started need another one.
    fn finish_shot(&mut self, now: Instant, number: u64) {
        let Some(range) = self.sent_packets.range(number) else {
            self.shots.remove(&number);
            return;
        };
        let is_over = self
            .sent_packets
            .members(range)
            .all(|(_, original)| original.fate != Fate::Lost);
        let again = now + self.config.recovery_delay;
        if let Some(range) = self.sent_packets.range_mut(number) {
            range.shot.unsent = 0;
            range.recover_at = (!is_over).then_some(again);
        }
        if is_over {
            self.shots.remove(&number);
        }
    }

    /// Prepares a new shot for the lost packets of a range, including those of an earlier shot that
    /// are not known to be recovered. Returns `false` if no shot is necessary.
    fn prepare_shot(&mut self, now: Instant, number: u64) -> bool {
        let Some(range) = self.sent_packets.range(number) else {
            return false;
        };
        let before = range.shot;
        let missing = self
            .sent_packets
            .members(range)
            .filter(|(_, original)| original.is_missing());
        let missing: Vec<(u64, &SentPacket)> = missing.collect();
        // The packets of a flow are sent in order. A packet that has not expired therefore keeps
        // the packets of its flow useful.
        let is_of_use = |(_, original): &&(u64, &SentPacket)| {
            let of_flow = missing
                .iter()
                .filter(|(_, other)| other.hint.flow_hash == original.hint.flow_hash);
            of_flow
                .into_iter()
                .any(|(_, other)| !self.is_expired(now, other))
        };
        let is_new = |(_, original): &&(u64, &SentPacket)| original.fate == Fate::Lost;
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
            if let Some(original) = self.sent_packets.get_mut(*id) {
                original.fate = Fate::Recovering;
            }
        }
        self.stats.recoveries += 1;
        let (lost, attempts) = (missing.len(), before.attempts + 1);
        let rule = self.shot_rule(attempts);
        let unsent = rule
            .total(lost)
            .min(
                rule.max_per_path(lost)
                    .saturating_mul(self.paths.iter().count()),
            )
            .max(rule.needed(lost));
        let mut shot = Shot {
            first,
            count: (last - first + 1) as u8,
            lost,
            unsent,
            attempts,
            ..Shot::default()
        };
        if shot.ids() == before.ids() {
            (shot.in_flight, shot.arrived) = (before.in_flight, before.arrived);
        }
        if let Some(range) = self.sent_packets.range_mut(number) {
            range.shot = shot;
            range.recover_at = Some(now);
        }
        true
    }

    /// Returns the limits of shot number `attempts` for the same packets.
    fn shot_rule(&self, attempts: u32) -> ShotRule {
        let Config {
            path_share,
            total_share,
            ..
        } = self.config;
        let is_first = attempts <= 1;
        let extra = match is_first && self.queue.is_backlogged() {
            true => self.config.extra_packets_waiting,
            false => self.config.extra_packets,
        };
        let copies = if is_first {
            self.config.copies
        } else {
            self.config.retry_copies
        };
        ShotRule {
            extra,
            path_share,
            total_share,
            copies,
        }
    }

    /// Returns how many frames of `size` each path has room for, the best path first. A packet that
    /// is lost once more would be too late for its frame. Paths that lost everything recently are
    /// therefore omitted, unless there are no others, and paths that delivered nothing recently
    /// come last.
    fn rooms(&self, now: Instant, size: usize) -> Vec<(PathId, usize)> {
        let mut paths: Vec<_> = self
            .paths
            .iter()
            .filter(|path| is_open(path, now, &self.config))
            .collect();
        let has_unconfirmed_loss = |path: &&Path| path.transmissions.has_unconfirmed_loss();
        if !paths.iter().all(has_unconfirmed_loss) {
            paths.retain(|path| !has_unconfirmed_loss(path));
        }
        paths.sort_by_key(|path| {
            (
                !path.delivered_recently(now, &self.config),
                expected_delay(path, now, &self.config, size),
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
