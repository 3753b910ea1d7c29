//! The packets of a connection whose fate is not known, in the order of sending.

use crate::black_hole::BlackHole;
use std::collections::VecDeque;

/// The number of packets before the newest acknowledged one whose fate is awaited. QUIC declares them
/// lost long before; only packets of a handshake stay without a fate.
const MAX_AWAITED: u64 = 1024;

#[derive(Debug, Clone, Copy)]
struct SentPacket {
    number: u64,
    bytes: u16,
    has_arrived: Option<bool>,
}

/// Brings the fates of packets into the order in which they were sent.
#[derive(Debug, Default)]
pub(crate) struct SentPackets {
    packets: VecDeque<SentPacket>,
    newest_arrived: u64,
}

impl SentPackets {
    pub(crate) fn on_sent(&mut self, number: u64, bytes: u16) {
        // Each stage of the handshake has numbers of its own.
        if self
            .packets
            .back()
            .is_some_and(|last| last.number >= number)
        {
            *self = SentPackets::default();
        }
        self.packets.push_back(SentPacket {
            number,
            bytes,
            has_arrived: None,
        });
    }

    pub(crate) fn on_fate(&mut self, number: u64, has_arrived: bool) {
        let found = self
            .packets
            .binary_search_by_key(&number, |sent| sent.number);
        if let Ok(index) = found {
            self.packets[index].has_arrived = Some(has_arrived);
            if has_arrived {
                self.newest_arrived = self.newest_arrived.max(number);
            }
        }
    }

    /// Passes on the fates of packets before which none is unknown.
    pub(crate) fn settle(&mut self, to: &mut BlackHole) {
        while let Some(first) = self.packets.front() {
            match first.has_arrived {
                Some(has_arrived) => to.handle_outcome(first.bytes.into(), has_arrived),
                None if first.number + MAX_AWAITED < self.newest_arrived => {}
                None => return,
            }
            self.packets.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fates_are_passed_on_in_the_order_of_sending() {
        let (mut sent, mut path) = (SentPackets::default(), BlackHole::default());
        for round in 0..4 {
            // Three large packets, and a small one that is acknowledged before they are lost.
            let first = 4 * round;
            (first..first + 3).for_each(|number| sent.on_sent(number, 1400));
            sent.on_sent(first + 3, 100);
            sent.on_fate(first + 3, true);
            sent.settle(&mut path);
            assert_eq!(path.narrowed(), None);
            (first..first + 3).for_each(|number| sent.on_fate(number, false));
            sent.settle(&mut path);
        }
        assert!(path.narrowed().is_some());
        assert!(sent.packets.is_empty());
    }

    #[test]
    fn packets_without_a_fate_delay_no_others_for_long() {
        let (mut sent, mut path) = (SentPackets::default(), BlackHole::default());
        (0..2).for_each(|number| sent.on_sent(number, 100));
        sent.on_fate(1, true);
        sent.on_sent(0, 100);
        assert_eq!(sent.packets.len(), 1, "the next stage of the handshake");
        for number in 1..3000 {
            sent.on_sent(number, 100);
            sent.on_fate(number, true);
            sent.settle(&mut path);
        }
        assert!(sent.packets.is_empty());
    }
}
