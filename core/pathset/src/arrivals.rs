use crate::pending::{Index, Packet, Queue};
use crate::totals::FlowTotals;
use hawser_units::{FlowId, Instant, MAX_FLOWS, PathId, PathSet};
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
    /// The paths that the packet was sent over, as the copy itself says.
    pub paths: PathSet,
    /// The packet's number in its flow.
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
    flows: Vec<Option<Box<Flow>>>,
    pending: Queue,
    forgotten: u64,
}

#[derive(Debug, Default)]
struct Flow {
    totals: FlowTotals,
    index: Index,
}

impl Tracker {
    /// A copy is late, and its path was of no use for the packet, when it comes `deadline` after the first or later.
    pub fn new(deadline: Duration) -> Self {
        let flows = (0..MAX_FLOWS).map(|_| None).collect();
        Tracker { deadline, flows, pending: Queue::default(), forgotten: 0 }
    }

    /// Takes in one record.
    pub fn handle_arrival(&mut self, arrival: &Arrival) {
        let flow = self.flows[arrival.flow.index()].get_or_insert_default();
        let totals = &mut flow.totals.paths[arrival.path.index()];
        totals.arrivals += 1;
        totals.bytes.0 += u64::from(arrival.bytes);

        if let Some(packet) = flow.index.find(&mut self.pending, arrival.flow, arrival.sequence) {
            if packet.arrived.contains(arrival.path) {
                totals.repeated += 1;
            }
            packet.add(arrival);
            return;
        }
        let position = self.pending.push(Packet::new(arrival));
        if !flow.index.insert(&self.pending, arrival.flow, arrival.sequence, position) {
            self.forgotten += 1;
        }
        if self.pending.len() > MAX_PENDING {
            self.forgotten += 1;
            self.judge_oldest();
        }
    }

    /// When [`Tracker::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.pending.front().map(|packet| packet.since + self.deadline)
    }

    /// Judges the packets whose deadline has passed. Every record from before `now` must have been handled.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            self.judge_oldest();
        }
    }

    /// What happened to a flow so far, if it has had any arrival.
    pub fn flow(&self, flow: FlowId) -> Option<&FlowTotals> {
        self.flows[flow.index()].as_deref().map(|flow| &flow.totals)
    }

    /// Packets whose later copies cannot be told from late ones, because too many packets are pending or because the
    /// sender started again.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn judge_oldest(&mut self) {
        let Some(packet) = self.pending.pop() else { return };
        if let Some(flow) = &mut self.flows[packet.flow.index()] {
            flow.judge(&packet, self.deadline);
        }
    }
}

impl Flow {
    fn judge(&mut self, packet: &Packet, deadline: Duration) {
        let Some(first) = packet.first else {
            // The first copy was judged a deadline ago: these came too late for it.
            for path in packet.arrived.iter() {
                self.totals.paths[path.index()].late += 1;
            }
            return;
        };
        let mut in_time = PathSet::EMPTY.with(first);
        for path in packet.arrived.without(first).iter() {
            let totals = &mut self.totals.paths[path.index()];
            let skew = packet.at[path.index()].saturating_since(packet.at[first.index()]);
            if skew < deadline {
                in_time = in_time.with(path);
                totals.skew.record(skew);
            } else {
                totals.late += 1;
            }
        }
        for path in packet.paths.iter().filter(|path| !in_time.contains(*path)) {
            self.totals.paths[path.index()].missing += 1;
        }
        let totals = &mut self.totals.paths[first.index()];
        totals.first += 1;
        totals.only += u64::from(in_time.len() == 1);
        self.totals.packets += 1;
    }
}
