use crate::hash::Seeded;
use crate::judged::JudgedPacket;
use crate::numbers::Numbers;
use crate::packet::Packet;
use crate::totals::FlowTotals;
use hawser_units::{FlowId, Instant, MAX_FLOWS, PathId, PathSet};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Packets that a tracker waits for at once: 2.6 s of 100,000 packets a second.
pub const MAX_PENDING: usize = 1 << 18;

/// One copy that arrived, as the kernel recorded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Instant,
    /// Of which flow.
    pub flow: FlowId,
    /// Over which path.
    pub path: PathId,
    /// The paths that the packet was sent over, as the copy itself says; without them none counts as missing.
    pub paths: PathSet,
    /// The packet's number in its flow, or whatever else its copies have in common with no other packet.
    pub sequence: u64,
    /// Of the sender's policy.
    pub epoch: u8,
    /// Whether the window took this copy for the first of its packet. False when it could not know (`Late`).
    pub first: bool,
    /// The sender's clock when it sent the packet, in microseconds, wraps.
    pub sent_micros: u32,
    /// Length of the inner packet.
    pub bytes: u16,
}

/// Counts what each path does for each flow, and hands on what became of each packet.
///
/// Within the deadline records may be handled in any order: each CPU of the kernel keeps its own.
/// Records that were lost look like copies that were, so the totals of a time in which the kernel's rings overflowed are
/// no evidence against a path; [`Tracker::handle_lost_records`] keeps such packets from being handed on.
#[derive(Debug)]
pub struct Tracker {
    deadline: Duration,
    flows: Vec<Option<Box<Flow>>>,
    pending: HashMap<Key, Packet, Seeded>,
    /// What is pending and the time in the first record of it, in the order in which these records were handled.
    order: VecDeque<(Instant, Key)>,
    /// Records from before this time may have been lost.
    unreliable_until: Option<Instant>,
    judged_early: u64,
}

type Key = (FlowId, u64);

#[derive(Debug, Default)]
struct Flow {
    totals: FlowTotals,
    numbers: Numbers,
}

impl Tracker {
    /// A copy is late, and its path was of no use for the packet, when it comes `deadline` after the first or later.
    pub fn new(deadline: Duration) -> Self {
        Tracker {
            deadline,
            flows: (0..MAX_FLOWS).map(|_| None).collect(),
            pending: HashMap::with_hasher(Seeded::new()),
            order: VecDeque::new(),
            unreliable_until: None,
            judged_early: 0,
        }
    }

    /// Takes in one record.
    pub fn handle_arrival(&mut self, arrival: &Arrival) {
        let flow = self.flows[arrival.flow.index()].get_or_insert_default();
        let totals = &mut flow.totals.paths[arrival.path.index()];
        totals.arrivals += 1;
        totals.bytes.0 += u64::from(arrival.bytes);

        let key = (arrival.flow, arrival.sequence);
        match self.pending.entry(key) {
            Entry::Occupied(mut packet) => {
                totals.repeated += u64::from(packet.get().arrived_over(arrival.path));
                packet.get_mut().add(arrival);
            }
            Entry::Vacant(place) => {
                place.insert(Packet::new(arrival));
                self.order.push_back((arrival.at, key));
                if self.order.len() > MAX_PENDING {
                    self.settle_oldest(None::<&mut fn(&JudgedPacket)>);
                    self.judged_early += 1;
                }
            }
        }
    }

    /// Records may have been lost in the kernel until `now`: packets that are pending may have had more copies.
    pub fn handle_lost_records(&mut self, now: Instant) {
        self.unreliable_until = Some(now);
    }

    /// When [`Tracker::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.order.front().map(|(since, _)| *since + self.deadline)
    }

    /// Judges the packets whose deadline has passed. Every record from before `now` must have been handled.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout_with(now, |_| ());
    }

    /// The same, and hands on what became of each packet, in the order in which they were sent. All wait for the deadline
    /// of the packet itself or of a later one: those that are complete before that would speak for their paths ahead of
    /// what speaks against them. A number of which no copy came is handed on as a gap, and not again should one come
    /// after all. Packets of which records may have been lost are not handed on.
    pub fn handle_timeout_with(&mut self, now: Instant, mut judged: impl FnMut(&JudgedPacket)) {
        while let Some((since, _)) = self.order.front()
            && *since + self.deadline <= now
        {
            let reliable = self.unreliable_until.is_none_or(|until| *since > until);
            self.settle_oldest(reliable.then_some(&mut judged));
        }
    }

    /// What happened to a flow so far, if it has had any arrival.
    pub fn flow(&self, flow: FlowId) -> Option<&FlowTotals> {
        self.flows[flow.index()].as_deref().map(|flow| &flow.totals)
    }

    /// Packets that were judged before their deadline because [`MAX_PENDING`] others were waiting. Copies of theirs that
    /// came afterwards count as late. They are not handed on.
    pub fn judged_early(&self) -> u64 {
        self.judged_early
    }

    /// Counts the oldest pending packet, and hands it on with the numbers that were skipped before it, if it is evidence.
    fn settle_oldest(&mut self, judged: Option<&mut impl FnMut(&JudgedPacket)>) {
        let Some((_, (id, sequence))) = self.order.pop_front() else {
            return;
        };
        let packet = self
            .pending
            .remove(&(id, sequence))
            .expect("what is in order is pending");
        let flow = self.flows[id.index()]
            .as_mut()
            .expect("the flow has had an arrival");
        let known = packet.judged(id, sequence, self.deadline);
        packet.count(known.as_ref(), &mut flow.totals);
        let Some(known) = known.filter(|_| !packet.handed_on) else {
            return;
        };

        let skipped = flow.numbers.advance(&known);
        let (Some(skipped), Some(judged)) = (skipped, judged) else {
            return;
        };
        for gap in skipped {
            let waiting = self.pending.get_mut(&(id, gap.sequence));
            let waiting = waiting.and_then(|packet| {
                packet.handed_on = true;
                packet.judged(id, gap.sequence, self.deadline)
            });
            judged(&waiting.unwrap_or(gap));
        }
        judged(&known);
    }
}
