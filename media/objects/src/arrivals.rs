use hawser_packets::feedback::{Age, Arrival, Block};
use hawser_packets::media::{ObjectId, PacketId};
use hawser_units::{Ecn, Instant};
use std::collections::{BTreeMap, VecDeque};

/// The maximum number of blocks of a report.
const MAX_BLOCKS: usize = u8::MAX as usize;

/// The length of a block of one packet in bytes.
const NEW_BLOCK: usize = Block::LEN + Block::PACKET;

/// The arrivals that are to be reported. Each is reported twice where there is room, so that the
/// loss of one report loses nothing.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    unreported: VecDeque<Seen>,
    reported_once: VecDeque<Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    packet: PacketId,
    at: Instant,
    ecn: Ecn,
}

/// The blocks of a report while they are filled.
struct Filling {
    now: Instant,
    space: usize,
    count: usize,
    blocks: BTreeMap<ObjectId, BTreeMap<u16, Vec<Option<Arrival>>>>,
}

impl Arrivals {
    /// Adds an arrival. If there are more than `limit`, the oldest is forgotten.
    pub(crate) fn add(&mut self, at: Instant, packet: PacketId, ecn: Ecn, limit: usize) {
        self.unreported.push_back(Seen { packet, at, ecn });
        if self.unreported.len() > limit {
            self.unreported.pop_front();
        }
    }

    /// Returns the number of packets that no report has named.
    pub(crate) fn unreported(&self) -> usize {
        self.unreported.len()
    }

    /// Returns whether every packet was reported as often as it should be.
    pub(crate) fn is_empty(&self) -> bool {
        self.unreported.is_empty() && self.reported_once.is_empty()
    }

    /// Returns blocks of at most `space` bytes: first of the oldest packets that no report has named,
    /// then of those that only one has.
    pub(crate) fn report(&mut self, now: Instant, space: usize) -> Vec<Block> {
        let mut filling = Filling {
            now,
            space,
            count: 0,
            blocks: BTreeMap::new(),
        };
        let new = filling.take_from(&mut self.unreported);
        filling.take_from(&mut self.reported_once);
        // Packets that did not fit after the new ones are not repeated: the next report has new ones again.
        self.reported_once.clear();
        self.reported_once.extend(new);
        filling.into_blocks()
    }
}

impl Filling {
    /// Takes packets from the front of a queue as long as they fit.
    fn take_from(&mut self, queue: &mut VecDeque<Seen>) -> Vec<Seen> {
        let mut taken = Vec::new();
        while let Some(seen) = queue.front() {
            if !self.add(seen) {
                break;
            }
            taken.extend(queue.pop_front());
        }
        taken
    }

    /// Returns whether the packet fits.
    fn add(&mut self, seen: &Seen) -> bool {
        let PacketId { object, index } = seen.packet;
        let arrival = seen.arrival(self.now);
        let blocks = self.blocks.entry(object).or_default();
        let below = blocks.range_mut(..=index).next_back();
        let near = below.filter(|(base, packets)| growth(index - **base, packets) <= NEW_BLOCK);
        let cost = match &near {
            Some((base, packets)) => growth(index - **base, packets),
            None => NEW_BLOCK,
        };
        if cost > self.space || (near.is_none() && self.count == MAX_BLOCKS) {
            return false;
        }
        self.space -= cost;
        match near {
            Some((base, packets)) => put(packets, index - base, arrival),
            None => {
                self.count += 1;
                blocks.insert(index, vec![Some(arrival)]);
            }
        }
        true
    }

    fn into_blocks(self) -> Vec<Block> {
        let blocks = self.blocks.into_iter();
        let blocks = blocks.flat_map(|(object, blocks)| {
            let block = move |(base, packets)| Block {
                object,
                base,
                packets,
            };
            blocks.into_iter().map(block)
        });
        blocks.collect()
    }
}

impl Seen {
    fn arrival(&self, now: Instant) -> Arrival {
        Arrival {
            ecn: self.ecn,
            age: Age::of(now.saturating_since(self.at)),
        }
    }
}

/// Returns the bytes that a block takes more with a packet at this place.
fn growth(at: u16, packets: &[Option<Arrival>]) -> usize {
    (usize::from(at) + 1).saturating_sub(packets.len()) * Block::PACKET
}

fn put(packets: &mut Vec<Option<Arrival>>, at: u16, arrival: Arrival) {
    let at = usize::from(at);
    packets.resize(packets.len().max(at + 1), None);
    packets[at] = Some(arrival);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn packet(object: u32, index: u16) -> PacketId {
        let object = ObjectId {
            alias: 0,
            group: 0,
            object,
            layer: 0,
        };
        PacketId { object, index }
    }

    fn named(blocks: &[Block]) -> Vec<PacketId> {
        let packets = blocks.iter().flat_map(|block| {
            let indices = (block.base..=u16::MAX).zip(&block.packets);
            let seen = indices.filter(|(_, packet)| packet.is_some());
            seen.map(|(index, _)| packet(block.object.object, index))
        });
        packets.collect()
    }

    fn length(blocks: &[Block]) -> usize {
        let lengths = blocks.iter();
        lengths
            .map(|b| Block::LEN + b.packets.len() * Block::PACKET)
            .sum()
    }

    proptest! {
        #[test]
        fn every_arrival_is_reported_and_no_other(
            arrived in proptest::sample::subsequence((0..1000u16).map(|n| (u32::from(n % 5), n / 5)).collect::<Vec<_>>(), 0..300)
                .prop_shuffle(),
            space in 20..1200usize,
        ) {
            let mut arrivals = Arrivals::default();
            for (object, index) in &arrived {
                arrivals.add(Instant::ZERO, packet(*object, *index), Ecn::Ect1, usize::MAX);
            }
            let mut reported = BTreeSet::new();
            while arrivals.unreported() > 0 {
                let blocks = arrivals.report(Instant::ZERO, space);
                prop_assert!(length(&blocks) <= space);
                let named = named(&blocks);
                prop_assert!(!named.is_empty());
                reported.extend(named);
            }
            let arrived = arrived.into_iter().map(|(object, index)| packet(object, index));
            prop_assert_eq!(reported, arrived.collect());
        }
    }

    #[test]
    fn a_packet_is_reported_twice() {
        let mut arrivals = Arrivals::default();
        arrivals.add(Instant::ZERO, packet(0, 0), Ecn::Ce, 10);
        let first = arrivals.report(Instant::ZERO, 1000);
        arrivals.add(Instant::ZERO, packet(0, 1), Ecn::Ce, 10);
        let second = arrivals.report(Instant::ZERO, 1000);
        let third = arrivals.report(Instant::ZERO, 1000);
        assert_eq!(named(&first), [packet(0, 0)]);
        assert_eq!(named(&second), [packet(0, 0), packet(0, 1)]);
        assert_eq!(named(&third), [packet(0, 1)]);
        assert!(arrivals.is_empty() && arrivals.report(Instant::ZERO, 1000).is_empty());
    }

    #[test]
    fn the_oldest_arrivals_are_forgotten_when_there_are_too_many() {
        let mut arrivals = Arrivals::default();
        for index in 0..5 {
            arrivals.add(Instant::ZERO, packet(0, index), Ecn::Ect1, 2);
        }
        let blocks = arrivals.report(Instant::ZERO, 1000);
        assert_eq!(named(&blocks), [packet(0, 3), packet(0, 4)]);
    }

    #[test]
    fn a_short_gap_does_not_end_a_block() {
        let mut arrivals = Arrivals::default();
        for index in [0, 9, 100] {
            arrivals.add(Instant::ZERO, packet(0, index), Ecn::Ect1, 10);
        }
        let blocks = arrivals.report(Instant::ZERO, 1000);
        let shape: Vec<_> = blocks.iter().map(|b| (b.base, b.packets.len())).collect();
        assert_eq!(shape, [(0, 10), (100, 1)]);
    }
}
