use crate::object::Begun;
use crate::refusal::Refusal;
use hawser_packets::media::{Header, ObjectId, PacketId};
use hawser_units::{Ecn, Instant};
use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;

/// The bounds of what is kept for one track.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) objects: usize,
    pub(crate) packets: u16,
    pub(crate) remembered: usize,
}

/// The objects of one track that are not complete, and the identifiers of those that are or were
/// given up.
#[derive(Debug)]
pub(crate) struct Reassembly {
    bounds: Bounds,
    partial: BTreeMap<ObjectId, Partial>,
    finished: BTreeMap<ObjectId, Fate>,
    /// The highest identifier that was forgotten. Neither it nor a lower one begins again.
    forgotten: Option<ObjectId>,
}

/// The bytes that a packet takes besides its payload, for the bound of the memory.
pub(crate) const PACKET_OVERHEAD: usize = 64;

/// The end of an object at the receiver.
#[derive(Debug)]
enum Fate {
    Complete,
    /// Given up, with a bit for each packet that has arrived.
    GivenUp(Vec<u64>),
}

/// Whether the payload of a packet is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// It belongs to an object that may become complete.
    Wanted,
    /// Its object was given up. That it arrived is still to be reported.
    Late,
    /// It arrived before. It is to be reported again, since the previous report may be lost.
    Duplicate,
}

/// An object of which some packets have arrived.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) header: Header,
    pub(crate) first_arrival: Instant,
    /// The time at which the object is given up.
    pub(crate) gives_up_at: Instant,
    pub(crate) marked: bool,
    count: Option<NonZeroU16>,
    payloads: BTreeMap<u16, Arc<[u8]>>,
}

/// An object that ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) id: ObjectId,
    pub(crate) partial: Partial,
}

impl Reassembly {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Reassembly {
            bounds,
            partial: BTreeMap::new(),
            finished: BTreeMap::new(),
            forgotten: None,
        }
    }

    /// Returns the reason to refuse a packet before its payload is opened.
    pub(crate) fn check(&self, header: &Header) -> Result<Use, Refusal> {
        let id = header.id.object;
        if header.id.index >= self.bounds.packets
            || header
                .count
                .is_some_and(|count| count.get() > self.bounds.packets)
        {
            return Err(Refusal::TooManyPackets);
        }
        match (self.partial.get(&id), self.finished.get(&id)) {
            (Some(partial), _) => partial.check(header),
            (None, Some(Fate::Complete)) => Ok(Use::Duplicate),
            (None, Some(Fate::GivenUp(arrived))) if is_set(arrived, header.id.index) => {
                Ok(Use::Duplicate)
            }
            (None, Some(Fate::GivenUp(_))) => Ok(Use::Late),
            (None, None) if self.forgotten.is_some_and(|forgotten| id <= forgotten) => {
                Err(Refusal::TooOld)
            }
            (None, None) => Ok(Use::Wanted),
        }
    }

    /// Adds an authenticated packet that [`Reassembly::check`] let pass. Returns the object if it is
    /// complete.
    pub(crate) fn insert(
        &mut self,
        header: Header,
        payload: Arc<[u8]>,
        ecn: Ecn,
        times: [Instant; 2],
    ) -> Option<Ended> {
        let id = header.id.object;
        let [now, gives_up_at] = times;
        let partial = self.partial.entry(id).or_insert_with(|| Partial {
            header,
            first_arrival: now,
            gives_up_at,
            marked: false,
            count: None,
            payloads: BTreeMap::new(),
        });
        partial.marked |= ecn == Ecn::Ce;
        partial.count = partial.count.or(header.count);
        partial.payloads.insert(header.id.index, payload);
        let is_complete = partial.is_complete();
        is_complete.then(|| self.complete(id)).flatten()
    }

    /// Records the arrival of an authenticated packet whose payload is not needed. Returns whether its object
    /// was not known.
    pub(crate) fn insert_late(&mut self, id: PacketId) -> bool {
        let is_new = !self.finished.contains_key(&id.object);
        if is_new {
            self.finish(id.object, Fate::GivenUp(Vec::new()));
        }
        if let Some(Fate::GivenUp(arrived)) = self.finished.get_mut(&id.object) {
            set(arrived, id.index);
        }
        is_new
    }

    /// Gives up the oldest object if there are too many.
    pub(crate) fn give_up_surplus(&mut self) -> Option<Ended> {
        let oldest = *self.partial.first_key_value()?.0;
        let is_surplus = self.partial.len() > self.bounds.objects;
        is_surplus.then(|| self.abandon(oldest)).flatten()
    }

    /// Gives up an object whose time has passed.
    pub(crate) fn give_up(&mut self, now: Instant) -> Option<Ended> {
        let mut expired = self.partial.iter();
        let (id, _) = expired.find(|(_, partial)| partial.gives_up_at <= now)?;
        self.abandon(*id)
    }

    /// Has objects given up by a time that precede this one in its layer and whose packets decode alone: what is
    /// missing then was left out.
    pub(crate) fn pass(&mut self, id: &ObjectId, by: Instant) {
        for (_, partial) in self.partial.range_mut(..*id) {
            let header = &partial.header;
            if header.flags.packets_alone && header.id.object.layer == id.layer {
                partial.gives_up_at = partial.gives_up_at.min(by);
            }
        }
    }

    /// Returns the next time at which an object is given up.
    pub(crate) fn timeout(&self) -> Option<Instant> {
        let times = self.partial.values().map(|partial| partial.gives_up_at);
        times.min()
    }

    fn complete(&mut self, id: ObjectId) -> Option<Ended> {
        let partial = self.partial.remove(&id)?;
        self.finish(id, Fate::Complete);
        Some(Ended { id, partial })
    }

    /// Gives up an object.
    pub(crate) fn abandon(&mut self, id: ObjectId) -> Option<Ended> {
        let partial = self.partial.remove(&id)?;
        let mut arrived = Vec::new();
        for index in partial.payloads.keys() {
            set(&mut arrived, *index);
        }
        self.finish(id, Fate::GivenUp(arrived));
        Some(Ended { id, partial })
    }

    fn finish(&mut self, id: ObjectId, fate: Fate) {
        self.finished.insert(id, fate);
        if self.finished.len() > self.bounds.remembered {
            let lowest = self.finished.pop_first().map(|(id, _)| id);
            self.forgotten = self.forgotten.max(lowest);
        }
    }
}

fn is_set(bits: &[u64], index: u16) -> bool {
    let word = bits.get(usize::from(index / 64));
    word.is_some_and(|word| word & 1 << (index % 64) != 0)
}

fn set(bits: &mut Vec<u64>, index: u16) {
    let word = usize::from(index / 64);
    if word >= bits.len() {
        bits.resize(word + 1, 0);
    }
    bits[word] |= 1 << (index % 64);
}

impl Partial {
    fn check(&self, header: &Header) -> Result<Use, Refusal> {
        if self.payloads.contains_key(&header.id.index) {
            return Ok(Use::Duplicate);
        }
        let last = self.payloads.last_key_value().map(|(index, _)| *index);
        let last = last.max(Some(header.id.index));
        let count = self.count.or(header.count).map(NonZeroU16::get);
        let is_other_count =
            self.count.is_some() && header.count.is_some_and(|c| Some(c) != self.count);
        if is_other_count || count.is_some_and(|count| last.is_some_and(|last| last >= count)) {
            return Err(Refusal::Contradiction);
        }
        Ok(Use::Wanted)
    }

    fn is_complete(&self) -> bool {
        self.count
            .is_some_and(|count| self.payloads.len() >= usize::from(count.get()))
    }

    /// Returns the number of bytes that the packets take.
    pub(crate) fn size(&self) -> usize {
        let sizes = self.payloads.values();
        sizes.map(|payload| payload.len() + PACKET_OVERHEAD).sum()
    }

    /// Returns the number of packets that have arrived.
    pub(crate) fn arrived(&self) -> usize {
        self.payloads.len()
    }

    /// Returns the number of packets of the object, if it is known.
    pub(crate) fn count(&self) -> Option<u16> {
        self.count.map(NonZeroU16::get)
    }

    /// Returns the properties of the object that are known.
    pub(crate) fn begun(&self) -> Begun {
        Begun {
            flags: self.header.flags,
            deadline: self.header.deadline,
            first_arrival: self.first_arrival,
            marked: self.marked,
        }
    }

    /// Returns the payloads of the packets that have arrived, in ascending order.
    pub(crate) fn into_payloads(self) -> Vec<Arc<[u8]>> {
        self.payloads.into_values().collect()
    }
}
