//! Objects that wait: for the session of the relay, for the catalog of their publisher, or for room.

use super::FeedStats;
use bytes::Bytes;
use hawser_units::Instant;
use hawser_wire::media::{DEFAULT_DATAGRAM, Header, Hop, MediaTime};
use hawser_wire::moq::{self, PayloadError};
use hawser_wire::session::Announcement;
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// An object that was checked.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) arrived: Instant,
    /// Alias and layer.
    pub(super) track: (u32, u8),
    pub(super) deadline: MediaTime,
    /// The sequence number of the publisher's group 0.
    first: u64,
    payload: Bytes,
}

/// The reason to refuse an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ObjectError {
    /// The payload is not one of packets, or they are not all packets of the object in order.
    #[error("the object is not valid")]
    Invalid,
    /// The object belongs to another track or layer than the one that it came in.
    #[error("the object belongs to another track")]
    WrongTrack,
    /// A packet is longer than a relay forwards.
    #[error("a packet of the object is too long")]
    TooLong,
}

impl From<PayloadError> for ObjectError {
    fn from(_: PayloadError) -> Self {
        ObjectError::Invalid
    }
}

impl Object {
    pub(super) fn new(
        now: Instant,
        track: (u32, u8),
        sequence: u64,
        payload: Bytes,
    ) -> Result<Self, ObjectError> {
        let mut packets: u16 = 0;
        let mut last = None;
        for packet in moq::packets(&payload) {
            let packet = packet?;
            let id = packet.header.id;
            if (id.object.alias, id.object.layer) != track {
                return Err(ObjectError::WrongTrack);
            }
            if id.index != packets {
                return Err(ObjectError::Invalid);
            }
            if Header::LEN + packet.sealed.len() > DEFAULT_DATAGRAM {
                return Err(ObjectError::TooLong);
            }
            packets = packets.checked_add(1).ok_or(ObjectError::Invalid)?;
            last = Some(packet.header);
        }
        let last: Header = last.ok_or(ObjectError::Invalid)?;
        if last.count.is_none_or(|count| count.get() != packets) {
            return Err(ObjectError::Invalid);
        }
        let first = sequence.checked_sub(last.id.object.group.into());
        Ok(Object {
            arrived: now,
            track,
            deadline: last.deadline,
            first: first.ok_or(ObjectError::Invalid)?,
            payload,
        })
    }

    /// Returns the packets as datagrams with the tag of a hop.
    pub(super) fn datagrams<'a>(&'a self, hop: &'a Hop) -> impl Iterator<Item = Vec<u8>> + 'a {
        let packets = moq::packets(&self.payload).filter_map(Result::ok);
        packets.map(|packet| packet.datagram(hop))
    }
}

/// The sequence numbers of the groups of a track, by which the objects of publishers are told apart.
#[derive(Debug, Clone, Copy, Default)]
struct Sequences {
    /// That of group 0 of the publisher before.
    before: Option<u64>,
    /// That of group 0 of the publisher, once an object of it has come.
    first: Option<u64>,
}

impl Sequences {
    /// Returns whether an object is of an earlier publisher, of this one, or of a later one.
    fn place(&mut self, first: u64) -> Ordering {
        if self.before.is_some_and(|before| first <= before) {
            return Ordering::Less;
        }
        first.cmp(self.first.get_or_insert(first))
    }
}

/// The objects that wait, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Object>,
    bytes: usize,
    sequences: BTreeMap<(u32, u8), Sequences>,
}

/// The maximum number of bytes that wait.
const MAX_BYTES: usize = 16 << 20;

/// The time for which an object waits.
const PATIENCE: Duration = Duration::from_millis(250);

impl Queue {
    /// Goes on with another publisher.
    pub(super) fn begin(&mut self, announcement: &Announcement) {
        let before = std::mem::take(&mut self.sequences);
        for track in &announcement.tracks {
            for layer in 0..track.layers {
                let id = (track.alias, layer);
                let earlier = before.get(&id);
                let sequences = Sequences {
                    before: earlier.and_then(|earlier| earlier.first.or(earlier.before)),
                    first: None,
                };
                self.sequences.insert(id, sequences);
            }
        }
    }

    /// Takes whatever numbers come: those of another session with the source may be others.
    pub(super) fn forget_sequences(&mut self) {
        self.sequences.clear();
    }

    pub(super) fn add(&mut self, object: Object, stats: &mut FeedStats) {
        self.bytes += object.payload.len();
        self.waiting.push_back(object);
        while self.bytes > MAX_BYTES && self.drop_oldest() {
            stats.full += 1;
        }
    }

    /// Returns the next object of the publisher.
    pub(super) fn next(&mut self, now: Instant, stats: &mut FeedStats) -> Option<Object> {
        self.forget(now, stats);
        let mut at = 0;
        while let Some(object) = self.waiting.get(at) {
            let sequences = self.sequences.entry(object.track).or_default();
            let place = sequences.place(object.first);
            if place == Ordering::Greater {
                // Its catalog follows.
                at += 1;
                continue;
            }
            let object = self.waiting.remove(at)?;
            self.bytes -= object.payload.len();
            if place == Ordering::Equal {
                return Some(object);
            }
            stats.stale += 1;
        }
        None
    }

    /// Returns when the oldest object has waited too long.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let oldest = self.waiting.front()?;
        Some(oldest.arrived + PATIENCE)
    }

    /// Drops the objects that have waited too long.
    pub(super) fn forget(&mut self, now: Instant, stats: &mut FeedStats) {
        while self.poll_timeout().is_some_and(|due| due <= now) && self.drop_oldest() {
            stats.late += 1;
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let oldest = self.waiting.pop_front();
        self.bytes -= oldest.as_ref().map_or(0, |oldest| oldest.payload.len());
        oldest.is_some()
    }
}
