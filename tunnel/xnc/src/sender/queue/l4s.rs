//! Marks for L4S (RFC 9331): every packet that waits longer than a low threshold is marked, and its
//! sender responds to the share of marked packets.

use super::QueuedPacket;
use super::codel::MIN_BYTES;
use crate::config::Config;
use hawser_units::{Ecn, Instant};

/// Returns whether to mark the packet at the head of a queue of `bytes`, including the packet.
pub(super) fn is_congested(
    front: &QueuedPacket,
    now: Instant,
    bytes: u64,
    config: &Config,
) -> bool {
    front.hint.ecn == Ecn::Ect1
        && bytes > MIN_BYTES
        && now.saturating_since(front.queued_at) > config.l4s_threshold
}
