//! The packets that were sent and may have to be recovered, and the frames that they are part of.

use crate::memory::{cost, shrink_if_sparse};
use bytes::Bytes;
use hawser_units::{Ecn, Instant, PathId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

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
    /// The ECN field of an IP packet. A packet whose sender supports ECN may be marked instead of
    /// dropped (RFC 3168). One marked ECT(1) is marked earlier, because its sender responds to the
    /// share of marked packets (RFC 9331).
    pub ecn: Ecn,
}

/// A packet that was sent at least once.
#[derive(Debug)]
pub struct SentPacket {
    /// The content.
    pub bytes: Bytes,
    pub(crate) hint: Hint,
    /// When the application passed the packet to the sender.
    pub queued_at: Instant,
    /// The number of transmissions of unknown fate.
    pub(crate) in_flight: u32,
    /// The knowledge of its arrival.
    pub fate: Fate,
    /// The number of shots since it was lost.
    pub(crate) shots: u32,
    /// Whether it counts as lost as a straggler, and no shot for it has failed.
    pub(crate) straggles: bool,
    /// The path of the last transmission.
    pub path: Option<PathId>,
    /// The number of its encoding range.
    pub(crate) range: u64,
    frame: u64,
}

impl SentPacket {
    /// Returns whether the packet counts as lost and is not known to be recovered.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self.fate, Fate::Lost | Fate::Recovering)
    }
}

/// The knowledge of the arrival of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
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
    /// Returns whether nothing more is done for the packet.
    pub fn is_settled(self) -> bool {
        matches!(self, Fate::Delivered | Fate::GivenUp)
    }
}

/// The packets that were sent and may have to be recovered.
#[derive(Debug, Default)]
pub struct SentPackets {
    packets: VecDeque<SentPacket>,
    /// The number of the first element of `packets`.
    first: u64,
    bytes: u64,
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

impl Frame {
    fn new(flow_hash: u64) -> Self {
        Frame {
            flow_hash,
            packets: 0,
            delivered: 0,
            stored: 0,
            is_complete: false,
        }
    }
}

impl SentPackets {
    /// Returns the number of the next packet.
    pub fn next(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    /// Returns the number of the first stored packet.
    pub fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns the cost of the stored packets.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns a stored packet.
    pub fn get(&self, id: u64) -> Option<&SentPacket> {
        self.packets
            .get(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut SentPacket> {
        self.packets
            .get_mut(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    /// Returns the stored packets with their numbers, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &SentPacket)> {
        (self.first..).zip(&self.packets)
    }

    /// Returns the stored packets with these numbers.
    pub fn in_range(&self, ids: Range<u64>) -> impl Iterator<Item = (u64, &SentPacket)> {
        ids.filter_map(|id| Some((id, self.get(id)?)))
    }

    /// Adds a packet of encoding range number `range` that is sent for the first time.
    pub(crate) fn push(&mut self, queued_at: Instant, bytes: Bytes, hint: Hint, range: u64) {
        let frame = self.count_in_frame(hint);
        self.bytes += cost(&bytes);
        self.packets.push_back(SentPacket {
            bytes,
            hint,
            queued_at,
            in_flight: 0,
            fate: Fate::Sent,
            shots: 0,
            straggles: false,
            path: None,
            range,
            frame,
        });
    }

    /// Counts a packet towards the open frame of its flow, and returns the frame's number.
    fn count_in_frame(&mut self, hint: Hint) -> u64 {
        let open = self.open_frames.entry(hint.flow_hash);
        let number = *open.or_insert_with(|| {
            self.next_frame += 1;
            self.next_frame - 1
        });
        let frame = self.frames.entry(number);
        let frame = frame.or_insert_with(|| Frame::new(hint.flow_hash));
        (frame.packets, frame.stored) = (frame.packets + 1, frame.stored + 1);
        if hint.end_of_frame {
            frame.is_complete = true;
            self.complete_frames += 1;
            self.open_frames.remove(&hint.flow_hash);
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

    /// Sets the final fate of a packet, and returns the number of its range; `None` if it was
    /// settled before. A packet that was given up may arrive nevertheless.
    pub(crate) fn settle(&mut self, id: u64, fate: Fate) -> Option<u64> {
        let packet = self.get_mut(id)?;
        if packet.fate.is_settled() {
            if fate == Fate::Delivered {
                packet.fate = fate;
            }
            return None;
        }
        packet.fate = fate;
        let (range, frame) = (packet.range, packet.frame);
        if fate == Fate::Delivered
            && let Some(frame) = self.frames.get_mut(&frame)
        {
            frame.delivered += 1;
        }
        Some(range)
    }

    /// Drops the oldest packets, settled or not.
    pub(crate) fn drop_oldest(&mut self, count: usize) {
        for _ in 0..count {
            let Some(packet) = self.packets.pop_front() else {
                break;
            };
            self.first += 1;
            self.bytes -= cost(&packet.bytes);
            self.forget_of_frame(packet.frame);
        }
        shrink_if_sparse(&mut self.packets);
    }
}
