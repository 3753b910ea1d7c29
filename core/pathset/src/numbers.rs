use crate::judged::JudgedPacket;
use hawser_units::{MAX_PATHS, PathSet};

/// A jump of so many numbers is a new session of the sender, not a loss: 10 s of 13,000 packets a second.
const NEW_SESSION: u64 = 1 << 17;

/// Follows the numbers of a flow.
///
/// Packets come here a deadline after their first copy, in about the order of their numbers. Every smaller number was
/// sent earlier, so when it is neither among those before nor still waiting for its deadline, no copy of it came.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    last: Option<Last>,
}

/// The packet with the highest number so far.
#[derive(Debug, Clone, Copy)]
struct Last {
    sequence: u64,
    epoch: u8,
    /// What all packets of this epoch were sent over: the policy without its probes.
    sent: PathSet,
}

impl Numbers {
    /// Takes in a packet, and returns the numbers between it and those before it, as gaps; nothing when the number was
    /// passed before.
    pub(crate) fn advance(
        &mut self,
        packet: &JudgedPacket,
    ) -> Option<impl Iterator<Item = JudgedPacket> + use<>> {
        let before = self.last.unwrap_or(Last {
            sequence: packet.sequence.wrapping_sub(1),
            epoch: packet.epoch,
            sent: packet.sent,
        });
        if before.sequence.wrapping_sub(packet.sequence) < NEW_SESSION {
            return None;
        }
        let both = before.sent.intersection(packet.sent);
        let sent = if packet.epoch == before.epoch {
            both
        } else {
            packet.sent
        };
        self.last = Some(Last {
            sequence: packet.sequence,
            epoch: packet.epoch,
            sent,
        });

        let ahead = packet.sequence.wrapping_sub(before.sequence) - 1;
        // A copy that does not say what it was sent over has no number either, only a fingerprint.
        let skipped = if ahead < NEW_SESSION && !packet.sent.is_empty() {
            ahead as usize
        } else {
            0
        };
        let following = |gap: &JudgedPacket| {
            Some(JudgedPacket {
                sequence: gap.sequence.wrapping_add(1),
                ..*gap
            })
        };
        let first = JudgedPacket {
            sequence: before.sequence.wrapping_add(1),
            sent: both,
            first: None,
            skews: [None; MAX_PATHS],
            ..*packet
        };
        Some(std::iter::successors(Some(first), following).take(skipped))
    }
}
