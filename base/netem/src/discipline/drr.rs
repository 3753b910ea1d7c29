use super::Waiting;
use super::fifo::Fifo;
use hawser_units::ByteSize;
use std::collections::{BTreeMap, VecDeque};

/// Fair queueing by deficit round robin, with a queue for each flow (Shreedhar and Varghese 1995).
#[derive(Debug, Clone)]
pub(crate) struct Drr<P> {
    quantum: i64,
    flow_packets: u64,
    flows: BTreeMap<u64, Flow<P>>,
    /// The flows with packets, in the order of their turns.
    round: VecDeque<u64>,
    packets: u64,
    bytes: ByteSize,
}

#[derive(Debug, Clone)]
struct Flow<P> {
    queue: Fifo<P>,
    /// The bytes that the flow may send before its turn ends.
    credit: i64,
}

impl<P> Drr<P> {
    /// Creates queues that send `quantum` bytes per round and hold `flow_packets` packets each.
    pub(crate) fn new(quantum: ByteSize, flow_packets: u32) -> Self {
        Drr {
            quantum: signed(quantum).max(1),
            flow_packets: flow_packets.into(),
            flows: BTreeMap::new(),
            round: VecDeque::new(),
            packets: 0,
            bytes: ByteSize(0),
        }
    }

    /// Returns `false` if the queue of the packet's flow is full.
    pub(crate) fn push(&mut self, packet: Waiting<P>) -> bool {
        let flow = self.flows.entry(packet.flow).or_insert_with(|| {
            self.round.push_back(packet.flow);
            Flow {
                queue: Fifo::default(),
                credit: self.quantum,
            }
        });
        let fits = flow.queue.packets() < self.flow_packets;
        if fits {
            self.packets += 1;
            self.bytes += packet.size;
            flow.queue.push(packet);
        }
        fits
    }

    pub(crate) fn pop(&mut self) -> Option<Waiting<P>> {
        loop {
            let key = *self.round.front()?;
            let flow = self.flows.get_mut(&key)?;
            if flow.credit <= 0 {
                flow.credit += self.quantum;
                self.round.rotate_left(1);
                continue;
            }
            let packet = flow.queue.pop()?;
            flow.credit -= signed(packet.size);
            self.account(&packet);
            return Some(packet);
        }
    }

    /// Takes the last packet of the longest queue.
    pub(crate) fn shed(&mut self) -> Option<Waiting<P>> {
        let (_, longest) = self
            .flows
            .iter_mut()
            .max_by_key(|(_, flow)| flow.queue.bytes())?;
        let packet = longest.queue.pop_last()?;
        self.account(&packet);
        Some(packet)
    }

    /// Returns the bytes of the longest queue.
    pub(crate) fn longest(&self) -> ByteSize {
        let bytes = self.flows.values().map(|flow| flow.queue.bytes());
        bytes.max().unwrap_or_default()
    }

    pub(crate) fn packets(&self) -> u64 {
        self.packets
    }

    pub(crate) fn bytes(&self) -> ByteSize {
        self.bytes
    }

    /// Counts a packet that was taken, and forgets its flow if it was the last one.
    fn account(&mut self, packet: &Waiting<P>) {
        self.packets -= 1;
        self.bytes = self.bytes - packet.size;
        let is_empty = |flow: &Flow<P>| flow.queue.is_empty();
        if self.flows.get(&packet.flow).is_some_and(is_empty) {
            self.flows.remove(&packet.flow);
            self.round.retain(|flow| *flow != packet.flow);
        }
    }
}

fn signed(size: ByteSize) -> i64 {
    i64::try_from(size.0).unwrap_or(i64::MAX)
}
