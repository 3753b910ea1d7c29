//! Recovery of lost packets: the fates of transmissions go in, the content to send comes out.
//!
//! Packets are kept until their fate is final. With one-shot recovery, the losses of an encoding
//! range are collected for a short time, and then recovered by one shot over all paths at once (Ni,
//! section 4.5).

use crate::Config;
use crate::decoding::DecoderLoad;
use crate::delays::Delays;
use crate::frame::PacketHeader;
use crate::memory::cost;
use crate::sent_packets::{Fate, Hint, SentPacket, SentPackets};
use crate::sent_transmissions::{Content, Outcome};
use bytes::Bytes;
use hawser_units::{Instant, PathId, PathSet};
use ranges::EncodingRanges;
use shot::Shot;
use std::collections::VecDeque;
use std::time::Duration;

mod plan;
mod ranges;
mod shot;
#[cfg(test)]
mod tests;

/// The bytes by which a coded packet exceeds the longest packet that it covers: the header and the
/// length field.
pub const CODED_OVERHEAD: usize = PacketHeader::LEN + 2;

/// The time from the first loss in a range to the shot, in which further losses are collected.
pub(crate) const RECOVERY_DELAY: Duration = Duration::from_millis(3);

/// The method by which lost packets are recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryMethod {
    /// No recovery.
    None,
    /// Retransmission until the packet arrives.
    Retransmit,
    /// One shot for all lost packets of a range, as soon as the windows allow: of coded packets, or
    /// of the lost packets themselves.
    OneShot {
        /// Whether the packets are coded.
        coded: bool,
    },
}

/// Counters of packets.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Arrived, or recovered with certainty.
    pub(crate) delivered: u64,
    /// Counted as lost at least once.
    pub(crate) lost: u64,
    /// Not recovered any more.
    pub(crate) given_up: u64,
    /// Shots.
    pub(crate) recoveries: u64,
    /// The times until packets were known to be delivered.
    pub(crate) confirmed_after: Delays,
}

/// The packets that were sent, and the recovery of those that were lost.
#[derive(Debug)]
pub(crate) struct Recovery {
    config: Config,
    method: RecoveryMethod,
    /// The number of settled packets that are kept because later coded packets may cover them.
    lookback: usize,
    packets: SentPackets,
    /// The load of the receiver that decodes any of `packets`, if it decodes.
    decoder: Option<DecoderLoad>,
    ranges: EncodingRanges,
    /// Transmissions that are decided and not yet returned.
    planned: VecDeque<(PathId, Content)>,
    /// Lost packets to retransmit, in the order in which the losses were detected.
    retransmissions: VecDeque<u64>,
    /// The range with losses at which to continue at this time. Nothing can be sent for the ranges
    /// before it.
    next_range: Option<(Instant, u64)>,
    counts: Counts,
}

impl Recovery {
    pub(crate) fn new(config: &Config) -> Self {
        let (method, lookback) = (config.experiment.recovery, config.experiment.lookback);
        let is_decoded = method == RecoveryMethod::OneShot { coded: true };
        Recovery {
            config: config.clone(),
            method,
            lookback,
            packets: SentPackets::default(),
            decoder: is_decoded.then(|| DecoderLoad::new(config)),
            ranges: EncodingRanges::new(config),
            planned: VecDeque::new(),
            retransmissions: VecDeque::new(),
            next_range: None,
            counts: Counts::default(),
        }
    }

    pub(crate) fn method(&self) -> RecoveryMethod {
        self.method
    }

    pub(crate) fn packets(&self) -> &SentPackets {
        &self.packets
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns whether planned content waits to be polled.
    #[cfg(test)]
    pub(crate) fn has_planned(&self) -> bool {
        !self.planned.is_empty()
    }

    /// Adds a packet that is sent for the first time, and returns its number.
    pub(crate) fn add_packet(
        &mut self,
        now: Instant,
        queued_at: Instant,
        bytes: Bytes,
        hint: Hint,
    ) -> u64 {
        let id = self.packets.next();
        let range = self.ranges.add_packet(now, id, hint.end_of_frame);
        if let Some(decoder) = &mut self.decoder {
            decoder.add(bytes.len());
        }
        self.packets.push(queued_at, bytes, hint, range);
        id
    }

    /// Records that a packet is sent over `path`, and returns it.
    pub(crate) fn record_transmission(&mut self, id: u64, path: PathId) -> Option<&SentPacket> {
        let packet = self.packets.get_mut(id)?;
        packet.in_flight += 1;
        packet.path = Some(path);
        Some(packet)
    }

    /// Returns whether a packet can be kept besides the others, by both ends.
    pub(crate) fn has_room_for(&self, packet: &[u8]) -> bool {
        let fits = self.packets.bytes() + cost(packet) <= self.config.packet_memory.0;
        let decoder = self.decoder.as_ref();
        fits && decoder.is_none_or(|decoder| decoder.has_room_for(packet.len()))
    }

    /// Gives up the oldest packets until there is room for another.
    pub(crate) fn make_room_for(&mut self, packet: &[u8]) {
        while !self.has_room_for(packet) && self.packets.len() > 0 {
            self.give_up_oldest_range();
        }
    }

    /// Gives up the packets of the oldest range.
    fn give_up_oldest_range(&mut self) {
        self.counts.given_up += self.drop_oldest_range();
    }

    /// Drops the packets of the oldest range, and returns the number of those that were not
    /// settled.
    fn drop_oldest_range(&mut self) -> u64 {
        let Some(range) = self.ranges.pop_oldest() else {
            return 0;
        };
        if let Some(decoder) = &mut self.decoder {
            let packets = self.packets.in_range(range.ids());
            packets.for_each(|(_, packet)| decoder.remove(packet.bytes.len()));
        }
        self.packets.drop_oldest(range.len());
        range.unsettled
    }

    /// Drops settled ranges, starting with the oldest.
    fn trim(&mut self, now: Instant) {
        while let Some(range) = self.ranges.oldest()
            && range.unsettled == 0
            && (self.ranges.len() > 1 || self.ranges.is_last_full(now))
            && self.packets.len() >= range.len() + self.lookback
        {
            self.drop_oldest_range();
        }
    }

    /// Handles a change of what is known about a transmission.
    pub(crate) fn handle_outcome(&mut self, now: Instant, outcome: Outcome) {
        match outcome {
            Outcome::Arrived(content) => self.handle_arrived(now, content, true),
            Outcome::ArrivedLate(content) => self.handle_arrived(now, content, false),
            Outcome::Lost(content) => self.handle_lost(now, content, false),
            Outcome::Straggles(content) => self.handle_lost(now, content, true),
            Outcome::Retransmit(Content::Original(id)) if self.method != RecoveryMethod::None => {
                self.queue_retransmission(id)
            }
            Outcome::Retransmit(_) => {}
        }
    }

    fn handle_arrived(&mut self, now: Instant, content: Content, was_in_flight: bool) {
        let id = match content {
            Content::Original(id) => id,
            Content::Coded { start, count } => {
                return self.handle_coded_outcome(now, start, count, true);
            }
            Content::Ping => return,
        };
        if let Some(packet) = self.packets.get_mut(id).filter(|_| was_in_flight) {
            packet.in_flight -= 1;
        }
        self.settle_delivered(now, id);
        if let Some(number) = self.range_of(id)
            && let Some(range) = self.ranges.get(number)
            && range.shot.lost > 0
        {
            self.evaluate_shot(now, number);
        }
    }

    fn handle_lost(&mut self, now: Instant, content: Content, straggles: bool) {
        match content {
            Content::Original(id) => self.handle_lost_packet(now, id, straggles),
            Content::Coded { start, count } => self.handle_coded_outcome(now, start, count, false),
            Content::Ping => {}
        }
    }

    /// Handles the loss of a transmission of packet `id` itself.
    fn handle_lost_packet(&mut self, now: Instant, id: u64, straggles: bool) {
        let Some(packet) = self.packets.get_mut(id) else {
            return;
        };
        packet.in_flight -= 1;
        if packet.in_flight > 0 {
            return;
        }
        let (fate, number) = (packet.fate, packet.range);
        match (fate, self.method) {
            (Fate::Recovering | Fate::GivenUp, _) => return self.evaluate_shot(now, number),
            (Fate::Sent, RecoveryMethod::None) => self.give_up(id),
            (Fate::Sent, RecoveryMethod::Retransmit) => self.queue_retransmission(id),
            (Fate::Sent, RecoveryMethod::OneShot { .. }) => self.schedule_shot(now, id, straggles),
            (Fate::Lost | Fate::Delivered, _) => return,
        }
        self.counts.lost += 1;
    }

    /// Handles the arrival or loss of a coded packet over `count` packets from `start` on.
    fn handle_coded_outcome(&mut self, now: Instant, start: u64, count: u8, arrived: bool) {
        let Some(number) = self.range_of(start) else {
            return;
        };
        let Some(range) = self.ranges.get_mut(number) else {
            return;
        };
        let shot = &mut range.shot;
        // A coded packet of an earlier shot for other packets does not count.
        if (shot.first, shot.count) == (start, count) {
            shot.in_flight = shot.in_flight.saturating_sub(1);
            shot.arrived += usize::from(arrived);
            self.evaluate_shot(now, number);
        }
    }

    /// Settles the packets of a range's shot if the shot sufficed or can no longer suffice.
    fn evaluate_shot(&mut self, now: Instant, number: u64) {
        let Some(range) = self.ranges.get(number) else {
            return;
        };
        let (shot, members) = (range.shot, range.ids());
        if self.suffices(&shot) {
            return shot.ids().for_each(|id| self.settle_delivered(now, id));
        }
        let recovering = self.packets.in_range(members);
        let recovering: Vec<(u64, u32, u32)> = recovering
            .filter(|(_, packet)| packet.fate == Fate::Recovering)
            .map(|(id, packet)| (id, packet.in_flight, packet.shots))
            .collect();
        let copied = recovering.iter().filter(|(_, copies, _)| *copies > 0);
        let outstanding = shot.in_flight + shot.arrived + copied.count();
        // A coded packet that arrived is also of use once other packets of the range arrive.
        let is_sent = |(_, packet): (u64, &SentPacket)| packet.fate == Fate::Sent;
        let covers_sent = self.packets.in_range(shot.ids()).any(is_sent);
        let is_open = outstanding > shot.arrived || covers_sent;
        let unknown = recovering.len() + self.gone(&shot);
        if shot.unsent > 0 || is_open && outstanding >= unknown {
            return;
        }
        for (id, copies, shots) in recovering {
            if copies > 0 {
                continue;
            }
            if shots < self.config.experiment.shots {
                self.schedule_shot(now, id, false);
            } else if !is_open {
                self.give_up(id);
            }
        }
    }

    /// Returns whether enough coded packets of a shot arrived to decode all packets that it covers.
    /// As many as there are unknown packets are linearly dependent once in 254 times, one more once
    /// in 65,000 times (theorem 4.1). So the receiver has to get one more if more are in flight.
    fn suffices(&self, shot: &Shot) -> bool {
        let covered = self.packets.in_range(shot.ids());
        let unknown = covered.filter(|(_, packet)| packet.fate != Fate::Delivered);
        let needed = unknown.count() + usize::from(!shot.is_over());
        shot.arrived > 0 && shot.arrived >= needed
    }

    /// Returns the number of packets that a coded shot covers and that were given up, without a copy in
    /// flight. The receiver probably lacks them, so its equations have as many more unknowns.
    fn gone(&self, shot: &Shot) -> usize {
        let is_gone = |packet: &SentPacket| packet.fate == Fate::GivenUp && packet.in_flight == 0;
        let packets = self.packets.in_range(shot.ids());
        match shot.is_coded {
            true => packets.filter(|(_, packet)| is_gone(packet)).count(),
            false => 0,
        }
    }

    /// Marks a packet as lost and schedules a shot for its range.
    fn schedule_shot(&mut self, now: Instant, id: u64, straggles: bool) {
        let Some(packet) = self.packets.get_mut(id) else {
            return;
        };
        (packet.fate, packet.straggles) = (Fate::Lost, straggles);
        let at = now + RECOVERY_DELAY;
        self.ranges.schedule(packet.range, at);
        self.next_range = None;
    }

    fn queue_retransmission(&mut self, id: u64) {
        if let Some(packet) = self.packets.get_mut(id)
            && packet.fate == Fate::Sent
        {
            packet.fate = Fate::Lost;
            self.retransmissions.push_back(id);
        }
    }

    fn settle_delivered(&mut self, now: Instant, id: u64) {
        let queued_at = self.packets.get(id).map(|packet| packet.queued_at);
        if let Some(range) = self.packets.settle(id, Fate::Delivered) {
            let after = queued_at.map(|queued_at| now.saturating_since(queued_at));
            self.counts
                .confirmed_after
                .record(after.unwrap_or_default());
            self.ranges.count_settled(range);
            self.counts.delivered += 1;
        }
    }

    fn give_up(&mut self, id: u64) {
        if let Some(range) = self.packets.settle(id, Fate::GivenUp) {
            self.ranges.count_settled(range);
            self.counts.given_up += 1;
        }
    }

    /// Returns the number of the range of packet `id`.
    fn range_of(&self, id: u64) -> Option<u64> {
        Some(self.packets.get(id)?.range)
    }

    /// Forgets what was planned for a path that is removed. Returns the coded packets among it: a
    /// coded packet counts as in flight as soon as it is planned, a copy only when it is sent.
    pub(crate) fn remove_path(&mut self, path: PathId) -> impl Iterator<Item = Content> {
        let planned = std::mem::take(&mut self.planned);
        let (gone, planned): (VecDeque<_>, _) =
            planned.into_iter().partition(|(to, _)| *to == path);
        self.planned = planned;
        let contents = gone.into_iter().map(|(_, content)| content);
        contents.filter(|content| matches!(content, Content::Coded { .. }))
    }

    /// Plans to send a packet over these paths.
    pub(crate) fn plan_copies(&mut self, id: u64, paths: PathSet) {
        let copies = paths.iter().map(|path| (path, Content::Original(id)));
        self.planned.extend(copies);
    }

    /// Gives up the next packets to retransmit as long as they do not fit a datagram of this size,
    /// in bytes.
    pub(crate) fn give_up_larger(&mut self, datagram: usize) {
        let is_larger = |packet: &SentPacket| packet.bytes.len() + PacketHeader::LEN > datagram;
        while let Some((id, packet)) = self.next_retransmission()
            && is_larger(packet)
        {
            self.give_up(id);
        }
    }

    /// Returns the next lost packet to retransmit, and its number.
    pub(crate) fn next_retransmission(&mut self) -> Option<(u64, &SentPacket)> {
        let is_lost = |packet: &SentPacket| packet.fate == Fate::Lost;
        while let Some(&id) = self.retransmissions.front() {
            if self.packets.get(id).is_some_and(is_lost) {
                return Some((id, self.packets.get(id)?));
            }
            self.retransmissions.pop_front();
        }
        None
    }

    /// Removes the packet that [`Recovery::next_retransmission`] returned, in order to send it.
    pub(crate) fn pop_retransmission(&mut self) {
        if let Some(id) = self.retransmissions.pop_front()
            && let Some(packet) = self.packets.get_mut(id)
        {
            packet.fate = Fate::Sent;
        }
    }
}
