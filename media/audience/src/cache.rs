use hawser_objects::RelayedPacket;
use hawser_packets::media::{Header, ObjectId, PacketId};
use hawser_units::{ALLOCATION, ByteSize, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// The bounds of a [`Cache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// The time for which packets are kept.
    pub age: Duration,
    /// The maximum number of bytes of packets, each with 200 bytes more, and 300 for each object.
    pub bytes: usize,
}

/// The newest packets of a broadcast, in the order of their arrival and by object.
///
/// Each has a number, by which the rate controls of all subscribers know it.
#[derive(Debug)]
pub struct Cache {
    config: CacheConfig,
    /// The number of the oldest packet that is kept.
    oldest: u64,
    packets: VecDeque<CachedPacket>,
    objects: BTreeMap<ObjectId, BTreeMap<u16, u64>>,
    bytes: usize,
}

/// A packet that is kept.
#[derive(Debug, Clone)]
pub struct CachedPacket {
    /// The header.
    pub header: Header,
    /// The arrival at the relay, at which it also leaves for the subscribers that are served at once.
    pub arrived: Instant,
    /// The UDP payload, with the tag of its sender.
    pub datagram: Arc<[u8]>,
}

/// The bytes that a packet takes besides its datagram: twice in the queue, which may be half empty, the counts
/// and the allocation of the datagram, and its place in the object.
const OVERHEAD: usize = 200;
const _: () =
    assert!(2 * size_of::<CachedPacket>() + 2 * size_of::<usize>() + ALLOCATION + 20 <= OVERHEAD);

/// The bytes that an object takes besides its packets: a node of a map of its own, and a place in one.
const OBJECT: usize = 300;

impl Default for CacheConfig {
    /// Two seconds of 90 Mb/s.
    fn default() -> Self {
        CacheConfig {
            age: Duration::from_secs(2),
            bytes: 32 << 20,
        }
    }
}

impl Cache {
    /// Creates an empty cache.
    pub const fn new(config: CacheConfig) -> Self {
        Cache {
            config,
            oldest: 0,
            packets: VecDeque::new(),
            objects: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Adds a packet that the cache does not have. Returns its number, which rises with each one.
    pub fn add(&mut self, now: Instant, packet: RelayedPacket) -> u64 {
        let RelayedPacket { header, datagram } = packet;
        let number = self.oldest + self.packets.len() as u64;
        let object = self.objects.entry(header.id.object).or_default();
        if object.is_empty() {
            self.bytes += OBJECT;
        }
        object.insert(header.id.index, number);
        self.bytes += datagram.len() + OVERHEAD;
        self.packets.push_back(CachedPacket {
            header,
            arrived: now,
            datagram,
        });
        self.forget(now);
        number
    }

    /// Removes packets that are too old or exceed the maximum size.
    pub fn forget(&mut self, now: Instant) {
        while let Some(oldest) = self.packets.front() {
            let is_old = now.saturating_since(oldest.arrived) > self.config.age;
            if !is_old && self.bytes <= self.config.bytes {
                return;
            }
            let PacketId { object, index } = oldest.header.id;
            self.bytes -= oldest.datagram.len() + OVERHEAD;
            if let Some(packets) = self.objects.get_mut(&object) {
                packets.remove(&index);
                if packets.is_empty() {
                    self.objects.remove(&object);
                    self.bytes -= OBJECT;
                }
            }
            self.packets.pop_front();
            self.oldest += 1;
        }
    }

    /// Returns the packet of a number.
    pub fn get(&self, number: u64) -> Option<&CachedPacket> {
        let at = number.checked_sub(self.oldest)?;
        self.packets.get(usize::try_from(at).ok()?)
    }

    /// Returns the number of a packet.
    pub fn find(&self, id: &PacketId) -> Option<u64> {
        self.objects.get(&id.object)?.get(&id.index).copied()
    }

    /// Returns the numbers of the packets of an object that arrived, by index.
    pub fn object(&self, id: &ObjectId) -> Option<&BTreeMap<u16, u64>> {
        self.objects.get(id)
    }

    /// Returns the objects in a range of which the cache has packets.
    pub fn objects(&self, range: RangeInclusive<ObjectId>) -> impl Iterator<Item = &ObjectId> {
        self.objects.range(range).map(|(id, _)| id)
    }

    /// Returns the number of the oldest packet that is kept.
    pub const fn oldest(&self) -> u64 {
        self.oldest
    }

    /// Returns the number that the next packet gets.
    pub fn next(&self) -> u64 {
        self.oldest + self.packets.len() as u64
    }

    /// Returns the bytes that are kept, as [`CacheConfig::bytes`] counts them.
    pub fn bytes(&self) -> ByteSize {
        ByteSize(self.bytes as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_packets::packet;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u32) -> Instant {
        Instant::ZERO + MS * millis
    }

    fn cache(bytes: usize) -> Cache {
        Cache::new(CacheConfig {
            age: MS * 100,
            bytes,
        })
    }

    #[test]
    fn packets_are_found_by_number_and_by_name() {
        let mut cache = cache(1 << 20);
        let first = packet(1, 0, 0, 500);
        let id = first.header.id;
        assert_eq!(cache.add(at(0), first), 0);
        assert_eq!(cache.add(at(1), packet(1, 1, 3, 500)), 1);
        assert_eq!((cache.find(&id), cache.next()), (Some(0), 2));
        assert_eq!(cache.get(1).unwrap().header.id.index, 3);
        assert_eq!(cache.object(&id.object).unwrap().len(), 1);
        assert!(cache.get(2).is_none());
    }

    #[test]
    fn what_is_too_old_is_forgotten() {
        let mut cache = cache(1 << 20);
        for index in 0..10 {
            cache.add(at(index * 20), packet(index, 0, 0, 500));
        }
        // Now it is 180 ms, and those from 80 ms on are kept.
        assert_eq!((cache.oldest(), cache.next()), (4, 10));
        let old = packet(0, 0, 0, 500).header.id;
        assert!(cache.find(&old).is_none() && cache.object(&old.object).is_none());
        cache.forget(at(1000));
        assert_eq!((cache.oldest(), cache.bytes()), (10, ByteSize(0)));
        assert_eq!(cache.add(at(1000), packet(11, 0, 0, 500)), 10);
    }

    #[test]
    fn no_more_bytes_are_kept_than_may_be() {
        let mut cache = cache(10_000);
        for index in 0..100 {
            cache.add(at(0), packet(index, 0, 0, 500));
            assert!(cache.bytes() <= ByteSize(10_000));
        }
        assert_eq!(
            cache.next() - cache.oldest(),
            10_000 / (500 + OVERHEAD + OBJECT) as u64
        );
    }
}
