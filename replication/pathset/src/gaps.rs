use crate::judged::JudgedPacket;
use hawser_units::{MAX_PATHS, PathSet};

/// A jump by at least this many sequence numbers is a new session of the sender, not a loss: 10 s
/// of 13,000 packets/s.
const SESSION_JUMP: u64 = 1 << 17;

/// Finds the sequence numbers of a flow of which no copy arrived.
///
/// Packets are passed in one deadline after their first copy, approximately in sequence order.
/// Every smaller number was sent earlier. If it is neither among the packets passed in before nor
/// pending, no copy of it arrived in time.
#[derive(Debug, Default)]
pub(crate) struct GapDetector {
    last: Option<Last>,
}

/// The packet with the highest sequence number so far.
#[derive(Debug, Clone, Copy)]
struct Last {
    sequence: u64,
    epoch: u8,
    /// The paths that all packets of this epoch were sent over: the policy without its probes.
    sent: PathSet,
}

impl GapDetector {
    /// Takes the next packet and returns the skipped numbers before it as gaps, or `None` if its
    /// number was passed before.
    pub(crate) fn advance(
        &mut self,
        packet: &JudgedPacket,
    ) -> Option<impl Iterator<Item = JudgedPacket> + use<>> {
        let before = self.last.unwrap_or(Last {
            sequence: packet.sequence.wrapping_sub(1),
            epoch: packet.epoch,
            sent: packet.sent,
        });
        if before.sequence.wrapping_sub(packet.sequence) < SESSION_JUMP {
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

        Some(gaps(before.sequence, both, packet))
    }
}

/// Returns the numbers between `before` and the packet as packets of which no copy arrived, sent
/// over the paths `sent`.
fn gaps(
    before: u64,
    sent: PathSet,
    packet: &JudgedPacket,
) -> impl Iterator<Item = JudgedPacket> + use<> {
    let ahead = packet.sequence.wrapping_sub(before) - 1;
    // A copy without a path set has no sequence number either, only a fingerprint.
    let skipped = if ahead < SESSION_JUMP && !packet.sent.is_empty() {
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
        sequence: before.wrapping_add(1),
        sent,
        first: None,
        skews: [None; MAX_PATHS],
        ..*packet
    };
    std::iter::successors(Some(first), following).take(skipped)
}
