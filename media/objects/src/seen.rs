use crate::refusal::Refusal;
use hawser_packets::media::{ObjectId, PacketId};
use std::collections::BTreeMap;

/// The packets of the newest objects of a track, each of which is accepted once.
#[derive(Debug)]
pub(crate) struct SeenPackets {
    /// The number of objects that are remembered.
    objects: usize,
    seen: BTreeMap<ObjectId, Vec<u64>>,
    /// The highest object that was forgotten. Neither it nor a lower one is accepted.
    forgotten: Option<ObjectId>,
}

impl SeenPackets {
    pub(crate) const fn new(objects: usize) -> Self {
        SeenPackets {
            objects,
            seen: BTreeMap::new(),
            forgotten: None,
        }
    }

    /// Accepts a packet, unless it was or may have been accepted before.
    pub(crate) fn add(&mut self, id: PacketId) -> Result<(), Refusal> {
        if self
            .forgotten
            .is_some_and(|forgotten| id.object <= forgotten)
        {
            return Err(Refusal::TooOld);
        }
        let packets = self.seen.entry(id.object).or_default();
        let (word, bit) = (usize::from(id.index / 64), 1 << (id.index % 64));
        if word >= packets.len() {
            packets.resize(word + 1, 0);
        }
        if packets[word] & bit != 0 {
            return Err(Refusal::Duplicate);
        }
        packets[word] |= bit;
        if self.seen.len() > self.objects {
            self.forgotten = self.seen.pop_first().map(|(object, _)| object);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn id(group: u32, index: u16) -> PacketId {
        let object = ObjectId {
            alias: 1,
            group,
            object: 0,
            layer: 0,
        };
        PacketId { object, index }
    }

    #[test]
    fn each_packet_is_taken_once_in_any_order() {
        let mut seen = SeenPackets::new(4);
        for packet in [id(1, 200), id(0, 3), id(1, 0)] {
            assert_eq!(seen.add(packet), Ok(()));
        }
        assert_eq!(seen.add(id(1, 200)), Err(Refusal::Duplicate));
    }

    #[test]
    fn objects_below_those_that_are_remembered_are_too_old() {
        let mut seen = SeenPackets::new(2);
        for group in 0..5 {
            assert_eq!(seen.add(id(group, 0)), Ok(()));
        }
        assert_eq!(seen.add(id(2, 1)), Err(Refusal::TooOld));
        assert_eq!(seen.add(id(3, 1)), Ok(()));
        assert_eq!(seen.seen.len(), 2);
    }

    proptest! {
        #[test]
        fn no_packet_is_taken_twice_and_none_refused_without_reason(
            objects in 1..5usize,
            packets in vec(
                (0..12u32, prop_oneof![4 => 0..4u16, 1 => any::<u16>()]),
                0..200,
            ),
        ) {
            let mut seen = SeenPackets::new(objects);
            let mut taken = BTreeSet::new();
            for (group, index) in packets {
                let id = id(group, index);
                let above: BTreeSet<ObjectId> = taken
                    .iter()
                    .map(|taken: &PacketId| taken.object)
                    .filter(|object| *object > id.object)
                    .collect();
                match seen.add(id) {
                    Ok(()) => prop_assert!(taken.insert(id), "twice"),
                    Err(Refusal::Duplicate) => prop_assert!(taken.contains(&id)),
                    Err(refusal) => {
                        prop_assert_eq!(refusal, Refusal::TooOld);
                        prop_assert!(above.len() >= objects);
                    }
                }
                prop_assert!(seen.seen.len() <= objects);
                let words = seen.seen.values().map(Vec::len).max();
                prop_assert!(words <= Some(usize::from(u16::MAX) / 64 + 1));
            }
        }
    }
}
