use crate::hash::Seeded;
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

/// Counts what each path does for each flow.
///
/// Within the deadline records may be handled in any order: each CPU of the kernel keeps its own.
/// A packet of which no copy arrived at all is not seen here. Records that were lost look like copies that were, so the
/// totals of a time in which the kernel's rings overflowed are no evidence against a path.
#[derive(Debug)]
pub struct Tracker {
    deadline: Duration,
    flows: Vec<Option<Box<FlowTotals>>>,
    pending: HashMap<Key, Packet, Seeded>,
    /// What is pending and the time in the first record of it, in the order in which these records were handled.
    order: VecDeque<(Instant, Key)>,
    judged_early: u64,
}

type Key = (FlowId, u64);

impl Tracker {
    /// A copy is late, and its path was of no use for the packet, when it comes `deadline` after the first or later.
    pub fn new(deadline: Duration) -> Self {
        Tracker {
            deadline,
            flows: vec![None; MAX_FLOWS],
            pending: HashMap::with_hasher(Seeded::new()),
            order: VecDeque::new(),
            judged_early: 0,
        }
    }

    /// Takes in one record.
    pub fn handle_arrival(&mut self, arrival: &Arrival) {
        let flow = self.flows[arrival.flow.index()].get_or_insert_default();
        let totals = &mut flow.paths[arrival.path.index()];
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
                    self.judge_oldest();
                    self.judged_early += 1;
                }
            }
        }
    }

    /// When [`Tracker::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.order.front().map(|(since, _)| *since + self.deadline)
    }

    /// Judges the packets whose deadline has passed. Every record from before `now` must have been handled.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            self.judge_oldest();
        }
    }

    /// What happened to a flow so far, if it has had any arrival.
    pub fn flow(&self, flow: FlowId) -> Option<&FlowTotals> {
        self.flows[flow.index()].as_deref()
    }

    /// Packets that were judged before their deadline because [`MAX_PENDING`] others were waiting. Copies of theirs that
    /// came afterwards count as late.
    pub fn judged_early(&self) -> u64 {
        self.judged_early
    }

    fn judge_oldest(&mut self) {
        let Some((_, key)) = self.order.pop_front() else { return };
        let packet = self.pending.remove(&key).expect("what is in order is pending");
        let totals = self.flows[key.0.index()].as_mut().expect("the flow has had an arrival");
        packet.judge(self.deadline, totals);
    }
}
