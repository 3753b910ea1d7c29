use crate::histogram::{Histogram, Quantiles};
use hawser_units::{ByteSize, Ecn};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Why a link dropped a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// The link was cut.
    Cut,
    /// Random loss.
    Loss,
    /// The queue was full.
    Queue,
    /// The active queue management of the discipline signalled congestion by a drop.
    Aqm,
    /// The rate of the packet's class was above the one at which the discipline drops.
    Policer,
}

/// The class to which a queue discipline assigns a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Low latency, low loss, scalable throughput: ECT(1) and CE; with the queue of De Fré et al.
    /// every ECN-capable packet.
    L4s,
    /// All other packets.
    Classic,
}

/// Counters of a link. At any time, `offered + duplicated = delivered + dropped + in_link`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LinkStats {
    /// Packets that arrived at the link.
    pub offered: u64,
    /// Packets that left it, copies included.
    pub delivered: u64,
    /// Packets in the queue or in propagation.
    pub in_link: u64,
    /// Packets dropped because the link was cut.
    pub dropped_cut: u64,
    /// Packets lost at random.
    pub dropped_loss: u64,
    /// Packets dropped because the queue was full.
    pub dropped_queue: u64,
    /// Packets dropped by the active queue management of the discipline.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dropped_aqm: u64,
    /// Packets dropped by the policer of the discipline.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dropped_policer: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Packets that were corrupted. They are delivered.
    #[serde(default)]
    pub corrupted: u64,
    /// Packets with ECT(0) that the discipline changed to CE. They are delivered.
    #[serde(default, skip_serializing_if = "is_default")]
    pub marked_ect0: u64,
    /// Packets with ECT(1) that the discipline changed to CE. They are delivered.
    #[serde(default, skip_serializing_if = "is_default")]
    pub marked_ect1: u64,
    /// Packets that left after one that had arrived later.
    pub reordered: u64,
    /// Bytes of the packets offered.
    pub offered_bytes: ByteSize,
    /// Bytes of the packets delivered.
    pub delivered_bytes: ByteSize,
    /// The maximum occupancy of the queue.
    pub queue_high_water_bytes: ByteSize,
    /// The time from arrival to the start of serialisation of L4S packets, with a discipline.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sojourn_l4s: Quantiles,
    /// The time from arrival to the start of serialisation of Classic packets, with a discipline.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sojourn_classic: Quantiles,
}

impl LinkStats {
    /// Returns the number of packets dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.dropped_cut
            + self.dropped_loss
            + self.dropped_queue
            + self.dropped_aqm
            + self.dropped_policer
    }

    /// Returns the number of packets marked with CE.
    pub fn marked(&self) -> u64 {
        self.marked_ect0 + self.marked_ect1
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        match reason {
            DropReason::Cut => self.dropped_cut += 1,
            DropReason::Loss => self.dropped_loss += 1,
            DropReason::Queue => self.dropped_queue += 1,
            DropReason::Aqm => self.dropped_aqm += 1,
            DropReason::Policer => self.dropped_policer += 1,
        }
    }

    pub(crate) fn count_mark(&mut self, before: Ecn) {
        match before {
            Ecn::Ect0 => self.marked_ect0 += 1,
            Ecn::Ect1 => self.marked_ect1 += 1,
            Ecn::NotEct | Ecn::Ce => {}
        }
    }
}

/// The time that packets of each class spent in the queue of a discipline.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sojourn {
    l4s: Histogram,
    classic: Histogram,
}

impl Sojourn {
    pub(crate) fn of(&self, class: Class) -> &Histogram {
        match class {
            Class::L4s => &self.l4s,
            Class::Classic => &self.classic,
        }
    }

    pub(crate) fn record(&mut self, class: Class, waited: Duration) {
        match class {
            Class::L4s => self.l4s.record(waited),
            Class::Classic => self.classic.record(waited),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
