use crate::judged::JudgedPacket;
use crate::sets::Sets;
use hawser_units::{MAX_PATHS, PathSet};

/// A jump of so many numbers is a new session of the sender, not a loss: 10 s of 13,000 packets a second.
const NEW_SESSION: u64 = 1 << 17;

/// Follows the numbers of a flow.
///
/// Packets come here a deadline after their first copy, in about the order of their numbers. Every smaller number was
/// sent earlier, so when it is neither among those before nor still waiting for its deadline, no copy of it came.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// The number after the highest so far, and what that packet was sent over.
    next: Option<(u64, PathSet)>,
}

impl Numbers {
    /// Takes in a packet, and returns the numbers between it and those before it, as gaps; nothing when the number was
    /// passed before.
    pub(crate) fn advance(
        &mut self,
        packet: &JudgedPacket,
    ) -> Option<impl Iterator<Item = JudgedPacket> + use<>> {
        let after = packet.sequence.wrapping_add(1);
        let (next, sent) = self.next.unwrap_or((packet.sequence, packet.sent));
        if (1..=NEW_SESSION).contains(&next.wrapping_sub(packet.sequence)) {
            return None;
        }
        self.next = Some((after, packet.sent));
        let ahead = packet.sequence.wrapping_sub(next);
        // A copy that does not say what it was sent over has no number either, only a fingerprint.
        let skipped = if ahead < NEW_SESSION && !packet.sent.is_empty() { ahead as usize } else { 0 };
        let gap = JudgedPacket {
            sequence: next,
            sent: sent.intersection(packet.sent),
            first: None,
            skews: [None; MAX_PATHS],
            ..*packet
        };
        let following =
            |gap: &JudgedPacket| Some(JudgedPacket { sequence: gap.sequence.wrapping_add(1), ..*gap });
        Some(std::iter::successors(Some(gap), following).take(skipped))
    }
}
