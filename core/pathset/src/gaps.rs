use crate::judged::JudgedPacket;
use hawser_units::{MAX_PATHS, PathSet};

/// A jump of so many numbers is a new session of the sender, not a loss: 10 s of 13,000 packets a second.
const NEW_SESSION: u64 = 1 << 17;

/// Finds the numbers that a flow skipped.
///
/// Packets come here a deadline after their first copy, in about the order of their numbers. Every smaller number was
/// sent earlier, so when it is neither among those before nor still waiting for its deadline, no copy of it came.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    /// The number after the highest so far, and what that packet was sent over.
    next: Option<(u64, PathSet)>,
}

impl Gaps {
    /// Takes in the next packet; returns the packets between it and those before it. Some may still be waiting.
    pub(crate) fn advance(&mut self, packet: &JudgedPacket) -> impl Iterator<Item = JudgedPacket> + use<> {
        let after = (packet.sequence.wrapping_add(1), packet.sent);
        let (next, sent) = *self.next.get_or_insert(after);
        let ahead = packet.sequence.wrapping_sub(next);
        let behind = next.wrapping_sub(packet.sequence);
        if !(1..=NEW_SESSION).contains(&behind) {
            self.next = Some(after);
        }
        // A copy that does not say what it was sent over has no numbers either, only a fingerprint.
        let skipped = if ahead < NEW_SESSION && !packet.sent.is_empty() { ahead } else { 0 };
        let gap = JudgedPacket {
            sequence: next,
            sent: PathSet::from_bits(sent.bits() & packet.sent.bits()),
            first: None,
            skews: [None; MAX_PATHS],
            ..*packet
        };
        let following =
            |gap: &JudgedPacket| Some(JudgedPacket { sequence: gap.sequence.wrapping_add(1), ..*gap });
        std::iter::successors(Some(gap), following).take(skipped as usize)
    }
}
