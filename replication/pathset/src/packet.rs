use crate::judged::JudgedPacket;
use crate::totals::FlowTotals;
use hawser_units::{FlowId, Instant, MAX_PATHS, PathId, PathSet};
use std::time::Duration;

/// One arrival of a copy, as recorded by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The time of arrival.
    pub at: Instant,
    /// The flow of the packet.
    pub flow: FlowId,
    /// The path that the copy arrived over.
    pub path: PathId,
    /// The paths that the packet was sent over, from the copy's own shim. If empty, no copy counts
    /// as missing.
    pub paths: PathSet,
    /// The sequence number of the packet in its flow, or another value that only its copies share.
    pub sequence: u64,
    /// The epoch of the sender's policy.
    pub epoch: u8,
    /// Whether the replay window accepted this copy as the first of its packet. False if it could
    /// not tell (`Late`).
    pub first: bool,
    /// The sender's clock when it sent the packet, in microseconds; wraps around.
    pub sent_micros: u32,
    /// The length of the inner packet.
    pub bytes: u16,
}

/// A packet of which some copies have arrived and others may still be in flight.
#[derive(Debug)]
pub(crate) struct Packet {
    /// The paths that the packet was sent over.
    paths: PathSet,
    /// The epoch of the sender's policy.
    epoch: u8,
    sent_micros: u32,
    /// Whether the packet has been reported.
    pub(crate) reported: bool,
    /// The paths whose copies have arrived.
    arrived: PathSet,
    /// Arrival times, valid for the paths in `arrived`.
    at: [Instant; MAX_PATHS],
    /// The path whose copy the replay window accepted as the first, once its record has been
    /// handled.
    first: Option<PathId>,
}

impl Packet {
    pub(crate) fn new(arrival: &Arrival) -> Self {
        let mut packet = Packet {
            paths: arrival.paths,
            epoch: arrival.epoch,
            sent_micros: arrival.sent_micros,
            reported: false,
            arrived: PathSet::EMPTY,
            at: [Instant::MAX; MAX_PATHS],
            first: None,
        };
        packet.add(arrival);
        packet
    }

    pub(crate) fn arrived_over(&self, path: PathId) -> bool {
        self.arrived.contains(path)
    }

    pub(crate) fn add(&mut self, arrival: &Arrival) {
        // Two firsts are two copies that the window accepted because it could not tell; the earlier
        // one is the first.
        if arrival.first
            && self
                .first
                .is_none_or(|first| arrival.at < self.at[first.index()])
        {
            self.first = Some(arrival.path);
        }
        let at = &mut self.at[arrival.path.index()];
        *at = arrival.at.min(*at);
        self.arrived = self.arrived.with(arrival.path);
    }

    /// Returns the state of the packet, or `None` if its first copy was judged before.
    pub(crate) fn judged(
        &self,
        flow: FlowId,
        sequence: u64,
        deadline: Duration,
    ) -> Option<JudgedPacket> {
        let first = self.first?;
        let at = self.at[first.index()];
        let mut skews = [None; MAX_PATHS];
        for path in self.arrived.iter() {
            let skew = self.at[path.index()].saturating_since(at);
            skews[path.index()] = (skew < deadline).then_some(skew);
        }
        skews[first.index()] = Some(Duration::ZERO);
        Some(JudgedPacket {
            at,
            flow,
            sequence,
            epoch: self.epoch,
            sent: self.paths,
            sent_micros: self.sent_micros,
            first: Some(first),
            skews,
        })
    }

    /// Counts the contribution of each path to this packet. All copies that arrive before the
    /// deadline have arrived.
    pub(crate) fn count(&self, judged: Option<&JudgedPacket>, totals: &mut FlowTotals) {
        let Some((packet, first)) = judged.and_then(|packet| Some((packet, packet.first?))) else {
            // The first copy was judged one deadline ago: these copies are too late.
            self.arrived
                .iter()
                .for_each(|path| totals.paths[path.index()].late += 1);
            return;
        };
        let mut in_time = PathSet::EMPTY.with(first);
        for path in self.arrived.without(first).iter() {
            if let Some(skew) = packet.skew(path) {
                in_time = in_time.with(path);
                totals.paths[path.index()].skew.record(skew);
            } else {
                totals.paths[path.index()].late += 1;
            }
        }
        for path in self.paths.iter().filter(|path| !in_time.contains(*path)) {
            totals.paths[path.index()].missing += 1;
        }
        totals.paths[first.index()].first += 1;
        totals.paths[first.index()].only += u64::from(in_time.len() == 1);
        totals.packets += 1;
    }
}
