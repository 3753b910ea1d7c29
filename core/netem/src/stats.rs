use hawser_units::ByteSize;
use serde::{Deserialize, Serialize};

/// Why a link dropped a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// The link was cut.
    Cut,
    /// Random loss.
    Loss,
    /// The queue was full.
    Queue,
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
    /// Copies made.
    pub duplicated: u64,
    /// Packets that were corrupted. They are delivered.
    #[serde(default)]
    pub corrupted: u64,
    /// Packets that left after one that had arrived later.
    pub reordered: u64,
    /// Bytes of the packets offered.
    pub offered_bytes: ByteSize,
    /// Bytes of the packets delivered.
    pub delivered_bytes: ByteSize,
    /// The maximum occupancy of the queue.
    pub queue_high_water_bytes: ByteSize,
}

impl LinkStats {
    /// Returns the number of packets dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.dropped_cut + self.dropped_loss + self.dropped_queue
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        match reason {
            DropReason::Cut => self.dropped_cut += 1,
            DropReason::Loss => self.dropped_loss += 1,
            DropReason::Queue => self.dropped_queue += 1,
        }
    }
}
