//! The packets that were sent and may have to be recovered, in encoding ranges (Ni, section 4.4.2).

use crate::Config;
use crate::memory::{cost, give_back};
use hawser_units::{Instant, MAX_PATHS, PathId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// What the application knows of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hint {
    /// It is the last of a video frame: lost packets of different frames are recovered apart.
    pub border: bool,
    /// Tells flows apart. Who can choose what it is made of shares the queue of another flow, so it has a secret key.
    pub flow_hash: u64,
    /// It goes before those that wait and are not urgent, and is never part of a frame.
    pub urgent: bool,
    /// It is an IP packet whose sender takes a mark of congestion for a loss (RFC 3168).
    pub ecn: bool,
}

/// A packet that was sent at least once.
#[derive(Debug)]
pub(crate) struct Original {
    pub(crate) bytes: Vec<u8>,
    pub(crate) hint: Hint,
    /// When it was handed in.
    pub(crate) since: Instant,
    /// Transmissions of unknown fate.
    pub(crate) in_flight: u32,
    pub(crate) fate: Fate,
    /// The path of the last transmission.
    pub(crate) path: Option<PathId>,
    range: u64,
    frame: u64,
}

impl Original {
    /// It counts as lost, and it is not known that it was recovered.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self.fate, Fate::Lost | Fate::Recovering)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Under way.
    Sent,
    /// Lost, and to be recovered.
    Lost,
    /// Lost, and combinations of it are under way.
    Recovering,
    /// Acknowledged, or certain to have been recovered.
    Delivered,
    /// Nothing more is done for it.
    GivenUp,
}

impl Fate {
    pub(crate) fn is_settled(self) -> bool {
        matches!(self, Fate::Delivered | Fate::GivenUp)
    }
}

/// A contiguous range of originals that are encoded together.
#[derive(Debug)]
pub(crate) struct EncodingRange {
    pub(crate) start: u64,
    pub(crate) count: u64,
    opened: Instant,
    closed: bool,
    unsettled: u64,
    pub(crate) shot: Shot,
    /// When the losses in it are to be recovered, should there be any.
    pub(crate) recover_at: Option<Instant>,
}

/// The recovery of a range.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shot {
    /// The packets that are combined.
    pub(crate) first: u64,
    pub(crate) count: u8,
    /// How many of them were lost.
    pub(crate) lost: usize,
    /// Packets of the shot that wait for a window.
    pub(crate) owed: usize,
    /// What each path got of it.
    pub(crate) by_path: [usize; MAX_PATHS],
    /// Combinations of these packets that are under way or planned, and that arrived.
    pub(crate) in_flight: usize,
    pub(crate) arrived: usize,
    /// Shots for packets of this range so far.
    pub(crate) fired: u32,
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
pub(crate) struct Pool {
    originals: VecDeque<Original>,
    first: u64,
    ranges: VecDeque<EncodingRange>,
    first_range: u64,
    bytes: u64,
    range_packets: u64,
    range_span: Duration,
    /// Packets that are kept though they are settled, because later combinations reach back to them.
    reach: usize,
    /// The video frames that the packets are of, by number.
    frames: BTreeMap<u64, Frame>,
    next_frame: u64,
    whole_frames: usize,
    /// The frame of each flow that is still growing.
    growing: BTreeMap<u64, u64>,
}

/// How many packets of a frame were sent, and how many of them arrived.
#[derive(Debug, Clone, Copy)]
struct Frame {
    flow_hash: u64,
    packets: u32,
    delivered: u32,
    /// Packets of it that are in the pool.
    kept: u32,
    is_whole: bool,
}

impl Pool {
    pub(crate) fn new(config: &Config, reach: usize) -> Self {
        Pool {
            originals: VecDeque::new(),
            first: 0,
            ranges: VecDeque::new(),
            first_range: 0,
            bytes: 0,
            range_packets: config.range_packets.clamp(1, 63) as u64,
            range_span: config.range_span,
            reach,
            frames: BTreeMap::new(),
            next_frame: 0,
            whole_frames: 0,
            growing: BTreeMap::new(),
        }
    }

    /// The number that the next packet has.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.originals.len() as u64
    }

    /// The number of the first packet that is kept.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// What the packets cost.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Original> {
        self.originals
            .get(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Original> {
        self.originals
            .get_mut(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    /// The packets from the oldest on.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Original)> {
        (self.first..).zip(&self.originals)
    }

    /// The range that `id` is in, and its number.
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

    /// The packets of a range, with their numbers.
    pub(crate) fn members(&self, range: &EncodingRange) -> impl Iterator<Item = (u64, &Original)> {
        range.ids().filter_map(|id| Some((id, self.get(id)?)))
    }

    /// Takes a packet that is sent for the first time.
    pub(crate) fn push(&mut self, now: Instant, since: Instant, bytes: Vec<u8>, hint: Hint) -> u64 {
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
            range.closed = hint.border;
        }
        let frame = self.count_in_frame(hint);
        self.bytes += cost(&bytes);
        self.originals.push_back(Original {
            bytes,
            hint,
            since,
            in_flight: 0,
            fate: Fate::Sent,
            path: None,
            range: number,
            frame,
        });
        id
    }

    /// Counts one more packet of its flow's frame, and says which one that is.
    fn count_in_frame(&mut self, hint: Hint) -> u64 {
        let Hint {
            flow_hash, border, ..
        } = hint;
        let number = *self.growing.entry(flow_hash).or_insert_with(|| {
            self.next_frame += 1;
            self.next_frame - 1
        });
        let new = Frame {
            flow_hash,
            packets: 0,
            delivered: 0,
            kept: 0,
            is_whole: false,
        };
        let frame = self.frames.entry(number).or_insert(new);
        (frame.packets, frame.kept) = (frame.packets + 1, frame.kept + 1);
        if border {
            frame.is_whole = true;
            self.whole_frames += 1;
            self.growing.remove(&flow_hash);
        }
        number
    }

    /// A packet of a frame goes, and with the last of them the frame.
    fn forget_of_frame(&mut self, number: u64) {
        let Entry::Occupied(mut entry) = self.frames.entry(number) else {
            return;
        };
        entry.get_mut().kept -= 1;
        if entry.get().kept > 0 {
            return;
        }
        let frame = entry.remove();
        match frame.is_whole {
            true => self.whole_frames -= 1,
            false => _ = self.growing.remove(&frame.flow_hash),
        }
    }

    /// The share of the packet's frame that is not known to have arrived; none as long as the frame was not sent whole.
    pub(crate) fn missing_of_frame(&self, id: u64) -> Option<f64> {
        let frame = self
            .frames
            .get(&self.get(id)?.frame)
            .filter(|frame| frame.is_whole)?;
        Some(1.0 - f64::from(frame.delivered) / f64::from(frame.packets))
    }

    /// Whether the end of any frame that is kept is known.
    pub(crate) fn knows_frames(&self) -> bool {
        self.whole_frames > 0
    }

    /// Puts a packet into its last state, unless it is in one; true when it was not.
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

    /// Drops the ranges for which nothing remains to be done, from the oldest on.
    pub(crate) fn trim(&mut self) {
        while let Some(range) = self.ranges.front() {
            let count = range.count as usize;
            if range.unsettled > 0
                || self.ranges.len() == 1
                || self.originals.len() < count + self.reach
            {
                break;
            }
            self.drop_first_range();
        }
    }

    /// Drops the oldest range whatever its state, and says which of its packets were not settled.
    pub(crate) fn drop_first_range(&mut self) -> u64 {
        let Some(range) = self.ranges.pop_front() else {
            return 0;
        };
        self.first_range += 1;
        self.first += range.count;
        for _ in 0..range.count {
            let Some(original) = self.originals.pop_front() else {
                break;
            };
            self.bytes -= cost(&original.bytes);
            self.forget_of_frame(original.frame);
        }
        give_back(&mut self.originals);
        give_back(&mut self.ranges);
        range.unsettled
    }
}
