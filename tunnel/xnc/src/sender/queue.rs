//! The queue of packets that wait for window: fair queueing by flow, with CoDel for each flow (RFC
//! 8290), and earlier marks for flows of L4S.

use crate::Config;
use crate::frame::PacketBuffer;
use crate::memory::{cost, shrink_if_sparse};
use crate::sent_packets::Hint;
use hawser_units::Instant;
use hawser_wire::ip::mark_congestion;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

mod codel;
mod flow;
mod l4s;
#[cfg(test)]
mod tests;

use flow::Flow;

/// A packet that was not sent yet.
#[derive(Debug)]
pub(super) struct QueuedPacket {
    pub(super) bytes: PacketBuffer,
    pub(super) hint: Hint,
    pub(super) queued_at: Instant,
}

/// A class of waiting packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Packets marked as urgent by the application, in order of arrival.
    Urgent,
    /// Packets of flows with marked ends of frames. Such flows cannot reduce their rate without
    /// harm, and their packets are late sooner.
    Live,
    /// All other packets.
    Other,
}

/// The maximum number of consecutive urgent packets while others wait.
const URGENT_IN_A_ROW: u32 = 16;

/// Bytes of live flows for each byte of the others, if both have packets waiting.
const LIVE_WEIGHT: i64 = 3;

/// The bytes that a flow may send in one turn of the round robin: one packet.
const QUANTUM: i64 = 1500;

/// The maximum number of bytes by which recovery may exceed the flow's share.
const MAX_DEBT: i64 = 64_000;

/// The maximum number of flows with their own queue. Further flows share these queues.
const MAX_FLOWS: usize = 1024;

/// The maximum number of packets of a flow that are dropped at once when the queue is full (RFC
/// 8290, section 4.1.2).
const DROPPED_AT_ONCE: usize = 64;

/// The minimum number of flows that are forgotten at once when there are too many, because finding
/// them takes a walk over all flows.
const FORGOTTEN_AT_ONCE: usize = 64;

/// Counters of packets that were dropped or marked.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Waited too long.
    pub(super) expired: u64,
    /// Dropped when the queue was full, from one of the longest flows.
    pub(super) overflowed: u64,
    /// Dropped by CoDel.
    pub(super) congested: u64,
    /// Marked by CoDel, or above the threshold of L4S, and sent.
    pub(super) marked: u64,
}

/// The packets that were not sent yet.
#[derive(Debug, Default)]
pub(super) struct Queue {
    drops_whole_frames: bool,
    flows: BTreeMap<u64, Flow>,
    live: RoundRobin,
    other: RoundRobin,
    /// The bytes by which live flows exceed their share while other flows wait too.
    ahead: i64,
    /// The number of live flows.
    live_flows: usize,
    urgent: VecDeque<QueuedPacket>,
    /// The cost of the urgent packets.
    urgent_bytes: u64,
    /// Consecutive urgent packets that were sent last.
    urgent_in_a_row: u32,
    len: usize,
    bytes: u64,
    /// Flows with packets, or that recently had some, by their [`Flow::length_class`] when they
    /// last grew.
    by_length: BTreeSet<(u32, u64)>,
    swept_at: Instant,
    counts: Counts,
    /// The number of flows examined to make room.
    #[cfg(test)]
    flows_examined: usize,
}

/// The flows of a class in deficit round robin. Flows that start to send come first (RFC 8290,
/// section 4).
#[derive(Debug, Default)]
struct RoundRobin {
    new: VecDeque<u64>,
    old: VecDeque<u64>,
    /// The number of waiting packets.
    packets: usize,
}

impl Queue {
    /// Creates an empty queue. With `drops_whole_frames`, a frame is dropped as a whole.
    pub(super) fn new(drops_whole_frames: bool) -> Self {
        Queue {
            drops_whole_frames,
            ..Queue::default()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the cost of the waiting packets.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns whether there is a live flow, for which the others leave room.
    pub(super) fn has_live(&self) -> bool {
        self.live_flows > 0
    }

    /// Returns whether packets of live flows or urgent packets wait; without live flows, whether
    /// any packets wait.
    pub(super) fn is_backlogged(&self) -> bool {
        let waiting = if self.has_live() {
            self.live.packets + self.urgent.len()
        } else {
            self.len
        };
        waiting > 0
    }

    /// Adds a packet. If the queue would exceed `limit` bytes, drops packets of the longest flows.
    pub(super) fn push(&mut self, waiting: QueuedPacket, limit: u64) {
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
            .or_insert_with(|| Flow::new(waiting.queued_at, self.drops_whole_frames));
        let was_live = flow.is_live();
        if flow.note_frame_end(&waiting) != was_live {
            self.change_class(key);
        }
        self.change(key, |flow| flow.push(waiting));
        self.list(key);
    }

    /// Returns the classes in the order in which they are served.
    pub(super) fn order(&self) -> [Class; 3] {
        let [first, second] = if self.ahead > 0 {
            [Class::Other, Class::Live]
        } else {
            [Class::Live, Class::Other]
        };
        match self.urgent_in_a_row < URGENT_IN_A_ROW {
            true => [Class::Urgent, first, second],
            false => [first, second, Class::Urgent],
        }
    }

    /// Drops the packets of a class that waited too long, and returns the next one to send.
    pub(super) fn front(
        &mut self,
        class: Class,
        now: Instant,
        config: &Config,
    ) -> Option<&QueuedPacket> {
        if class == Class::Urgent {
            self.drop_expired_urgent(now, config);
            return self.urgent.front();
        }
        let key = self.next_flow(class == Class::Live, now, config)?;
        self.flows.get(&key)?.front()
    }

    /// Removes the packet that [`Queue::front`] returned. Returns `None` if CoDel dropped it.
    pub(super) fn pop(
        &mut self,
        class: Class,
        now: Instant,
        config: &Config,
    ) -> Option<QueuedPacket> {
        if class == Class::Urgent {
            self.urgent_in_a_row = (self.urgent_in_a_row + 1).min(URGENT_IN_A_ROW);
            let is_congested = l4s::is_congested(self.urgent.front()?, now, self.urgent_bytes);
            let sent = self.remove_urgent()?;
            return Some(self.marked_if(is_congested, sent));
        }
        let is_live = class == Class::Live;
        let key = self.round_robin(is_live).first()?;
        let flow = self.flows.get_mut(&key)?;
        let is_congested = flow.is_congested(now, config);
        if is_congested && !flow.front()?.hint.ecn.is_capable() {
            self.counts.congested += 1;
            self.change(key, Flow::drop_front);
            return None;
        }
        let sent = self.change(key, Flow::send)?;
        self.urgent_in_a_row = self.urgent_in_a_row.saturating_sub(1);
        self.balance(is_live, sent.bytes.len() as i64);
        Some(self.marked_if(is_congested, sent))
    }

    /// Marks a packet that is sent from a congested queue.
    fn marked_if(&mut self, is_congested: bool, mut sent: QueuedPacket) -> QueuedPacket {
        let is_marked = is_congested && mark_congestion(&mut sent.bytes);
        self.counts.marked += u64::from(is_marked);
        sent
    }

    /// Charges the flow for bytes that were sent in addition, such as recovery packets.
    pub(super) fn charge(&mut self, flow_hash: u64, bytes: usize) {
        self.urgent_in_a_row = self.urgent_in_a_row.saturating_sub(1);
        if let Some(flow) = self.flows.get_mut(&flow_hash) {
            flow.deficit = (flow.deficit - bytes as i64).max(-MAX_DEBT);
        }
    }

    /// Returns when the next packet will have waited too long.
    pub(super) fn deadline(&self, config: &Config) -> Option<Instant> {
        let urgent = self
            .urgent
            .front()
            .map(|front| front.queued_at + config.max_queue_delay);
        self.flows
            .values()
            .filter_map(|flow| flow.deadline(config))
            .chain(urgent)
            .min()
    }

    /// Drops packets that waited too long, and forgets unused flows.
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

    /// Returns the flow of a class whose turn it is.
    fn next_flow(&mut self, is_live: bool, now: Instant, config: &Config) -> Option<u64> {
        loop {
            let key = self.round_robin(is_live).first()?;
            self.expire(key, now, config);
            let (round_robin, flow) = self.round_robin_and_flow(is_live, key)?;
            if flow.len() == 0 {
                flow.is_listed = round_robin.retire_first();
            } else if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                round_robin.pass();
            } else {
                return Some(key);
            }
        }
    }

    /// Returns the key of a flow's queue: its own, unless there are too many flows.
    fn key(&mut self, flow_hash: u64) -> u64 {
        if self.flows.len() < MAX_FLOWS || self.flows.contains_key(&flow_hash) {
            return flow_hash;
        }
        if self.live.len() + self.other.len() + self.live_flows + FORGOTTEN_AT_ONCE
            <= self.flows.len()
        {
            self.forget(|flow| !flow.is_live());
            return flow_hash;
        }
        let nearest = self.flows.range(flow_hash..).chain(&self.flows).next();
        nearest.map_or(flow_hash, |(key, _)| *key)
    }

    /// Forgets the flows that are not in a round robin and for which `is_useless` returns `true`.
    fn forget(&mut self, is_useless: impl Fn(&Flow) -> bool) {
        self.flows
            .retain(|_, flow| flow.is_listed || !is_useless(flow));
        self.live_flows = self.flows.values().filter(|flow| flow.is_live()).count();
        self.by_length
            .retain(|(_, key)| self.flows.contains_key(key));
        self.count_examined(self.flows.len());
    }

    /// Adds a flow to the round robin of its class.
    fn list(&mut self, key: u64) {
        let Some(flow) = self.flows.get_mut(&key).filter(|flow| !flow.is_listed) else {
            return;
        };
        (flow.is_listed, flow.deficit) = (true, QUANTUM);
        let is_live = flow.is_live();
        self.round_robin(is_live).new.push_back(key);
    }

    /// Moves a flow between the classes, after it became live or ceased to be.
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
        let former = self.round_robin(!is_live);
        former.remove(key);
        former.packets -= packets;
        self.round_robin(is_live).packets += packets;
    }

    /// Changes the packets of a flow, and updates the totals.
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
        let round_robin = self.round_robin(is_live);
        round_robin.packets = round_robin.packets + len_now - len;
        self.sort_in(key);
        changed
    }

    /// Drops the packets of a flow that waited too long.
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
            .is_some_and(|front| front.queued_at + config.max_queue_delay <= now)
        {
            self.remove_urgent();
            self.counts.expired += 1;
        }
    }

    /// Drops packets at the head of a flow that is at least half as long as the longest. Returns
    /// `false` if no packets wait.
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

    /// Returns a flow of the highest length class, and its length in bytes. Flows that shrank since
    /// they last grew are moved to their present class. Packets of each of them were sent in
    /// between, so the amortised cost is a few steps per packet.
    fn long_flow(&mut self) -> Option<(u64, u64)> {
        loop {
            let (class, key) = *self.by_length.last()?;
            self.count_examined(1);
            let flow = self.flows.get_mut(&key)?;
            if flow.length_class() == class {
                return Some((key, flow.bytes()));
            }
            self.by_length.pop_last();
            flow.sorted_class = 0;
            self.sort_in(key);
        }
    }

    /// Updates the length class of a flow that has grown.
    fn sort_in(&mut self, key: u64) {
        let Some(flow) = self
            .flows
            .get_mut(&key)
            .filter(|flow| flow.length_class() > flow.sorted_class)
        else {
            return;
        };
        let class = flow.length_class();
        self.by_length
            .remove(&(std::mem::replace(&mut flow.sorted_class, class), key));
        self.by_length.insert((class, key));
    }

    /// Accounts bytes sent by one class against its share, if the other class has packets waiting.
    fn balance(&mut self, is_live: bool, bytes: i64) {
        let max_ahead = LIVE_WEIGHT * QUANTUM;
        let ahead = if is_live {
            self.ahead + bytes
        } else {
            self.ahead - LIVE_WEIGHT * bytes
        };
        self.ahead = if self.round_robin(!is_live).packets > 0 {
            ahead.clamp(-max_ahead, max_ahead)
        } else {
            0
        };
    }

    fn round_robin(&mut self, is_live: bool) -> &mut RoundRobin {
        if is_live {
            &mut self.live
        } else {
            &mut self.other
        }
    }

    fn round_robin_and_flow(
        &mut self,
        is_live: bool,
        key: u64,
    ) -> Option<(&mut RoundRobin, &mut Flow)> {
        let round_robin = if is_live {
            &mut self.live
        } else {
            &mut self.other
        };
        Some((round_robin, self.flows.get_mut(&key)?))
    }

    fn remove_urgent(&mut self) -> Option<QueuedPacket> {
        let front = self.urgent.pop_front()?;
        self.len -= 1;
        self.bytes -= cost(&front.bytes);
        self.urgent_bytes -= cost(&front.bytes);
        shrink_if_sparse(&mut self.urgent);
        Some(front)
    }

    /// Counts the flows examined in walks over flows.
    fn count_examined(&mut self, _flows: usize) {
        #[cfg(test)]
        {
            self.flows_examined += _flows;
        }
    }
}

impl RoundRobin {
    fn len(&self) -> usize {
        self.new.len() + self.old.len()
    }

    fn first(&self) -> Option<u64> {
        self.new.front().or(self.old.front()).copied()
    }

    /// Ends the turn of the first flow.
    fn pass(&mut self) {
        let first = self.new.pop_front().or_else(|| self.old.pop_front());
        self.old.extend(first);
    }

    /// Handles a first flow without packets, and returns whether it stays in the round robin. A new
    /// flow is moved behind the old ones if there are any, so that it cannot be new again before
    /// they had their turn (RFC 8290, section 4.2).
    fn retire_first(&mut self) -> bool {
        let stays = !self.new.is_empty() && !self.old.is_empty();
        if stays {
            self.pass();
        } else if self.new.pop_front().is_none() {
            self.old.pop_front();
        }
        shrink_if_sparse(&mut self.new);
        shrink_if_sparse(&mut self.old);
        stays
    }

    fn remove(&mut self, key: u64) {
        self.new.retain(|listed| *listed != key);
        self.old.retain(|listed| *listed != key);
    }
}
