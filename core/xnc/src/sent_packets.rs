//! The packets that were sent and may have to be recovered, in encoding ranges (Ni, section 4.4.2).

use crate::Config;
use crate::memory::{cost, shrink_if_sparse};
use hawser_units::{Instant, MAX_PATHS, PathId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Properties of a packet that the application knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hint {
    /// Whether this is the last packet of a video frame. Encoding ranges do not extend over the end
    /// of a frame.
    pub end_of_frame: bool,
    /// The hash that identifies the flow. It has to be keyed with a secret: an attacker who can
    /// predict hashes could make flows share a queue.
    pub flow_hash: u64,
    /// Whether the packet precedes waiting packets that are not urgent. An urgent packet is never a
    /// part of a frame.
    pub urgent: bool,
    /// Whether this is an IP packet whose sender supports ECN, so that it may be marked instead of
    /// dropped (RFC 3168).
    pub ecn: bool,
}

/// A packet that was sent at least once.
#[derive(Debug)]
pub(crate) struct SentPacket {
    pub(crate) bytes: Vec<u8>,
    pub(crate) hint: Hint,
    /// When the application passed the packet to the sender.
    pub(crate) queued_at: Instant,
    /// The number of transmissions of unknown fate.
    pub(crate) in_flight: u32,
    pub(crate) fate: Fate,
    /// The path of the last transmission.
    pub(crate) path: Option<PathId>,
    range: u64,
    frame: u64,
}

impl SentPacket {
    /// Returns whether the packet counts as lost and is not known to be recovered.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self.fate, Fate::Lost | Fate::Recovering)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// In flight.
    Sent,
    /// Lost, waiting for recovery.
    Lost,
    /// Lost, with recovery packets planned or in flight.
    Recovering,
    /// Acknowledged, or recovered with certainty.
    Delivered,
    /// Not recovered any more.
    GivenUp,
}

impl Fate {
    pub(crate) fn is_settled(self) -> bool {
        matches!(self, Fate::Delivered | Fate::GivenUp)
    }
}

/// A contiguous range of packets that are encoded together.
#[derive(Debug)]
pub(crate) struct EncodingRange {
    pub(crate) start: u64,
    pub(crate) count: u64,
    opened: Instant,
    closed: bool,
    unsettled: u64,
    pub(crate) shot: Shot,
    /// When to recover the losses in the range, if there are any.
    pub(crate) recover_at: Option<Instant>,
}

/// The recovery of a range.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shot {
    /// The first packet, and the number of packets, that the shot covers.
    pub(crate) first: u64,
    pub(crate) count: u8,
    /// The number of lost packets among them.
    pub(crate) lost: usize,
    /// Packets of the shot that wait for window.
    pub(crate) unsent: usize,
    /// Packets of the shot on each path.
    pub(crate) by_path: [usize; MAX_PATHS],
    /// Coded packets over these packets that are planned or in flight, and that arrived.
    pub(crate) in_flight: usize,
    pub(crate) arrived: usize,
    /// The number of shots for packets of this range so far.
    pub(crate) attempts: u32,
}

impl Shot {
    pub(crate) fn ids(&self) -> Range<u64> {
        self.first..self.first + u64::from(self.count)
    }
}

impl EncodingRange {
    pub(crate) fn ids(&self) -> Range<u64> {
        self.start..self.start + self.count
    }
}

/// The packets that were sent and may have to be recovered.
#[derive(Debug)]
pub(crate) struct SentPackets {
    packets: VecDeque<SentPacket>,
    first: u64,
    ranges: VecDeque<EncodingRange>,
    first_range: u64,
    bytes: u64,
    range_packets: u64,
    range_span: Duration,
    /// The number of settled packets that are kept because later coded packets may cover them.
    lookback: usize,
    /// The video frames of the packets, by number.
    frames: BTreeMap<u64, Frame>,
    next_frame: u64,
    complete_frames: usize,
    /// The frame of each flow whose end was not sent yet.
    open_frames: BTreeMap<u64, u64>,
}

/// The number of packets of a frame that were sent, and of those that arrived.
#[derive(Debug, Clone, Copy)]
struct Frame {
    flow_hash: u64,
    packets: u32,
    delivered: u32,
    /// Packets of the frame that are still stored.
    stored: u32,
    is_complete: bool,
}

impl SentPackets {
    pub(crate) fn new(config: &Config, lookback: usize) -> Self {
        SentPackets {
            packets: VecDeque::new(),
            first: 0,
            ranges: VecDeque::new(),
            first_range: 0,
            bytes: 0,
            range_packets: config.range_packets.clamp(1, 63) as u64,
            range_span: config.range_span,
            lookback,
            frames: BTreeMap::new(),
            next_frame: 0,
            complete_frames: 0,
            open_frames: BTreeMap::new(),
        }
    }

    /// Returns the number of the next packet.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    /// Returns the number of the first stored packet.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the cost of the stored packets.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn get(&self, id: u64) -> Option<&SentPacket> {
        self.packets
            .get(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut SentPacket> {
        self.packets
            .get_mut(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    /// Returns the stored packets with their numbers, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &SentPacket)> {
        (self.first..).zip(&self.packets)
    }

    /// Returns the range of packet `id`, and its number.
    pub(crate) fn range_of(&mut self, id: u64) -> Option<(u64, &mut EncodingRange)> {
        let range = self.get(id)?.range;
        Some((range, self.range_mut(range)?))
    }

    pub(crate) fn range(&self, number: u64) -> Option<&EncodingRange> {
        self.ranges
            .get(usize::try_from(number.checked_sub(self.first_range)?).ok()?)
    }

    pub(crate) fn range_mut(&mut self, number: u64) -> Option<&mut EncodingRange> {
        self.ranges
            .get_mut(usize::try_from(number.checked_sub(self.first_range)?).ok()?)
    }

    /// Returns the packets of a range, with their numbers.
    pub(crate) fn members(
        &self,
        range: &EncodingRange,
    ) -> impl Iterator<Item = (u64, &SentPacket)> {
        range.ids().filter_map(|id| Some((id, self.get(id)?)))
    }

    /// Adds a packet that is sent for the first time, and returns its number.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        queued_at: Instant,
        bytes: Vec<u8>,
        hint: Hint,
    ) -> u64 {
        let id = self.next();
        let full = self.ranges.back().is_none_or(|range| {
            range.closed
                || range.count >= self.range_packets
                || now.saturating_since(range.opened) >= self.range_span
        });
        if full {
            self.ranges.push_back(EncodingRange {
                start: id,
                count: 0,
                opened: now,
                closed: false,
                unsettled: 0,
                shot: Shot::default(),
                recover_at: None,
            });
        }
        let number = self.first_range + self.ranges.len() as u64 - 1;
        if let Some(range) = self.ranges.back_mut() {
            range.count += 1;
            range.unsettled += 1;
            range.closed = hint.end_of_frame;
        }
        let frame = self.count_in_frame(hint);
        self.bytes += cost(&bytes);
        self.packets.push_back(SentPacket {
            bytes,
            hint,
            queued_at,
            in_flight: 0,
            fate: Fate::Sent,
            path: None,
            range: number,
            frame,
        });
        id
    }

    /// Counts a packet towards the open frame of its flow, and returns the frame's number.
    fn count_in_frame(&mut self, hint: Hint) -> u64 {
        let Hint {
            flow_hash,
            end_of_frame,
            ..
        } = hint;
        let number = *self.open_frames.entry(flow_hash).or_insert_with(|| {
            self.next_frame += 1;
            self.next_frame - 1
        });
        let new = Frame {
            flow_hash,
            packets: 0,
            delivered: 0,
            stored: 0,
            is_complete: false,
        };
        let frame = self.frames.entry(number).or_insert(new);
        (frame.packets, frame.stored) = (frame.packets + 1, frame.stored + 1);
        if end_of_frame {
            frame.is_complete = true;
            self.complete_frames += 1;
            self.open_frames.remove(&flow_hash);
        }
        number
    }

    /// Removes a packet of a frame, and the frame if it was the last.
    fn forget_of_frame(&mut self, number: u64) {
        let Entry::Occupied(mut entry) = self.frames.entry(number) else {
            return;
        };
        entry.get_mut().stored -= 1;
        if entry.get().stored > 0 {
            return;
        }
        let frame = entry.remove();
        match frame.is_complete {
            true => self.complete_frames -= 1,
            false => _ = self.open_frames.remove(&frame.flow_hash),
        }
    }

    /// Returns the share of the packet's frame that is not known to have arrived; `None` while the
    /// end of the frame was not sent.
    pub(crate) fn missing_share_of_frame(&self, id: u64) -> Option<f64> {
        let frame = self
            .frames
            .get(&self.get(id)?.frame)
            .filter(|frame| frame.is_complete)?;
        Some(1.0 - f64::from(frame.delivered) / f64::from(frame.packets))
    }

    /// Returns whether the end of any stored frame is known.
    pub(crate) fn has_complete_frames(&self) -> bool {
        self.complete_frames > 0
    }

    /// Sets the final fate of a packet. Returns `false` if it was settled before.
    pub(crate) fn settle(&mut self, id: u64, fate: Fate) -> bool {
        let Some(original) = self
            .get_mut(id)
            .filter(|original| !original.fate.is_settled())
        else {
            return false;
        };
        original.fate = fate;
        let (range, frame) = (original.range, original.frame);
        if fate == Fate::Delivered
            && let Some(frame) = self.frames.get_mut(&frame)
        {
            frame.delivered += 1;
        }
        if let Some(range) = self.range_mut(range) {
            range.unsettled -= 1;
        }
        true
    }

    /// Drops settled ranges, starting with the oldest.
    pub(crate) fn trim(&mut self) {
        while let Some(range) = self.ranges.front() {
            let count = range.count as usize;
            if range.unsettled > 0
                || self.ranges.len() == 1
                || self.packets.len() < count + self.lookback
            {
                break;
            }
            self.drop_first_range();
        }
    }

    /// Drops the oldest range, settled or not, and returns the number of its packets that were not
    /// settled.
    pub(crate) fn drop_first_range(&mut self) -> u64 {
        let Some(range) = self.ranges.pop_front() else {
            return 0;
        };
        self.first_range += 1;
        self.first += range.count;
        for _ in 0..range.count {
            let Some(original) = self.packets.pop_front() else {
                break;
            };
            self.bytes -= cost(&original.bytes);
            self.forget_of_frame(original.frame);
        }
        shrink_if_sparse(&mut self.packets);
        shrink_if_sparse(&mut self.ranges);
        range.unsettled
    }
}
