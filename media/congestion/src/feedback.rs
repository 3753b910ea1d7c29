use hawser_units::{Ecn, Instant};
use std::time::Duration;

/// A report of the receiver, as the media layer parsed it.
#[derive(Debug, Clone, Copy)]
pub struct Feedback<'a> {
    /// When the report arrived at the sender.
    pub now: Instant,
    /// When it left the receiver, on the receiver's clock.
    pub reported: Instant,
    /// Packets that the report newly acknowledges, in any order.
    pub acked: &'a [Acked],
    /// Numbers of packets that the media layer now considers lost.
    pub lost: &'a [u64],
    /// Numbers of packets that the media layer no longer waits for without knowing that they are
    /// lost. They no longer count as in flight, and can still be acknowledged or lost.
    pub abandoned: &'a [u64],
    /// Whether the receiver acknowledged a packet, also one that measures nothing and is in `abandoned`:
    /// the path is not silent.
    pub is_answer: bool,
    /// Whether the application lately sent less than the target allowed. The estimate then does not
    /// grow.
    pub app_limited: bool,
}

/// A packet that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acked {
    /// The number under which the packet was sent.
    pub number: u64,
    /// The time from the packet's arrival to the departure of the report (RFC 8888, arrival time
    /// offset).
    pub held: Duration,
    /// The ECN field with which the packet arrived.
    pub ecn: Ecn,
}

/// Items of feedback that were refused, by reason. A refused item has no other effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refusals {
    /// Packets that were never sent, or so long ago that they are forgotten.
    pub unknown: u64,
    /// Packets that had been acknowledged, or reported lost, before.
    pub repeated: u64,
    /// Packets that would have arrived before they were sent.
    pub impossible_time: u64,
    /// Reports that are older than the newest one.
    pub out_of_order: u64,
    /// Packets that the sender announced with a number or a time that does not increase, or with a
    /// size that UDP does not carry.
    pub unsendable: u64,
}

impl Refusals {
    /// Returns the number of all refused items.
    pub fn total(&self) -> u64 {
        [
            self.unknown,
            self.repeated,
            self.impossible_time,
            self.out_of_order,
            self.unsendable,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }
}
