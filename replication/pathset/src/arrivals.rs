use crate::gaps::GapDetector;
use crate::hash::Seeded;
use crate::judged::JudgedPacket;
use crate::packet::{Arrival, Packet};
use crate::totals::FlowTotals;
use hawser_units::{FlowId, Instant, MAX_FLOWS, MAX_PATHS};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Maximum number of pending packets of a tracker: 2.6 s of 100,000 packets/s.
pub const MAX_PENDING: usize = 1 << 18;

/// Counts what each path contributes to each flow, and reports the fate of each packet.
///
/// Within the deadline, records may be handled in any order, since each CPU of the kernel keeps its
/// own ring. A lost record looks like a lost copy. The totals of a period in which the kernel's
/// rings overflowed are therefore no evidence against a path, and [`Tracker::handle_lost_records`]
/// keeps such packets from being reported.
///
#[derive(Debug)]
pub struct Tracker {
    deadline: Duration,
    flows: Vec<Option<Box<Flow>>>,
    pending: HashMap<Key, Packet, Seeded>,
    /// The keys of the pending packets with the time in their first record, in the order in which
    /// these records were handled.
    order: VecDeque<(Instant, Key)>,
    /// Records from before this time may have been lost.
    unreliable_until: Option<Instant>,
    judged_early: u64,
}

type Key = (FlowId, u64);

#[derive(Debug, Default)]
struct Flow {
    totals: FlowTotals,
    gaps: GapDetector,
    newest: [Option<Instant>; MAX_PATHS],
}

impl Tracker {
    /// Creates a tracker. A copy that arrives `deadline` or more after the first one is late, and
    /// its path was of no use for the packet.
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

    /// Handles one record.
    pub fn handle_arrival(&mut self, arrival: &Arrival) {
        let flow = self.flows[arrival.flow.index()].get_or_insert_default();
        let totals = &mut flow.totals.paths[arrival.path.index()];
        totals.arrivals += 1;
        totals.bytes.0 += u64::from(arrival.bytes);
        let newest = &mut flow.newest[arrival.path.index()];
        *newest = (*newest).max(Some(arrival.at));

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

    /// Notes that the kernel may have lost records until `now`: packets that are pending may have
    /// had more copies.
    pub fn handle_lost_records(&mut self, now: Instant) {
        self.unreliable_until = Some(now);
    }

    /// Returns when [`Tracker::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.order.front().map(|(since, _)| *since + self.deadline)
    }

    /// Judges the packets whose deadline has passed. Every record from before `now` must have been
    /// handled.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout_with(now, |_| ());
    }

    /// Judges the packets whose deadline has passed and reports each to `judged`, in the order in
    /// which they were sent.
    ///
    /// Every packet waits for its own deadline or for that of a later packet: if complete packets
    /// were reported at once, evidence for a path would precede the evidence against it. A sequence
    /// number of which no copy arrived is reported as a gap, and not reported again if a copy
    /// arrives after all. Packets of which records may have been lost are not reported.
    pub fn handle_timeout_with(&mut self, now: Instant, mut judged: impl FnMut(&JudgedPacket)) {
        while let Some((since, _)) = self.order.front()
            && *since + self.deadline <= now
        {
            let reliable = self.unreliable_until.is_none_or(|until| *since > until);
            self.settle_oldest(reliable.then_some(&mut judged));
        }
    }

    /// Returns the totals of a flow, if any copy of it has arrived.
    pub fn flow(&self, flow: FlowId) -> Option<&FlowTotals> {
        self.flows[flow.index()].as_deref().map(|flow| &flow.totals)
    }

    /// Returns the arrival times of a flow's newest copies, by path index, if any has arrived.
    pub fn newest(&self, flow: FlowId) -> Option<&[Option<Instant>; MAX_PATHS]> {
        self.flows[flow.index()].as_deref().map(|flow| &flow.newest)
    }

    /// Returns how many packets were judged before their deadline because [`MAX_PENDING`] others
    /// were pending. Their later copies count as late. These packets are not reported.
    pub fn judged_early(&self) -> u64 {
        self.judged_early
    }

    /// Counts the oldest pending packet. If it is evidence, reports it after the sequence numbers
    /// that were skipped before it.
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
        let Some(known) = known.filter(|_| !packet.reported) else {
            return;
        };

        let skipped = flow.gaps.advance(&known);
        let (Some(skipped), Some(judged)) = (skipped, judged) else {
            return;
        };
        for gap in skipped {
            let waiting = self.pending.get_mut(&(id, gap.sequence));
            let waiting = waiting.and_then(|packet| {
                packet.reported = true;
                packet.judged(id, gap.sequence, self.deadline)
            });
            judged(&waiting.unwrap_or(gap));
        }
        judged(&known);
    }
}
