//! Planning: which content is sent over which paths, and until when that is useful.

use super::shot::{Shot, needed, spread, whole_shares};
use super::{CODED_OVERHEAD, RECOVERY_DELAY, Recovery, RecoveryMethod};
use crate::memory::shrink_if_sparse;
use crate::path::Paths;
use crate::sent_packets::{Fate, SentPacket};
use crate::sent_transmissions::Content;
use hawser_units::{Instant, PathId};
use std::ops::Range;

impl Recovery {
    /// Returns when the next shot is due, of those that are due after `after`.
    pub(crate) fn poll_timeout(&self, after: Instant) -> Option<Instant> {
        self.ranges.next_recovery(after)
    }

    /// Abandons the oldest shots if their packets have expired, and drops settled packets.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.next_range = None;
        while let Some(number) = self.ranges.next_with_losses(0)
            && self.is_stale(now, number)
        {
            self.abandon(number);
            self.finish_shot(now, number);
        }
        self.trim(now);
        shrink_if_sparse(&mut self.planned);
        shrink_if_sparse(&mut self.retransmissions);
    }

    /// Considers all due shots again, because windows may have opened.
    pub(crate) fn reconsider_shots(&mut self) {
        self.next_range = None;
    }

    /// Returns the next content that is planned and still useful, and its path.
    pub(crate) fn poll_planned(&mut self, now: Instant) -> Option<(PathId, Content)> {
        while let Some((path, content)) = self.planned.pop_front() {
            if self.is_useful(now, content) {
                return Some((path, content));
            }
            self.drop_planned(now, content);
        }
        None
    }

    /// Returns the first content of due shots for which there is window, and its path. The rest is
    /// planned. A range that was passed over has nothing to send until the windows, the losses or
    /// the time change.
    pub(crate) fn poll_shot(&mut self, now: Instant, paths: &Paths) -> Option<(PathId, Content)> {
        let known = self.next_range.filter(|(at, _)| *at == now);
        let mut from = known.map_or(0, |(_, number)| number);
        while let Some(number) = self.ranges.next_with_losses(from) {
            self.next_range = Some((now, number));
            if self.ranges.is_due(number, now) {
                if self.plan_shot(now, number, paths) {
                    self.finish_shot(now, number);
                }
                if let Some(planned) = self.poll_planned(now) {
                    return Some(planned);
                }
            }
            from = number + 1;
        }
        self.next_range = Some((now, from));
        None
    }

    /// Plans as much of the shot for a range as the windows allow. Returns `true` if nothing of it
    /// remains.
    ///
    /// The paper waits until the windows allow the whole shot (Ni, section 4.5.2). While packets
    /// wait, windows never open that far, and the shot would expire before it is sent. Unless
    /// shots are whole, they therefore start with the first window, before all new packets.
    fn plan_shot(&mut self, now: Instant, number: u64, paths: &Paths) -> bool {
        if self.config.experiment.whole_shots {
            return self.plan_whole_shot(now, number, paths);
        }
        let Some(mut shot) = self.current_shot(now, number) else {
            return true;
        };
        if shot.unsent == 0 {
            return true;
        }
        let contents = self.contents(&shot);
        if contents.is_empty() {
            return true;
        }
        let rooms = paths.rooms_for_recovery(now, &self.config, self.size(&shot));
        let shares = spread(shot.unsent, shot.has_margin, &rooms);
        self.plan(&mut shot, &contents, &shares);
        if let Some(range) = self.ranges.get_mut(number) {
            range.shot = shot;
        }
        shot.unsent == 0
    }

    /// Plans the shot for the first contiguous lost packets of a range, over all paths, if their
    /// windows allow all of it (Ni, section 4.5.2). Returns `false` if they do not.
    fn plan_whole_shot(&mut self, now: Instant, number: u64, paths: &Paths) -> bool {
        self.forget_shot(number);
        let Some(run) = self.first_lost_run(number) else {
            return true;
        };
        let last = self.packets.get(run.end - 1);
        if last.is_none_or(|packet| self.is_expired(now, packet)) {
            run.for_each(|id| self.give_up(id));
            return true;
        }
        let lost = (run.end - run.start) as usize;
        let mut shot = Shot {
            first: run.start,
            count: lost as u8,
            lost,
            is_coded: self.is_coded() && lost > 1,
            ..Shot::default()
        };
        let needed = needed(lost, self.config.extra_packets);
        let rooms = self.open_rooms(&shot, paths);
        let Some(shares) = whole_shares(needed, self.config.experiment.path_share, &rooms) else {
            return false;
        };
        for id in run {
            if let Some(packet) = self.packets.get_mut(id) {
                packet.fate = Fate::Recovering;
                packet.shots += 1;
            }
        }
        self.counts.recoveries += 1;
        shot.unsent = shares.iter().map(|(_, share)| share).sum();
        let contents = self.contents(&shot);
        self.plan(&mut shot, &contents, &shares);
        if let Some(range) = self.ranges.get_mut(number) {
            range.shot = shot;
        }
        true
    }

    /// Gives up the packets of a range that were part of a shot.
    fn forget_shot(&mut self, number: u64) {
        let missing = self.missing(number);
        let shot = missing.filter(|(_, packet)| packet.fate == Fate::Recovering);
        let ids: Vec<u64> = shot.map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.give_up(id));
    }

    /// Returns the numbers of the first contiguous packets of a range that are lost.
    fn first_lost_run(&self, number: u64) -> Option<Range<u64>> {
        let missing = self.missing(number);
        let mut lost = missing
            .filter(|(_, packet)| packet.fate == Fate::Lost)
            .map(|(id, _)| id);
        let first = lost.next()?;
        let others = (first + 1..).zip(lost);
        let end = others.take_while(|(next, id)| next == id).last();
        Some(first..end.map_or(first, |(id, _)| id) + 1)
    }

    /// Returns the shot of a range of which a part is unsent, or else a new one; `None` if none is
    /// necessary.
    fn current_shot(&mut self, now: Instant, number: u64) -> Option<Shot> {
        let shot = self.ranges.get(number)?.shot;
        if shot.unsent == 0 {
            return self.prepare_shot(now, number);
        }
        if self.is_stale(now, number) {
            self.abandon(number);
            return None;
        }
        // All lost packets may have arrived late while a part of the shot waited for window.
        self.missing(number).next().is_some().then_some(shot)
    }

    /// Prepares a new shot for the lost packets of a range, including those of an earlier shot that
    /// are not known to be recovered. Returns `None` if no shot is necessary.
    fn prepare_shot(&mut self, now: Instant, number: u64) -> Option<Shot> {
        let is_lost = |packet: &SentPacket| packet.fate == Fate::Lost;
        if !self.missing(number).any(|(_, packet)| is_lost(packet)) {
            return None;
        }
        if self.config.experiment.shots == 1 {
            self.forget_shot(number);
        }
        let (wanted, stale) = self.split_by_use(now, number);
        let mut packets = wanted.iter().filter_map(|id| self.packets.get(*id));
        let has_lost = packets.any(is_lost);
        stale.into_iter().for_each(|id| self.give_up(id));
        if !has_lost {
            return None;
        }
        for id in &wanted {
            if let Some(packet) = self.packets.get_mut(*id) {
                packet.shots += u32::from(packet.fate == Fate::Lost);
                packet.fate = Fate::Recovering;
            }
        }
        let shot = self.new_shot(number, &wanted)?;
        self.counts.recoveries += 1;
        self.ranges.get_mut(number)?.shot = shot;
        self.ranges.set_recovery(number, Some(now));
        self.evaluate_shot(now, number);
        Some(shot)
    }

    /// Returns a shot for these packets of a range. It covers the whole range, so that packets of
    /// earlier shots that are in flight, or have arrived, count towards it: each of them is of use
    /// for any of the lost packets. They have to suffice for packets that were given up as well. A shot
    /// for stragglers need not survive the failure of a path, because most of them arrive after all.
    fn new_shot(&self, number: u64, missing: &[u64]) -> Option<Shot> {
        let range = self.ranges.get(number)?;
        let mut shot = Shot {
            first: range.ids().start,
            count: range.len() as u8,
            lost: missing.len(),
            ..Shot::default()
        };
        if shot.ids() == range.shot.ids() {
            (shot.in_flight, shot.arrived) = (range.shot.in_flight, range.shot.arrived);
        }
        let packets = missing.iter().filter_map(|id| self.packets.get(*id));
        let copied = packets
            .clone()
            .filter(|packet| packet.in_flight > 0)
            .count();
        shot.is_coded = self.is_coded() && shot.lost > 1;
        shot.has_margin = !packets.clone().all(|packet| packet.straggles);
        let needed = needed(shot.lost + self.gone(&shot), self.config.extra_packets);
        shot.unsent = needed.saturating_sub(shot.in_flight + shot.arrived + copied);
        Some(shot)
    }

    /// Returns the missing packets of a range, with their numbers.
    fn missing(&self, number: u64) -> impl Iterator<Item = (u64, &SentPacket)> {
        let range = self.ranges.get(number).into_iter();
        let members = range.flat_map(|range| self.packets.in_range(range.ids()));
        members.filter(|(_, packet)| packet.is_missing())
    }

    /// Returns the numbers of a range's missing packets: those that are still useful, and the
    /// others. The packets of a flow are sent in order. A packet that has not expired therefore
    /// keeps the packets of its flow useful.
    fn split_by_use(&self, now: Instant, number: u64) -> (Vec<u64>, Vec<u64>) {
        let flow = |packet: &SentPacket| packet.hint.flow_hash;
        let missing: Vec<(u64, &SentPacket)> = self.missing(number).collect();
        let is_of_use = |packet: &SentPacket| {
            let mut of_flow = missing
                .iter()
                .filter(|(_, other)| flow(other) == flow(packet));
            of_flow.any(|(_, other)| !self.is_expired(now, other))
        };
        let (useful, others): (Vec<_>, Vec<_>) =
            missing.iter().partition(|(_, packet)| is_of_use(packet));
        let ids = |packets: Vec<(u64, &SentPacket)>| packets.iter().map(|(id, _)| *id).collect();
        (ids(useful), ids(others))
    }

    /// Returns the contents of a shot, to be sent in turn: coded packets, or packets that are still
    /// missing.
    fn contents(&self, shot: &Shot) -> Vec<Content> {
        if shot.is_coded {
            return vec![Content::Coded {
                start: shot.first,
                count: shot.count,
            }];
        }
        let packets = self.packets.in_range(shot.ids());
        let is_wanted = |packet: &SentPacket| {
            packet.fate == Fate::Recovering && (packet.in_flight == 0 || shot.lost == 1)
        };
        let wanted = packets.filter(|(_, packet)| is_wanted(packet));
        wanted.map(|(id, _)| Content::Original(id)).collect()
    }

    /// Returns whether shots for several lost packets consist of coded packets.
    fn is_coded(&self) -> bool {
        self.method == RecoveryMethod::OneShot { coded: true }
    }

    /// Returns how many packets of a shot the window of each path has room for.
    fn open_rooms(&self, shot: &Shot, paths: &Paths) -> Vec<(PathId, usize)> {
        let size = self.size(shot);
        let rooms = paths.iter().map(|path| (path.id, path.room(size)));
        rooms.collect()
    }

    /// Returns the size of a coded packet of a shot.
    fn size(&self, shot: &Shot) -> usize {
        let packets = self.packets.in_range(shot.ids());
        let longest = packets.map(|(_, packet)| packet.bytes.len()).max();
        longest.unwrap_or(0) + CODED_OVERHEAD
    }

    /// Plans these shares of a shot.
    fn plan(&mut self, shot: &mut Shot, contents: &[Content], shares: &[(PathId, usize)]) {
        let mut contents = contents.iter().copied().cycle();
        for (path, share) in shares {
            let contents = contents.by_ref().take(*share);
            for content in contents {
                shot.in_flight += usize::from(matches!(content, Content::Coded { .. }));
                self.planned.push_back((*path, content));
            }
            shot.unsent = shot.unsent.saturating_sub(*share);
        }
    }

    /// Ends a shot. Packets that were lost since it started need another one.
    fn finish_shot(&mut self, now: Instant, number: u64) {
        let Some(range) = self.ranges.get_mut(number) else {
            return;
        };
        range.shot.unsent = 0;
        let mut members = self.packets.in_range(range.ids());
        let has_lost = members.any(|(_, packet)| packet.fate == Fate::Lost);
        let again = now + RECOVERY_DELAY;
        self.ranges.set_recovery(number, has_lost.then_some(again));
    }

    /// Gives up the missing packets of a range.
    fn abandon(&mut self, number: u64) {
        let missing: Vec<u64> = self.missing(number).map(|(id, _)| id).collect();
        missing.into_iter().for_each(|id| self.give_up(id));
        if let Some(range) = self.ranges.get_mut(number) {
            range.shot.unsent = 0;
        }
    }

    /// Returns whether a range has missing packets and all of them have expired.
    fn is_stale(&self, now: Instant, number: u64) -> bool {
        let mut missing = self.missing(number).peekable();
        missing.peek().is_some() && missing.all(|(_, packet)| self.is_expired(now, packet))
    }

    fn is_expired(&self, now: Instant, packet: &SentPacket) -> bool {
        packet.queued_at + self.config.expiry <= now
    }

    /// Returns whether planned content is still useful.
    fn is_useful(&self, now: Instant, content: Content) -> bool {
        let ids = match content {
            Content::Ping => return true,
            Content::Original(id) => id..id + 1,
            Content::Coded { start, count } => start..start + u64::from(count),
        };
        let is_reliable = self.method == RecoveryMethod::Retransmit;
        let mut packets = self.packets.in_range(ids);
        packets.any(|(_, packet)| is_reliable || !self.is_expired(now, packet))
    }

    /// Handles planned content that is not sent.
    fn drop_planned(&mut self, now: Instant, content: Content) {
        match content {
            Content::Coded { start, count } => self.handle_coded_outcome(now, start, count, false),
            Content::Original(id) => {
                if let Some(number) = self.range_of(id)
                    && !self.has_planned_copies(number)
                {
                    self.evaluate_shot(now, number);
                }
            }
            Content::Ping => {}
        }
    }

    /// Returns whether copies of a range's packets are planned.
    fn has_planned_copies(&self, number: u64) -> bool {
        let mut planned = self.planned.iter();
        planned.any(|(_, content)| {
            matches!(content, Content::Original(id) if self.range_of(*id) == Some(number))
        })
    }
}
