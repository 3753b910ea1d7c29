use super::dependencies::depends;
use crate::object::{ObjectInfo, SealedPacket};
use hawser_packets::media::{ObjectId, PacketId};
use hawser_units::{ByteSize, Instant};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The objects that are kept, and the order in which they are sent.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    entries: BTreeMap<ObjectId, Entry>,
    /// The objects with packets to send.
    ready: BTreeSet<Turn>,
    bytes: u64,
    waiting: u64,
}

/// The place of an object in the order of sending: those that go ahead first, then by deadline,
/// priority and identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    is_in_order: bool,
    deadline: Instant,
    priority: u8,
    id: ObjectId,
}

#[derive(Debug)]
struct Entry {
    info: ObjectInfo,
    goes_ahead: bool,
    admitted: Instant,
    reserved: u64,
    size: u64,
    packets: Vec<Kept>,
    to_send: BTreeSet<u16>,
    acknowledged: usize,
    is_finished: bool,
    has_begun: bool,
}

#[derive(Debug)]
struct Kept {
    packet: SealedPacket,
    /// The number of the first transmission.
    first: Option<u64>,
    is_acknowledged: bool,
}

/// The next packet to send, with the number of its first transmission.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) packet: SealedPacket,
    pub(super) first: Option<u64>,
}

/// An object that is no longer kept.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) id: ObjectId,
    pub(super) admitted: Instant,
    /// The packets that were sent.
    pub(super) sent: Vec<bool>,
}

/// The part of an object that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing.
    Waiting,
    /// A part.
    Begun,
    /// Everything, and nothing is known to be lost.
    Sent,
}

/// The state of a packet that a report names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// It is in flight, or was declared lost.
    Sent,
    /// It was acknowledged before.
    Acknowledged,
    /// It was not sent.
    Unsent,
    /// Its object is not kept.
    Unknown,
}

impl Buffer {
    pub(super) fn bytes(&self) -> ByteSize {
        ByteSize(self.bytes)
    }

    pub(super) fn waiting(&self) -> ByteSize {
        ByteSize(self.waiting)
    }

    pub(super) fn contains(&self, id: &ObjectId) -> bool {
        self.entries.contains_key(id)
    }

    pub(super) fn progress(&self, id: &ObjectId) -> Progress {
        match self.entries.get(id) {
            Some(entry) if !entry.has_begun => Progress::Waiting,
            Some(entry) if entry.is_finished && entry.to_send.is_empty() => Progress::Sent,
            _ => Progress::Begun,
        }
    }

    pub(super) fn admit(
        &mut self,
        now: Instant,
        info: ObjectInfo,
        reserved: ByteSize,
        goes_ahead: bool,
    ) {
        let entry = Entry {
            info,
            goes_ahead,
            admitted: now,
            reserved: reserved.0,
            size: 0,
            packets: Vec::new(),
            to_send: BTreeSet::new(),
            acknowledged: 0,
            is_finished: false,
            has_begun: false,
        };
        self.bytes += entry.held();
        self.entries.insert(info.id, entry);
    }

    pub(super) fn push(&mut self, id: &ObjectId, packets: &[SealedPacket]) {
        let Some(entry) = self.entries.get_mut(id).filter(|entry| !entry.is_finished) else {
            return;
        };
        let before = entry.held();
        for packet in packets {
            // Packets are added in ascending order from zero, at most 65,535.
            if usize::from(packet.id.index) != entry.packets.len() || packet.id.object != *id {
                continue;
            }
            entry.to_send.insert(packet.id.index);
            entry.size += packet.size().0;
            self.waiting += packet.size().0;
            entry.packets.push(Kept {
                packet: packet.clone(),
                first: None,
                is_acknowledged: false,
            });
        }
        self.bytes = self.bytes - before + entry.held();
        if !entry.to_send.is_empty() {
            self.ready.insert(entry.turn());
        }
    }

    /// Returns the object if nothing of it is left to be acknowledged.
    pub(super) fn finish(&mut self, id: &ObjectId) -> Option<Ended> {
        let entry = self.entries.get_mut(id)?;
        self.bytes -= entry.held();
        entry.is_finished = true;
        entry.reserved = 0;
        self.bytes += entry.held();
        entry.is_delivered().then(|| self.remove(id)).flatten()
    }

    pub(super) fn next_object(&self) -> Option<ObjectInfo> {
        let turn = self.ready.first()?;
        self.entries.get(&turn.id).map(|entry| entry.info)
    }

    /// Removes the first packet of the first object that has one to send.
    pub(super) fn take_packet(&mut self) -> Option<Next> {
        let turn = self.ready.first()?;
        let entry = self.entries.get_mut(&turn.id)?;
        let index = entry.to_send.pop_first()?;
        let kept = entry.packets.get(usize::from(index))?;
        let next = Next {
            packet: kept.packet.clone(),
            first: kept.first,
        };
        self.waiting -= next.packet.size().0;
        if entry.to_send.is_empty() {
            let turn = entry.turn();
            self.ready.remove(&turn);
        }
        Some(next)
    }

    /// Records that a packet was sent; `first` is the number of its first transmission.
    pub(super) fn sent(&mut self, id: &PacketId, first: u64) {
        if let Some(entry) = self.entries.get_mut(&id.object) {
            entry.has_begun = true;
            if let Some(kept) = entry.packets.get_mut(usize::from(id.index)) {
                kept.first = Some(first);
            }
        }
    }

    /// Queues a lost packet again, if its object is still kept.
    pub(super) fn send_again(&mut self, id: &PacketId) {
        let Some(entry) = self.entries.get_mut(&id.object) else {
            return;
        };
        let kept = entry.packets.get(usize::from(id.index));
        if let Some(kept) = kept.filter(|kept| !kept.is_acknowledged)
            && entry.to_send.insert(id.index)
        {
            self.waiting += kept.packet.size().0;
            self.ready.insert(entry.turn());
        }
    }

    pub(super) fn named(&self, id: &PacketId) -> Named {
        let Some(entry) = self.entries.get(&id.object) else {
            return Named::Unknown;
        };
        match entry.packets.get(usize::from(id.index)) {
            Some(kept) if kept.is_acknowledged => Named::Acknowledged,
            Some(kept) if kept.first.is_some() => Named::Sent,
            _ => Named::Unsent,
        }
    }

    /// Records an acknowledgement. Returns the object if it was the last one.
    pub(super) fn acknowledge(&mut self, id: &PacketId) -> Option<Ended> {
        let entry = self.entries.get_mut(&id.object)?;
        let kept = entry.packets.get_mut(usize::from(id.index))?;
        if !kept.is_acknowledged {
            kept.is_acknowledged = true;
            entry.acknowledged += 1;
        }
        if entry.to_send.remove(&id.index) {
            self.waiting -= kept.packet.size().0;
            if entry.to_send.is_empty() {
                let turn = entry.turn();
                self.ready.remove(&turn);
            }
        }
        entry
            .is_delivered()
            .then(|| self.remove(&id.object))
            .flatten()
    }

    pub(super) fn remove(&mut self, id: &ObjectId) -> Option<Ended> {
        let entry = self.entries.remove(id)?;
        self.bytes -= entry.held();
        let waiting = entry.to_send.iter();
        let waiting = waiting.filter_map(|index| entry.packets.get(usize::from(*index)));
        self.waiting -= waiting.map(|kept| kept.packet.size().0).sum::<u64>();
        self.ready.remove(&entry.turn());
        Some(Ended {
            id: *id,
            admitted: entry.admitted,
            sent: entry
                .packets
                .iter()
                .map(|kept| kept.first.is_some())
                .collect(),
        })
    }

    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.entries.values().map(|entry| entry.info.deadline).min()
    }

    pub(super) fn past_deadline(&self, now: Instant) -> Option<ObjectId> {
        let mut entries = self.entries.values();
        let past = entries.find(|entry| entry.info.deadline <= now);
        past.map(|entry| entry.info.id)
    }

    /// Returns objects of higher layers, and of the same layer those of less priority, that have not begun to leave and
    /// have at least `needed` bytes together, highest layer first; `None` if there are not enough.
    pub(super) fn displaced_by(
        &self,
        info: &ObjectInfo,
        needed: ByteSize,
    ) -> Option<Vec<ObjectId>> {
        let higher = self.entries.values();
        let rank = |info: &ObjectInfo| (info.id.layer, info.priority);
        let higher = higher.filter(|e| rank(&e.info) > rank(info) && !e.has_begun);
        let mut higher: Vec<&Entry> = higher.collect();
        higher.sort_by_key(|e| Reverse((e.info.id.layer, e.info.priority, e.info.deadline)));
        let mut freed = 0;
        let mut displaced = Vec::new();
        for entry in higher {
            if freed >= needed.0 {
                break;
            }
            freed += entry.held();
            displaced.push(entry.info.id);
        }
        (freed >= needed.0).then_some(displaced)
    }

    /// Returns the objects that depend on one and have not begun to leave.
    pub(super) fn waiting_dependents(&self, on: &ObjectId) -> Vec<ObjectId> {
        let entries = self.entries.values();
        let waiting = entries.filter(|entry| !entry.has_begun && depends(&entry.info.id, on));
        waiting.map(|entry| entry.info.id).collect()
    }
}

impl Entry {
    fn turn(&self) -> Turn {
        Turn {
            is_in_order: !self.goes_ahead,
            deadline: self.info.deadline,
            priority: self.info.priority,
            id: self.info.id,
        }
    }

    /// Returns the bytes that the object has or has reserved.
    fn held(&self) -> u64 {
        self.size.max(self.reserved)
    }

    fn is_delivered(&self) -> bool {
        self.is_finished && self.acknowledged == self.packets.len()
    }
}
