use crate::arrivals::Arrival;
use hawser_units::{FlowId, Instant, MAX_PATHS, PathId, PathSet};
use std::collections::VecDeque;

/// A packet of which some copies arrived and others may still come.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) flow: FlowId,
    pub(crate) sequence: u64,
    /// The paths it was sent over.
    pub(crate) paths: PathSet,
    /// The time in the first record of it that was handled.
    pub(crate) since: Instant,
    /// The paths whose copies arrived.
    pub(crate) arrived: PathSet,
    /// When they did, for the paths in `arrived`.
    pub(crate) at: [Instant; MAX_PATHS],
    /// The path whose copy the window took for the first, once its record was handled.
    pub(crate) first: Option<PathId>,
}

impl Packet {
    pub(crate) fn new(arrival: &Arrival) -> Self {
        let mut packet = Packet {
            flow: arrival.flow,
            sequence: arrival.sequence,
            paths: arrival.paths,
            since: arrival.at,
            arrived: PathSet::EMPTY,
            at: [Instant::MAX; MAX_PATHS],
            first: None,
        };
        packet.add(arrival);
        packet
    }

    pub(crate) fn add(&mut self, arrival: &Arrival) {
        // Two firsts are two copies that the window accepted on doubt; the earlier one was the first.
        if arrival.first && self.first.is_none_or(|first| arrival.at < self.at[first.index()]) {
            self.first = Some(arrival.path);
        }
        let at = &mut self.at[arrival.path.index()];
        *at = arrival.at.min(*at);
        self.arrived = self.arrived.with(arrival.path);
    }
}

/// The packets of all flows, in the order in which their first records came in.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    packets: VecDeque<Packet>,
    /// How many were taken out; wraps.
    taken: u32,
}

/// Where a packet is in the queue, as long as it is there; afterwards another packet or none has the position.
type Position = u32;

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(crate) fn front(&self) -> Option<&Packet> {
        self.packets.front()
    }

    pub(crate) fn push(&mut self, packet: Packet) -> Position {
        self.packets.push_back(packet);
        self.taken.wrapping_add(self.packets.len() as u32 - 1)
    }

    pub(crate) fn pop(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        self.taken = self.taken.wrapping_add(1);
        Some(packet)
    }

    fn get(&self, position: Position) -> Option<&Packet> {
        self.packets.get(position.wrapping_sub(self.taken) as usize)
    }

    fn get_mut(&mut self, position: Position) -> Option<&mut Packet> {
        self.packets.get_mut(position.wrapping_sub(self.taken) as usize)
    }
}

/// Finds the packets of one flow in the queue: a ring of positions, by sequence number.
#[derive(Debug, Default)]
pub(crate) struct Index {
    positions: Vec<Position>,
}

impl Index {
    const SMALLEST: usize = 64;

    /// 1.3 s of 100,000 packets a second, twice what the elimination window remembers.
    pub(crate) const LARGEST: usize = 1 << 17;

    pub(crate) fn find<'a>(
        &self,
        queue: &'a mut Queue,
        flow: FlowId,
        sequence: u64,
    ) -> Option<&'a mut Packet> {
        let position = *self.positions.get(self.slot(sequence))?;
        queue.get_mut(position).filter(|packet| packet.flow == flow && packet.sequence == sequence)
    }

    /// Makes a packet of the queue findable; false when another one no longer is, because the two are too far apart.
    pub(crate) fn insert(&mut self, queue: &Queue, flow: FlowId, sequence: u64, position: Position) -> bool {
        let mut alone = true;
        if self.positions.is_empty() {
            self.positions.resize(Self::SMALLEST, position);
        }
        while let Some(other) = self.occupant(queue, flow, self.slot(sequence))
            && other != sequence
        {
            let distance = sequence.wrapping_sub(other).min(other.wrapping_sub(sequence));
            if distance >= Self::LARGEST as u64 {
                alone = false;
                break;
            }
            self.grow(queue, flow);
        }
        let slot = self.slot(sequence);
        self.positions[slot] = position;
        alone
    }

    /// The length is a power of two, or zero: then the slot is beyond the end, whatever the number.
    fn slot(&self, sequence: u64) -> usize {
        sequence as usize & self.positions.len().wrapping_sub(1)
    }

    /// The packet that is found by this slot. Positions of packets that left the queue remain until they are replaced.
    fn occupant(&self, queue: &Queue, flow: FlowId, slot: usize) -> Option<u64> {
        let packet = queue.get(self.positions[slot])?;
        (packet.flow == flow && self.slot(packet.sequence) == slot).then_some(packet.sequence)
    }

    fn grow(&mut self, queue: &Queue, flow: FlowId) {
        let found = (0..self.positions.len())
            .filter_map(|slot| Some((self.occupant(queue, flow, slot)?, self.positions[slot])))
            .collect::<Vec<_>>();
        self.positions.resize(self.positions.len() * 2, 0);
        for (sequence, position) in found {
            let slot = self.slot(sequence);
            self.positions[slot] = position;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Flow {
        id: FlowId,
        index: Index,
    }

    impl Flow {
        fn new(id: u16) -> Self {
            Flow { id: FlowId::try_from(id).unwrap(), index: Index::default() }
        }

        fn insert(&mut self, queue: &mut Queue, sequence: u64) -> bool {
            let position = queue.push(Packet {
                flow: self.id,
                sequence,
                paths: PathSet::EMPTY,
                since: Instant::ZERO,
                arrived: PathSet::EMPTY,
                at: [Instant::ZERO; MAX_PATHS],
                first: None,
            });
            self.index.insert(queue, self.id, sequence, position)
        }

        fn finds(&self, queue: &mut Queue, sequence: u64) -> bool {
            self.index.find(queue, self.id, sequence).is_some()
        }
    }

    #[test]
    fn packets_are_found_until_they_are_taken_out() {
        let mut queue = Queue { taken: u32::MAX - 1000, ..Queue::default() };
        let mut flows = [Flow::new(0), Flow::new(1)];
        let start = u64::MAX - 500;
        for n in 0..1000 {
            for flow in &mut flows {
                assert!(flow.insert(&mut queue, start.wrapping_add(n)));
            }
        }
        for n in 0..1000 {
            for flow in &flows {
                assert!(flow.finds(&mut queue, start.wrapping_add(n)));
                queue.pop();
                assert!(!flow.finds(&mut queue, start.wrapping_add(n)));
            }
        }
        assert_eq!(flows[0].index.positions.len(), 1024);
    }

    #[test]
    fn an_index_does_not_grow_without_end() {
        let mut queue = Queue::default();
        let mut flow = Flow::new(0);
        let last = Index::LARGEST as u64 - 1;
        assert!(flow.insert(&mut queue, 0));
        assert!(flow.insert(&mut queue, last));
        assert!(flow.finds(&mut queue, 0) && flow.finds(&mut queue, last));

        assert!(!flow.insert(&mut queue, last + 1));
        assert!(!flow.finds(&mut queue, 0) && flow.finds(&mut queue, last + 1));
    }
}
