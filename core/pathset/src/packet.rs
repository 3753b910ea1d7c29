use crate::arrivals::Arrival;
use crate::judged::JudgedPacket;
use crate::totals::FlowTotals;
use hawser_units::{FlowId, Instant, MAX_PATHS, PathId, PathSet};
use std::time::Duration;

/// A packet of which some copies arrived and others may still come.
#[derive(Debug)]
pub(crate) struct Packet {
    /// The paths it was sent over.
    paths: PathSet,
    /// Of the sender's policy.
    epoch: u8,
    /// Whether it has been handed on.
    pub(crate) handed_on: bool,
    /// The paths whose copies arrived.
    arrived: PathSet,
    /// When they did, for the paths in `arrived`.
    at: [Instant; MAX_PATHS],
    /// The path whose copy the window took for the first, once its record was handled.
    first: Option<PathId>,
}

impl Packet {
    pub(crate) fn new(arrival: &Arrival) -> Self {
        let mut packet = Packet {
            paths: arrival.paths,
            epoch: arrival.epoch,
            handed_on: false,
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
        // Two firsts are two copies that the window accepted on doubt; the earlier one was the first.
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

    /// What is known of the packet by now; nothing when its first copy was judged before.
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
            first: Some(first),
            skews,
        })
    }

    /// Counts what each path did for this packet, all of whose copies are in that will be in before the deadline.
    pub(crate) fn count(&self, judged: Option<&JudgedPacket>, totals: &mut FlowTotals) {
        let Some((packet, first)) = judged.and_then(|packet| Some((packet, packet.first?))) else {
            // The first copy was judged a deadline ago: these came too late for it.
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
