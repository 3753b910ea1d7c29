use crate::config::QueueLimit;
use hawser_units::{ByteSize, Instant};
use std::collections::VecDeque;

/// The drop-tail queue in front of the bottleneck of a link without a discipline. It decides when a
/// packet arrives, and stores when the serialisation of each packet ends.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    limit: Option<QueueLimit>,
    waiting: VecDeque<(Instant, ByteSize)>,
    occupied: ByteSize,
    high_water: ByteSize,
}

impl Queue {
    pub(crate) fn new(limit: Option<QueueLimit>) -> Self {
        Queue {
            limit,
            waiting: VecDeque::new(),
            occupied: ByteSize(0),
            high_water: ByteSize(0),
        }
    }

    /// Admits a packet that arrives `now` and will be serialised at `finish`. Returns whether it
    /// fits.
    pub(crate) fn admit(&mut self, now: Instant, finish: Instant, size: ByteSize) -> bool {
        self.release(now);
        let fits = match self.limit {
            None => true,
            Some(QueueLimit::Bytes(bytes)) => self.occupied + size <= bytes,
            Some(QueueLimit::Packets(packets)) => (self.waiting.len() as u64) < packets,
            Some(QueueLimit::Time(time)) => finish.saturating_since(now) <= time,
        };
        if fits && finish > now {
            self.waiting.push_back((finish, size));
            self.occupied += size;
            self.high_water = self.high_water.max(self.occupied);
        }
        fits
    }

    /// Returns the maximum occupancy so far.
    pub(crate) fn high_water(&self) -> ByteSize {
        self.high_water
    }

    fn release(&mut self, now: Instant) {
        while let Some((_, size)) = self.waiting.front().filter(|(finish, _)| *finish <= now) {
            self.occupied = self.occupied - *size;
            self.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_packet_that_does_not_fit_is_dropped() {
        let start = Instant::ZERO;
        let mut queue = Queue::new(Some(QueueLimit::Bytes(ByteSize(2000))));

        assert!(queue.admit(start, start + MS, ByteSize(1000)));
        assert!(queue.admit(start, start + 2 * MS, ByteSize(1000)));
        assert!(!queue.admit(start, start + 3 * MS, ByteSize(1000)));
        assert!(queue.admit(start + MS, start + 3 * MS, ByteSize(1000)));
        assert_eq!(queue.high_water(), ByteSize(2000));
    }

    #[test]
    fn a_queue_of_milliseconds_drops_what_would_wait_longer() {
        let start = Instant::ZERO;
        let mut queue = Queue::new(Some(QueueLimit::Time(2 * MS)));

        assert!(queue.admit(start, start + 2 * MS, ByteSize(1000)));
        assert!(!queue.admit(start, start + 3 * MS, ByteSize(1000)));
        assert!(queue.admit(start + MS, start + 3 * MS, ByteSize(1000)));
    }
}
