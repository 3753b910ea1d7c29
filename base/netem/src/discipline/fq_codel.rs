use super::Waiting;
use super::codel::Codel;
use super::fifo::Fifo;
use crate::config;
use crate::random::{Draws, Stream};
use hawser_units::{ByteSize, Instant};
use std::collections::VecDeque;

/// The queues of FQ-CoDel (RFC 8290, section 4).
#[derive(Debug, Clone)]
pub(crate) struct FqCodel<P> {
    quantum: i64,
    perturbation: u64,
    flows: Vec<Flow<P>>,
    /// The queues that became active since their last turn, by index.
    new: VecDeque<usize>,
    /// The other active queues.
    old: VecDeque<usize>,
    packets: u64,
    bytes: ByteSize,
}

#[derive(Debug, Clone)]
struct Flow<P> {
    queue: Fifo<P>,
    codel: Codel,
    /// The bytes that the queue may send before its turn ends.
    credit: i64,
    is_active: bool,
}

impl<P> FqCodel<P> {
    pub(crate) fn new(config: &config::FqCodel, seed: u64) -> Self {
        let flow = || Flow {
            queue: Fifo::default(),
            codel: Codel::new(config.codel()),
            credit: 0,
            is_active: false,
        };
        FqCodel {
            quantum: signed(config.quantum).max(1),
            perturbation: Draws::new(seed, Stream::Discipline, 0).draw_bits(),
            flows: (0..config.flows.max(1)).map(|_| flow()).collect(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            packets: 0,
            bytes: ByteSize(0),
        }
    }

    pub(crate) fn push(&mut self, packet: Waiting<P>) {
        let index = self.index(packet.flow);
        let flow = &mut self.flows[index];
        self.packets += 1;
        self.bytes += packet.size;
        flow.queue.push(packet);
        if !flow.is_active {
            flow.is_active = true;
            flow.credit = self.quantum;
            self.new.push_back(index);
        }
    }

    pub(crate) fn pop(&mut self, now: Instant, dropped: &mut u64) -> Option<Waiting<P>> {
        loop {
            let is_new = !self.new.is_empty();
            let index = *self.new.front().or(self.old.front())?;
            let flow = &mut self.flows[index];
            if flow.credit <= 0 {
                flow.credit += self.quantum;
                self.end_turn(is_new, true);
                continue;
            }
            let packet = self.take(index, now, dropped);
            if packet.is_some() {
                return packet;
            }
            // An empty queue keeps its place among the others for one round, so that a flow cannot
            // become new again at once.
            self.flows[index].is_active = is_new;
            self.end_turn(is_new, is_new);
        }
    }

    /// Takes the first packet of the queue with the most bytes (section 4.1).
    pub(crate) fn shed(&mut self) -> Option<Waiting<P>> {
        let longest = self
            .flows
            .iter_mut()
            .max_by_key(|flow| flow.queue.bytes())?;
        let packet = longest.queue.pop()?;
        self.packets -= 1;
        self.bytes = self.bytes - packet.size;
        Some(packet)
    }

    pub(crate) fn packets(&self) -> u64 {
        self.packets
    }

    pub(crate) fn bytes(&self) -> ByteSize {
        self.bytes
    }

    fn take(&mut self, index: usize, now: Instant, dropped: &mut u64) -> Option<Waiting<P>> {
        let flow = &mut self.flows[index];
        let (packets, bytes) = (flow.queue.packets(), flow.queue.bytes());
        let packet = flow.codel.pop(now, &mut flow.queue, dropped);
        flow.credit -= packet.as_ref().map_or(0, |packet| signed(packet.size));
        self.packets -= packets - flow.queue.packets();
        self.bytes = self.bytes - (bytes - flow.queue.bytes());
        packet
    }

    fn end_turn(&mut self, is_new: bool, stays: bool) {
        let list = if is_new { &mut self.new } else { &mut self.old };
        let index = list.pop_front().filter(|_| stays);
        self.old.extend(index);
    }

    fn index(&self, flow: u64) -> usize {
        (mixed(flow ^ self.perturbation) % self.flows.len() as u64) as usize
    }
}

/// Returns a number whose bits all depend on all bits of `number` (the finaliser of SplitMix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

fn signed(size: ByteSize) -> i64 {
    i64::try_from(size.0).unwrap_or(i64::MAX)
}
