use crate::{Frame, MAX_PACKETS, REMEMBERED_OBJECTS, Refusal, SlotSet};
use hawser_packets::media::{Header, ObjectId};
use hawser_units::Instant;
use std::num::NonZeroU16;

/// The objects of a track that began last.
#[derive(Debug)]
pub(crate) struct Objects {
    ring: Vec<Option<Object>>,
    next: usize,
    /// The highest object that was forgotten. Neither it nor a lower one begins again.
    forgotten: Option<(Frame, u8)>,
    /// The highest frame of which an object began.
    newest: Option<Frame>,
}

/// An object of which a packet has arrived.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) id: ObjectId,
    pub(crate) priority: u8,
    pub(crate) begun: Instant,
    pub(crate) served: SlotSet,
    pub(crate) dropped: SlotSet,
    pub(crate) newest: Instant,
    pub(crate) packets: u16,
    pub(crate) bytes: u64,
    pub(crate) count: Option<NonZeroU16>,
    pub(crate) is_registered: bool,
    highest: u16,
    seen: Vec<u64>,
}

impl Objects {
    pub(crate) fn new() -> Self {
        Objects {
            ring: (0..REMEMBERED_OBJECTS).map(|_| None).collect(),
            next: 0,
            forgotten: None,
            newest: None,
        }
    }

    pub(crate) const fn newest(&self) -> Option<Frame> {
        self.newest
    }

    /// Returns the position of an object; `None` if it is not remembered. Upstreams may have different
    /// aliases for the track.
    pub(crate) fn find(&self, id: &ObjectId) -> Option<usize> {
        let name = |id: &ObjectId| (Frame::of(id), id.layer);
        let is_it = |object: &Option<Object>| {
            let found = object.as_ref();
            found.is_some_and(|object| name(&object.id) == name(id))
        };
        self.ring.iter().position(is_it)
    }

    /// Returns whether an object that is not remembered may have begun before.
    pub(crate) fn is_outdated(&self, id: &ObjectId) -> bool {
        self.forgotten
            .is_some_and(|forgotten| (Frame::of(id), id.layer) <= forgotten)
    }

    /// Begins an object in the place of the one that began first. Returns its position, and the one
    /// that it replaced.
    pub(crate) fn begin(&mut self, now: Instant, header: &Header) -> (usize, Option<Object>) {
        let id = header.id.object;
        let position = self.next;
        self.next = (position + 1) % REMEMBERED_OBJECTS;
        self.newest = self.newest.max(Some(Frame::of(&id)));
        let object = Object {
            id,
            priority: header.priority,
            begun: now,
            served: SlotSet::EMPTY,
            dropped: SlotSet::EMPTY,
            newest: now,
            packets: 0,
            bytes: 0,
            count: None,
            is_registered: false,
            highest: 0,
            seen: vec![0; usize::from(MAX_PACKETS) / 64],
        };
        let replaced = self.ring[position].replace(object);
        let forgotten = replaced
            .as_ref()
            .map(|object| (Frame::of(&object.id), object.id.layer));
        self.forgotten = self.forgotten.max(forgotten);
        (position, replaced)
    }

    /// # Panics
    /// If no object was found or begun at this position.
    pub(crate) fn at(&mut self, position: usize) -> &mut Object {
        self.ring[position].as_mut().expect("an object is there")
    }
}

impl Object {
    /// Records the arrival of a packet.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        header: &Header,
        bytes: usize,
    ) -> Result<(), Refusal> {
        let index = header.id.index;
        let (word, bit) = (usize::from(index / 64), 1 << (index % 64));
        if self.seen[word] & bit != 0 {
            return Err(Refusal::Duplicate);
        }
        let count = self.count.or(header.count);
        let highest = self.highest.max(index);
        let is_other = header.count.is_some() && header.count != count;
        if is_other || count.is_some_and(|count| highest >= count.get()) {
            return Err(Refusal::Contradiction);
        }
        self.seen[word] |= bit;
        self.count = count;
        self.highest = highest;
        self.packets += 1;
        self.bytes += bytes as u64;
        self.newest = now;
        Ok(())
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.count.is_some_and(|count| self.packets == count.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_packets::media::{Flags, MediaTime, PacketId};

    fn header(object: u32, index: u16, count: u16) -> Header {
        let object = ObjectId {
            alias: 7,
            group: 0,
            object,
            layer: 0,
        };
        Header {
            flags: Flags::default(),
            priority: 0,
            id: PacketId { object, index },
            count: NonZeroU16::new(count),
            deadline: MediaTime(0),
            epoch: 0,
        }
    }

    #[test]
    fn the_oldest_object_is_forgotten_and_does_not_begin_again() {
        let mut objects = Objects::new();
        let number = REMEMBERED_OBJECTS as u32;
        for object in 10..10 + number {
            objects.begin(Instant::ZERO, &header(object, 0, 1));
        }
        let late = header(5, 0, 1);
        assert!(!objects.is_outdated(&late.id.object));
        let (position, replaced) = objects.begin(Instant::ZERO, &late);
        assert_eq!(replaced.map(|object| object.id.object), Some(10));
        assert_eq!(objects.find(&late.id.object), Some(position));
        assert!(objects.is_outdated(&header(10, 0, 1).id.object));
        assert!(objects.is_outdated(&header(6, 0, 1).id.object));
        assert!(!objects.is_outdated(&header(11 + number, 0, 1).id.object));
        let newest = objects.newest().map(|frame| frame.object);
        assert_eq!(newest, Some(9 + number));
    }

    #[test]
    fn packets_count_once_and_may_not_contradict_each_other() {
        let mut objects = Objects::new();
        let (position, _) = objects.begin(Instant::ZERO, &header(1, 2, 0));
        let mut add = |index, count| {
            let object = objects.at(position);
            let added = object.add(Instant::ZERO, &header(1, index, count), 100);
            added.map(|()| object.is_complete())
        };
        assert_eq!(add(2, 0), Ok(false));
        assert_eq!(add(2, 0), Err(Refusal::Duplicate));
        assert_eq!(add(1, 2), Err(Refusal::Contradiction), "packet 2 is known");
        assert_eq!(add(1, 3), Ok(false));
        assert_eq!(add(0, 4), Err(Refusal::Contradiction), "another number");
        assert_eq!(add(3, 0), Err(Refusal::Contradiction), "after the last one");
        assert_eq!(add(0, 0), Ok(true));
        assert_eq!(objects.at(position).bytes, 300);
    }
}
