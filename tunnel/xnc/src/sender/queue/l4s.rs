//! Marks for L4S (RFC 9331): every packet that waits longer than a low threshold is marked, and its
//! sender responds to the share of marked packets.

use super::QueuedPacket;
use super::codel::MIN_BYTES;
use hawser_units::{Ecn, Instant};
use std::time::Duration;

/// The time that a packet marked ECT(1) may wait behind others of its flow, also of a flow with marked
/// ends of frames. Above it, every such packet is marked, as L4S senders expect (RFC 9331). Longer than
/// in a router, because windows open in steps of some milliseconds.
pub(super) const L4S_THRESHOLD: Duration = Duration::from_millis(5);

/// Returns whether to mark the packet at the head of a queue of `bytes`, including the packet.
pub(super) fn is_congested(front: &QueuedPacket, now: Instant, bytes: u64) -> bool {
    front.hint.ecn == Ecn::Ect1
        && bytes > MIN_BYTES
        && now.saturating_since(front.queued_at) > L4S_THRESHOLD
}
