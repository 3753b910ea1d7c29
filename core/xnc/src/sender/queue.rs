//! Packets that wait for a path with window: fair queueing by flow, each with controlled delay (RFC 8290).

use crate::config::Config;
use crate::memory::{cost, give_back};
use crate::pool::Hint;
use hawser_units::Instant;
use hawser_wire::ip::mark_congestion;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

mod codel;
mod flow;
#[cfg(test)]
mod tests;

use flow::Flow;

/// A packet that was not sent yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) bytes: Vec<u8>,
    pub(super) hint: Hint,
    pub(super) since: Instant,
}

/// Which of the packets that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Those whose sender asks for it, in the order in which they came.
    Urgent,
    /// Those of flows that tell where their frames end: they cannot send less without harm, and are late sooner.
    Live,
    /// The others.
    Rest,
}

/// Urgent packets at most that go one after another while others wait.
const URGENT_IN_A_ROW: u32 = 16;

/// Live flows together get so many bytes for each of the others, where they need them and others wait.
const LIVE_WEIGHT: i64 = 3;

/// Bytes that a flow may send before the next one has its turn: a packet.
const QUANTUM: i64 = 1500;

/// What recovery may take in advance of a flow's turns, bytes.
const MOST_DEBT: i64 = 64_000;

/// Flows that are told apart; what is of further ones shares the queues of these.
const MAX_FLOWS: usize = 1024;

/// Packets of a flow that are dropped at once when there is no room (RFC 8290, section 4.1.2).
const DROPPED_AT_ONCE: usize = 64;

/// Flows that are forgotten at once when there are too many: to look for them takes a walk over all of them.
const FORGOTTEN_AT_ONCE: usize = 64;

/// Packets that were not sent, and those that were marked.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// They waited too long.
    pub(super) expired: u64,
    /// There was no room, and their flow was among those that had most waiting.
    pub(super) overflowed: u64,
    /// Their flow is to send less.
    pub(super) congested: u64,
    /// They were sent, marked, for their flow to send less.
    pub(super) marked: u64,
}

/// The packets that were not sent yet.
#[derive(Debug, Default)]
pub(super) struct Queue {
    keeps_frames: bool,
    flows: BTreeMap<u64, Flow>,
    live: Turns,
    rest: Turns,
    /// By how many bytes live flows are ahead of their share, while others wait too.
    ahead: i64,
    /// Flows that are live.
    live_flows: usize,
    urgent: VecDeque<Waiting>,
    /// What urgent packets cost.
    urgent_bytes: u64,
    /// Urgent packets that were sent since another one was.
    urgent_in_a_row: u32,
    len: usize,
    bytes: u64,
    /// Flows of which something waits or did, by [`Flow::class`] as it was when it grew last.
    by_length: BTreeSet<(u32, u64)>,
    swept_at: Instant,
    counts: Counts,
    /// Flows that were looked at to make room.
    #[cfg(test)]
    looked_at: usize,
}

/// Whose turn it is among the flows of a class: deficit round robin, those first that begin to send (RFC 8290, section 4).
#[derive(Debug, Default)]
struct Turns {
    new: VecDeque<u64>,
    old: VecDeque<u64>,
    /// Packets that wait.
    packets: usize,
}

impl Queue {
    /// An empty one, which keeps frames whole or not.
    pub(super) fn new(keeps_frames: bool) -> Self {
        Queue {
            keeps_frames,
            ..Queue::default()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What the packets cost.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether there is a live flow, for which the others leave room.
    pub(super) fn has_live(&self) -> bool {
        self.live_flows > 0
    }

    /// Whether what live flows need waits, or anything where there are none.
    pub(super) fn is_pressed(&self) -> bool {
        let waiting = if self.has_live() {
            self.live.packets + self.urgent.len()
        } else {
            self.len
        };
        waiting > 0
    }

    /// Takes a packet, and makes room for it in `limit` bytes at the expense of a flow of those that have most waiting.
    pub(super) fn push(&mut self, waiting: Waiting, limit: u64) {
        let added = cost(&waiting.bytes);
        while self.bytes > limit.saturating_sub(added) && self.make_room() {}
        if waiting.hint.urgent {
            self.len += 1;
            self.bytes += added;
            self.urgent_bytes += added;
            self.urgent.push_back(waiting);
            return;
        }
        let key = self.key(waiting.hint.flow_hash);
        let flow = self
            .flows
            .entry(key)
            .or_insert_with(|| Flow::new(waiting.since, self.keeps_frames));
        let was_live = flow.is_live();
        if flow.tells(&waiting) != was_live {
            self.change_class(key);
        }
        self.change(key, |flow| flow.push(waiting));
        self.list(key);
    }

    /// The classes in the order in which their packets are to go.
    pub(super) fn order(&self) -> [Class; 3] {
        let [first, second] = if self.ahead > 0 {
            [Class::Rest, Class::Live]
        } else {
            [Class::Live, Class::Rest]
        };
        match self.urgent_in_a_row < URGENT_IN_A_ROW {
            true => [Class::Urgent, first, second],
            false => [first, second, Class::Urgent],
        }
    }

    /// The packet of a class that is to be sent next, after those were dropped that have waited too long.
    pub(super) fn front(
        &mut self,
        class: Class,
        now: Instant,
        config: &Config,
    ) -> Option<&Waiting> {
        if class == Class::Urgent {
            self.drop_expired_urgent(now, config);
            return self.urgent.front();
        }
        let key = self.next_flow(class == Class::Live, now, config)?;
        self.flows.get(&key)?.front()
    }

    /// Takes the packet that [`Queue::front`] names. None where it was dropped, for its flow to send less.
    pub(super) fn pop(&mut self, class: Class, now: Instant, config: &Config) -> Option<Waiting> {
        if class == Class::Urgent {
            self.urgent_in_a_row = (self.urgent_in_a_row + 1).min(URGENT_IN_A_ROW);
            return self.remove_urgent();
        }
        let is_live = class == Class::Live;
        let key = self.turns(is_live).first()?;
        let flow = self.flows.get_mut(&key)?;
        let is_congested = flow.is_congested(now, config);
        if is_congested && !flow.front()?.hint.ecn {
            self.counts.congested += 1;
            self.change(key, Flow::drop_front);
            return None;
        }
        let mut sent = self.change(key, Flow::send)?;
        if is_congested && mark_congestion(&mut sent.bytes) {
            self.counts.marked += 1;
        }
        self.urgent_in_a_row = self.urgent_in_a_row.saturating_sub(1);
        self.balance(is_live, sent.bytes.len() as i64);
        Some(sent)
    }

    /// Something else was sent for a flow, which its turns pay for.
    pub(super) fn charge(&mut self, flow_hash: u64, bytes: usize) {
        self.urgent_in_a_row = self.urgent_in_a_row.saturating_sub(1);
        if let Some(flow) = self.flows.get_mut(&flow_hash) {
            flow.deficit = (flow.deficit - bytes as i64).max(-MOST_DEBT);
        }
    }

    /// When a packet has waited too long.
    pub(super) fn deadline(&self, config: &Config) -> Option<Instant> {
        let urgent = self
            .urgent
            .front()
            .map(|front| front.since + config.patience);
        self.flows
            .values()
            .filter_map(|flow| flow.deadline(config))
            .chain(urgent)
            .min()
    }

    /// Drops what waited too long, and forgets flows of which nothing comes any more.
    pub(super) fn drop_expired(&mut self, now: Instant, config: &Config) {
        self.drop_expired_urgent(now, config);
        let late = self
            .flows
            .iter()
            .filter(|(_, flow)| flow.has_expired(now, config));
        let late: Vec<u64> = late.map(|(key, _)| *key).collect();
        late.into_iter()
            .for_each(|key| self.expire(key, now, config));
        if self.swept_at + flow::MEMORY <= now {
            self.swept_at = now;
            self.forget(|flow| flow.is_unused(now));
        }
    }

    /// The flow of a class whose turn it is.
    fn next_flow(&mut self, is_live: bool, now: Instant, config: &Config) -> Option<u64> {
        loop {
            let key = self.turns(is_live).first()?;
            self.expire(key, now, config);
            let (turns, flow) = self.turns_and_flow(is_live, key)?;
            if flow.len() == 0 {
                flow.is_listed = turns.rest();
            } else if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                turns.pass();
            } else {
                return Some(key);
            }
        }
    }

    /// The queue of a flow: its own, as long as there are not too many.
    fn key(&mut self, flow_hash: u64) -> u64 {
        if self.flows.len() < MAX_FLOWS || self.flows.contains_key(&flow_hash) {
            return flow_hash;
        }
        if self.live.len() + self.rest.len() + self.live_flows + FORGOTTEN_AT_ONCE
            <= self.flows.len()
        {
            self.forget(|flow| !flow.is_live());
            return flow_hash;
        }
        let nearest = self.flows.range(flow_hash..).chain(&self.flows).next();
        nearest.map_or(flow_hash, |(key, _)| *key)
    }

    /// Forgets those flows without a turn of which `is_useless` says so.
    fn forget(&mut self, is_useless: impl Fn(&Flow) -> bool) {
        self.flows
            .retain(|_, flow| flow.is_listed || !is_useless(flow));
        self.live_flows = self.flows.values().filter(|flow| flow.is_live()).count();
        self.by_length
            .retain(|(_, key)| self.flows.contains_key(key));
        self.note_looks(self.flows.len());
    }

    /// Gives a flow its turns.
    fn list(&mut self, key: u64) {
        let Some(flow) = self.flows.get_mut(&key).filter(|flow| !flow.is_listed) else {
            return;
        };
        (flow.is_listed, flow.deficit) = (true, QUANTUM);
        let is_live = flow.is_live();
        self.turns(is_live).new.push_back(key);
    }

    /// A flow is live now and was not, or the other way round: its turns are among those of the others.
    fn change_class(&mut self, key: u64) {
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        let (is_live, packets) = (flow.is_live(), flow.len());
        flow.is_listed = false;
        self.live_flows = if is_live {
            self.live_flows + 1
        } else {
            self.live_flows - 1
        };
        let former = self.turns(!is_live);
        former.remove(key);
        former.packets -= packets;
        self.turns(is_live).packets += packets;
    }

    /// Does something to the packets of a flow, and counts what it changes.
    fn change<T>(&mut self, key: u64, change: impl FnOnce(&mut Flow) -> T) -> T
    where
        T: Default,
    {
        let Some(flow) = self.flows.get_mut(&key) else {
            return T::default();
        };
        let (len, bytes) = (flow.len(), flow.bytes());
        let changed = change(flow);
        let (is_live, len_now, bytes_now) = (flow.is_live(), flow.len(), flow.bytes());
        self.len = self.len + len_now - len;
        self.bytes = self.bytes + bytes_now - bytes;
        let turns = self.turns(is_live);
        turns.packets = turns.packets + len_now - len;
        self.sort_in(key);
        changed
    }

    /// Drops what waited too long of a flow.
    fn expire(&mut self, key: u64, now: Instant, config: &Config) {
        let before = self.len;
        if self
            .flows
            .get(&key)
            .is_some_and(|flow| flow.has_expired(now, config))
        {
            self.change(key, |flow| flow.drop_expired(now, config));
        }
        self.counts.expired += (before - self.len) as u64;
    }

    fn drop_expired_urgent(&mut self, now: Instant, config: &Config) {
        while self
            .urgent
            .front()
            .is_some_and(|front| front.since + config.patience <= now)
        {
            self.remove_urgent();
            self.counts.expired += 1;
        }
    }

    /// Drops packets from the head of a flow that has at least half of what the longest one has; false when nothing waits.
    fn make_room(&mut self) -> bool {
        let before = self.len;
        let long = self
            .long_flow()
            .filter(|(_, bytes)| *bytes >= self.urgent_bytes);
        let at_once = |packets: usize| (packets / 2).clamp(1, DROPPED_AT_ONCE);
        match long {
            Some((key, _)) => {
                self.change(key, |flow| {
                    (0..at_once(flow.len())).for_each(|_| flow.drop_front())
                });
            }
            None => (0..at_once(self.urgent.len())).for_each(|_| drop(self.remove_urgent())),
        }
        self.counts.overflowed += (before - self.len) as u64;
        self.len < before
    }

    /// A flow of the highest class of length, and what it has waiting. Flows whose class is lower than when they grew last are
    /// sorted in on the way: each of them has been sent from since, so that a search takes few steps for each packet.
    fn long_flow(&mut self) -> Option<(u64, u64)> {
        loop {
            let (class, key) = *self.by_length.last()?;
            self.note_looks(1);
            let flow = self.flows.get_mut(&key)?;
            if flow.class() == class {
                return Some((key, flow.bytes()));
            }
            self.by_length.pop_last();
            flow.sorted_class = 0;
            self.sort_in(key);
        }
    }

    /// Puts a flow that has grown among those of its class of length.
    fn sort_in(&mut self, key: u64) {
        let Some(flow) = self
            .flows
            .get_mut(&key)
            .filter(|flow| flow.class() > flow.sorted_class)
        else {
            return;
        };
        let class = flow.class();
        self.by_length
            .remove(&(std::mem::replace(&mut flow.sorted_class, class), key));
        self.by_length.insert((class, key));
    }

    /// What was sent of one class while the other one waits is set off against its share.
    fn balance(&mut self, is_live: bool, bytes: i64) {
        let most = LIVE_WEIGHT * QUANTUM;
        let ahead = if is_live {
            self.ahead + bytes
        } else {
            self.ahead - LIVE_WEIGHT * bytes
        };
        self.ahead = if self.turns(!is_live).packets > 0 {
            ahead.clamp(-most, most)
        } else {
            0
        };
    }

    fn turns(&mut self, is_live: bool) -> &mut Turns {
        if is_live {
            &mut self.live
        } else {
            &mut self.rest
        }
    }

    fn turns_and_flow(&mut self, is_live: bool, key: u64) -> Option<(&mut Turns, &mut Flow)> {
        let turns = if is_live {
            &mut self.live
        } else {
            &mut self.rest
        };
        Some((turns, self.flows.get_mut(&key)?))
    }

    fn remove_urgent(&mut self) -> Option<Waiting> {
        let front = self.urgent.pop_front()?;
        self.len -= 1;
        self.bytes -= cost(&front.bytes);
        self.urgent_bytes -= cost(&front.bytes);
        give_back(&mut self.urgent);
        Some(front)
    }

    /// Counts the steps of walks over flows.
    fn note_looks(&mut self, _flows: usize) {
        #[cfg(test)]
        {
            self.looked_at += _flows;
        }
    }
}

impl Turns {
    fn len(&self) -> usize {
        self.new.len() + self.old.len()
    }

    fn first(&self) -> Option<u64> {
        self.new.front().or(self.old.front()).copied()
    }

    /// The first has had its turn.
    fn pass(&mut self) {
        let first = self.new.pop_front().or_else(|| self.old.pop_front());
        self.old.extend(first);
    }

    /// The first has nothing that waits. One that was new waits for the others nevertheless, so that it is not new again
    /// before they had their turn (RFC 8290, section 4.2). Whether it still has turns.
    fn rest(&mut self) -> bool {
        let stays = !self.new.is_empty() && !self.old.is_empty();
        if stays {
            self.pass();
        } else if self.new.pop_front().is_none() {
            self.old.pop_front();
        }
        give_back(&mut self.new);
        give_back(&mut self.old);
        stays
    }

    fn remove(&mut self, key: u64) {
        self.new.retain(|listed| *listed != key);
        self.old.retain(|listed| *listed != key);
    }
}
