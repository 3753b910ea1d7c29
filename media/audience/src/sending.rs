use hawser_congestion::{Pacer, Spread};
use hawser_packets::media::PacketId;
use hawser_units::{Bitrate, ByteSize, Instant};
use std::collections::VecDeque;

/// Packets that are sent from the cache to one subscriber, at its rate.
#[derive(Debug)]
pub(crate) struct Sending {
    /// Lost packets, which are sent first.
    repeated: VecDeque<PacketId>,
    /// Packets that arrived before the subscriber joined.
    earlier: VecDeque<PacketId>,
    pacer: Pacer,
}

/// The maximum number of queued packets. Later ones would arrive after their deadline.
const MAX_WAITING: usize = 8192;

impl Sending {
    pub(crate) fn new() -> Self {
        Sending {
            repeated: VecDeque::new(),
            earlier: VecDeque::new(),
            pacer: Pacer::new(Spread::BorneRate),
        }
    }

    /// Queues a lost packet. Returns `false` if the queue is full.
    pub(crate) fn repeat(&mut self, id: PacketId) -> bool {
        let has_room = self.repeated.len() < MAX_WAITING;
        if has_room {
            self.repeated.push_back(id);
        }
        has_room
    }

    /// Queues a packet that arrived before the subscriber joined. Returns `false` if the queue is full.
    pub(crate) fn send_earlier(&mut self, id: PacketId) -> bool {
        let has_room = self.earlier.len() < MAX_WAITING;
        if has_room {
            self.earlier.push_back(id);
        }
        has_room
    }

    /// Returns the next packet that is due, and whether it was sent before.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<(PacketId, bool)> {
        if self.pacer.next_send() > now {
            return None;
        }
        let repeated = self.repeated.pop_front().map(|id| (id, true));
        repeated.or_else(|| self.earlier.pop_front().map(|id| (id, false)))
    }

    /// Records that a packet left.
    pub(crate) fn handle_sent(&mut self, now: Instant, size: ByteSize, rate: Bitrate) {
        self.pacer.handle_sent(now, size, rate);
    }

    /// Returns when [`Sending::poll`] has the next packet.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let is_idle = self.repeated.is_empty() && self.earlier.is_empty();
        (!is_idle).then(|| self.pacer.next_send())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_packets::packet;
    use std::time::Duration;

    #[test]
    fn lost_packets_go_first_and_all_at_the_rate() {
        let mut sending = Sending::new();
        let id = |index| packet(0, 0, index, 10).header.id;
        for index in 0..40 {
            assert!(sending.send_earlier(id(index)));
        }
        assert!(sending.repeat(id(99)));
        let rate = Bitrate::from_mbps(10.0);
        let (mut now, mut sent) = (Instant::ZERO + Duration::from_secs(1), Vec::new());
        let start = now;
        while let Some(due) = sending.poll_timeout() {
            now = now.max(due);
            while let Some((id, is_repeated)) = sending.poll(now) {
                sending.handle_sent(now, ByteSize(1250), rate);
                sent.push((id.index, is_repeated));
            }
        }
        assert_eq!(sent.len(), 41);
        assert_eq!(sent[..2], [(99, true), (0, false)]);
        let took = now.saturating_since(start);
        assert!((38..=41).contains(&took.as_millis()), "{took:?}");
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut sending = Sending::new();
        let id = packet(0, 0, 0, 10).header.id;
        let taken = (0..10_000).filter(|_| sending.repeat(id)).count();
        assert_eq!(taken, MAX_WAITING);
    }
}
