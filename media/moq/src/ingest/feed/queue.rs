//! Queued objects. They wait for the session of the relay, for the catalog of their publisher, or for room.

use super::FeedStats;
use bytes::Bytes;
use hawser_packets::media::{DEFAULT_DATAGRAM, Header, Hop, MediaTime};
use hawser_packets::moq::{self, PayloadError};
use hawser_packets::session::Announcement;
use hawser_units::{ALLOCATION, Instant};
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
    /// The object belongs to another track or layer than the one in which it arrived.
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

    /// Returns the bytes that the object takes, with a place in a queue that may be half empty.
    fn size(&self) -> usize {
        2 * size_of::<Object>() + self.payload.len() + ALLOCATION
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
    /// That of group 0 of the publisher, once an object of it has arrived.
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

/// The queued objects, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Object>,
    bytes: usize,
    sequences: BTreeMap<(u32, u8), Sequences>,
}

/// The maximum number of queued bytes, with those of the queue itself.
const MAX_BYTES: usize = 16 << 20;

/// The time for which an object waits.
const MAX_WAIT: Duration = Duration::from_millis(250);

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

    /// Accepts any numbers: another session with the source may have other ones.
    pub(super) fn forget_sequences(&mut self) {
        self.sequences.clear();
    }

    pub(super) fn add(&mut self, object: Object, stats: &mut FeedStats) {
        self.bytes += object.size();
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
            self.bytes -= object.size();
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
        Some(oldest.arrived + MAX_WAIT)
    }

    /// Drops the objects that have waited too long.
    pub(super) fn forget(&mut self, now: Instant, stats: &mut FeedStats) {
        while self.poll_timeout().is_some_and(|due| due <= now) && self.drop_oldest() {
            stats.late += 1;
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let oldest = self.waiting.pop_front();
        self.bytes -= oldest.as_ref().map_or(0, Object::size);
        oldest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_objects::{ObjectInfo, Packetiser, PacketiserConfig, TrackSecret};
    use hawser_packets::media::{Flags, ObjectId, Packet};
    use hawser_packets::session::Track;
    use proptest::prelude::*;

    const TRACK: (u32, u8) = (7, 1);

    fn hop() -> Hop {
        TrackSecret::new([1; 32]).access().hop(&[2; 16], 0)
    }

    fn payload(group: u32, length: usize) -> Vec<u8> {
        let config = PacketiserConfig::new(TRACK.0, [3; 16]);
        let info = ObjectInfo {
            id: ObjectId {
                alias: TRACK.0,
                group,
                object: 0,
                layer: TRACK.1,
            },
            priority: 0,
            deadline: Instant::ZERO + Duration::from_secs(9),
            flags: Flags::default(),
        };
        let mut packetiser = Packetiser::new(config, TrackSecret::new([1; 32]), hop());
        let sealed = packetiser.packetise(info, &vec![5; length]).unwrap();
        let datagrams = sealed.packets.iter().map(|packet| &packet.datagram[..]);
        moq::emit(datagrams).unwrap()
    }

    fn object(now: Instant, first: u64, group: u32) -> Object {
        let payload = payload(group, 10).into();
        Object::new(now, TRACK, first + u64::from(group), payload).unwrap()
    }

    fn announcement(started_unix_millis: u64) -> Announcement {
        Announcement {
            incarnation: [3; 16],
            started_unix_millis,
            tracks: vec![Track {
                alias: TRACK.0,
                codec: 1,
                layers: 2,
                name: String::new(),
                parameters: Vec::new(),
            }],
        }
    }

    #[test]
    fn only_objects_of_an_earlier_publisher_are_dropped() {
        let now = Instant::ZERO;
        let (mut queue, mut stats) = (Queue::default(), FeedStats::default());
        queue.begin(&announcement(100));
        queue.add(object(now, 100, 5), &mut stats);
        assert_eq!(queue.next(now, &mut stats).unwrap().first, 100);
        queue.add(object(now, 200, 0), &mut stats);
        queue.add(object(now, 100, 6), &mut stats);
        assert_eq!(queue.next(now, &mut stats).unwrap().first, 100);
        assert!(
            queue.next(now, &mut stats).is_none(),
            "its catalog has not come"
        );
        queue.begin(&announcement(200));
        queue.add(object(now, 100, 7), &mut stats);
        assert_eq!(queue.next(now, &mut stats).unwrap().first, 200);
        assert!(queue.next(now, &mut stats).is_none());
        assert_eq!(stats.stale, 1);
        // Another session with the source may have other numbers.
        queue.forget_sequences();
        queue.add(object(now, 50, 8), &mut stats);
        assert_eq!(queue.next(now, &mut stats).unwrap().first, 50);
    }

    #[test]
    fn waiting_objects_are_bounded_in_time_and_bytes() {
        let now = Instant::ZERO;
        let (mut queue, mut stats) = (Queue::default(), FeedStats::default());
        queue.add(object(now, 1, 0), &mut stats);
        assert_eq!(queue.poll_timeout(), Some(now + MAX_WAIT));
        queue.forget(now + MAX_WAIT, &mut stats);
        assert_eq!((stats.late, queue.bytes), (1, 0));
        let payload = Bytes::from(payload(1, 4 << 20));
        for _ in 0..5 {
            let object = Object::new(now, TRACK, 9, payload.clone()).unwrap();
            queue.add(object, &mut stats);
        }
        assert!(queue.bytes <= MAX_BYTES, "{}", queue.bytes);
        assert_eq!(stats.full, 2);
    }

    proptest! {
        #[test]
        fn a_changed_payload_is_refused_or_makes_packets_of_its_track(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            length in any::<prop::sample::Index>(),
            sequence in any::<u64>(),
        ) {
            let mut payload = payload(4, 3000);
            for (at, byte) in changes {
                let at = at.index(payload.len());
                payload[at] = byte;
            }
            payload.truncate(payload.len() - length.index(200));
            if let Ok(object) = Object::new(Instant::ZERO, TRACK, sequence, payload.into()) {
                let hop = hop();
                let datagrams: Vec<_> = object.datagrams(&hop).collect();
                for (index, datagram) in datagrams.iter().enumerate() {
                    prop_assert!(datagram.len() <= DEFAULT_DATAGRAM);
                    let id = Packet::parse(datagram).unwrap().header.id;
                    prop_assert_eq!((id.object.alias, id.object.layer), TRACK);
                    prop_assert_eq!(usize::from(id.index), index);
                    prop_assert!(sequence >= id.object.group.into());
                }
            }
        }
    }
}
