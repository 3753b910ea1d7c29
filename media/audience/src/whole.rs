use crate::broadcast::Broadcast;
use crate::cache::CachedPacket;
use hawser_packets::media::{Header, ObjectId};
use hawser_units::Instant;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Finds the objects of which all packets have arrived, for receivers that take whole objects only.
#[derive(Debug, Default)]
pub struct WholeObjects {
    /// The number of the next packet of the cache.
    next: u64,
    /// The objects of which packets are missing, with the arrival of the first one.
    begun: BTreeMap<ObjectId, Instant>,
    incomplete: u64,
}

/// An object with all of its packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeObject {
    /// The header of the last packet, which has the properties of the object.
    pub header: Header,
    /// The arrival of the last packet that was missing.
    pub arrived: Instant,
    /// The UDP payloads in ascending order, with the tags of their sender.
    pub datagrams: Vec<Arc<[u8]>>,
}

/// The maximum number of incomplete objects.
const MAX_BEGUN: usize = 1024;

/// The time after its first packet at which an object is given up: longer than publishers send lost
/// packets again.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);

impl WholeObjects {
    /// Returns the objects that have become whole since the last call, in the order in which they did. To be
    /// called before the cache forgets packets: after each few datagrams of the sender upstream.
    pub fn take(&mut self, broadcast: &Broadcast) -> Vec<WholeObject> {
        let cache = broadcast.cache();
        if self.next > cache.next() {
            // The publisher has restarted, and the cache is new.
            self.next = 0;
            self.begun.clear();
        }
        let numbers = self.next.max(cache.oldest())..cache.next();
        self.next = cache.next();
        let mut whole = Vec::new();
        for number in numbers {
            let Some(packet) = cache.get(number) else {
                continue;
            };
            let id = packet.header.id.object;
            let others = || cache.object(&id).into_iter().flat_map(BTreeMap::values);
            if others().min() == Some(&number) {
                self.begin(id, packet.arrived);
            }
            if others().max() == Some(&number)
                && let Some(packets) = broadcast.whole_object(&id)
                && self.begun.remove(&id).is_some()
            {
                whole.extend(WholeObject::new(packet.arrived, &packets));
            }
        }
        whole
    }

    /// Returns the number of objects that were given up.
    pub const fn incomplete(&self) -> u64 {
        self.incomplete
    }

    fn begin(&mut self, id: ObjectId, now: Instant) {
        let before = self.begun.len();
        self.begun
            .retain(|_, began| now.saturating_since(*began) < GIVEN_UP_AFTER);
        self.incomplete += (before - self.begun.len()) as u64;
        self.begun.insert(id, now);
        if self.begun.len() > MAX_BEGUN {
            self.begun.pop_first();
            self.incomplete += 1;
        }
    }
}

impl WholeObject {
    fn new(arrived: Instant, packets: &[&CachedPacket]) -> Option<Self> {
        Some(WholeObject {
            header: packets.last()?.header,
            arrived,
            datagrams: packets.iter().map(|p| Arc::clone(&p.datagram)).collect(),
        })
    }
}
