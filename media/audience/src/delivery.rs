use hawser_packets::media::PacketId;
use hawser_units::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// The number of later packets that are acknowledged before a packet is lost (RFC 9002, section
/// 6.1.1).
const REORDERING: u64 = 3;

/// The maximum number of outstanding packets: those that a rate control remembers. It bounds the memory of each
/// subscriber also where the packets of the publisher are short.
const CAPACITY: usize = 16_384;

/// The packets that were sent to a subscriber and are not known to have arrived, in the order of
/// sending.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    packets: VecDeque<Sent>,
    /// The number of packets that were sent before those.
    before: u64,
    /// The place in the order of the newest packet that was acknowledged.
    newest: Option<u64>,
}

/// A packet that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    /// The number of the packet in the cache.
    pub(crate) number: u64,
    pub(crate) id: PacketId,
    pub(crate) at: Instant,
    is_acknowledged: bool,
}

impl InFlight {
    /// Adds a packet. Numbers rise.
    pub(crate) fn add(&mut self, number: u64, id: PacketId, at: Instant) {
        self.packets.push_back(Sent {
            number,
            id,
            at,
            is_acknowledged: false,
        });
    }

    /// Records that a packet arrived. Returns whether it was sent and not acknowledged or lost.
    pub(crate) fn acknowledge(&mut self, number: u64) -> bool {
        let at = self.packets.partition_point(|sent| sent.number < number);
        let Some(sent) = self.packets.get_mut(at).filter(|s| s.number == number) else {
            return false;
        };
        let is_new = !std::mem::replace(&mut sent.is_acknowledged, true);
        self.newest = self.newest.max(Some(self.before + at as u64));
        is_new
    }

    /// Removes the packets that are lost by now: those that were sent before ones that arrived, three
    /// later or `delay` ago.
    pub(crate) fn lost(&mut self, now: Instant, delay: Duration) -> Vec<Sent> {
        let mut lost = Vec::new();
        let Some(newest) = self.newest else {
            return lost;
        };
        while let Some(oldest) = self.packets.front() {
            let is_overtaken = self.before + REORDERING <= newest;
            let is_late = self.before < newest && oldest.at + delay <= now;
            if !oldest.is_acknowledged && !is_overtaken && !is_late {
                break;
            }
            if !oldest.is_acknowledged {
                lost.push(*oldest);
            }
            self.packets.pop_front();
            self.before += 1;
        }
        lost
    }

    /// Forgets packets with numbers below this one, and the oldest of too many. Returns how many of them were not
    /// acknowledged.
    pub(crate) fn forget(&mut self, oldest: u64) -> usize {
        let mut unknown = 0;
        let is_over = |sent: &Sent, count: usize| sent.number < oldest || count > CAPACITY;
        while let Some(sent) = self.packets.front()
            && is_over(sent, self.packets.len())
        {
            unknown += usize::from(!sent.is_acknowledged);
            self.packets.pop_front();
            self.before += 1;
        }
        unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_packets::packet;

    const MS: Duration = Duration::from_millis(1);

    /// Returns packets with every other number, sent a millisecond apart.
    fn sent(count: u64) -> InFlight {
        let mut sent = InFlight::default();
        for at in 0..count {
            let id = packet(0, 0, at as u16, 10).header.id;
            sent.add(at * 2, id, Instant::ZERO + MS * at as u32);
        }
        sent
    }

    fn numbers(lost: &[Sent]) -> Vec<u64> {
        lost.iter().map(|sent| sent.number).collect()
    }

    #[test]
    fn a_packet_is_lost_when_one_three_later_arrived() {
        let mut sent = sent(10);
        assert!(sent.acknowledge(0) && sent.acknowledge(4));
        assert!(!sent.acknowledge(4), "once");
        assert!(!sent.acknowledge(5), "not sent");
        assert!(sent.lost(Instant::ZERO, MS * 100).is_empty());
        assert!(sent.acknowledge(8));
        assert_eq!(numbers(&sent.lost(Instant::ZERO, MS * 100)), [2]);
        assert_eq!(sent.packets.len(), 7, "from the one that may still come");
    }

    #[test]
    fn a_packet_is_lost_when_a_later_one_arrived_long_ago() {
        let mut sent = sent(4);
        assert!(sent.acknowledge(2));
        let now = Instant::ZERO + MS * 30;
        assert_eq!(numbers(&sent.lost(now, MS * 30)), [0]);
        assert!(
            sent.lost(now + MS * 1000, MS * 30).is_empty(),
            "the last ones"
        );
    }

    #[test]
    fn outstanding_packets_are_bounded_by_the_rate_control() {
        let id = packet(0, 0, 0, 10).header.id;
        let mut sent = InFlight::default();
        for number in 0..CAPACITY as u64 + 100 {
            sent.add(number, id, Instant::ZERO);
        }
        assert!(sent.acknowledge(50));
        assert_eq!(sent.forget(0), 99);
        assert_eq!(sent.packets.len(), CAPACITY);
        assert!(!sent.acknowledge(99) && sent.acknowledge(100));
    }

    #[test]
    fn what_the_cache_has_forgotten_is_forgotten() {
        let mut sent = sent(10);
        sent.acknowledge(2);
        assert_eq!(sent.forget(8), 3);
        assert_eq!(sent.packets.len(), 6);
        assert!(!sent.acknowledge(6) && sent.acknowledge(18));
        assert_eq!(numbers(&sent.lost(Instant::ZERO, MS * 100)), [8, 10, 12]);
    }
}
