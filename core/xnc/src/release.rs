use crate::config::Config;
use crate::memory::{cost, give_back};
use hawser_units::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A packet as it was handed in at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its number: one more for each packet sent.
    pub id: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether it was decoded from combinations.
    pub recovered: bool,
}

/// Hands packets out: as they arrive, or in order.
#[derive(Debug)]
pub(crate) struct Release {
    ready: VecDeque<Packet>,
    order: Option<Order>,
}

/// Packets that wait for those before them.
#[derive(Debug)]
struct Order {
    wait: Duration,
    limit: u64,
    held: BTreeMap<u64, (Instant, Packet)>,
    /// What those cost that are held.
    held_bytes: u64,
    next: u64,
    skipped: u64,
}

impl Release {
    pub(crate) fn new(config: &Config) -> Self {
        let order = config.reorder.map(|wait| Order {
            wait,
            limit: config.pool_limit.0,
            held: BTreeMap::new(),
            held_bytes: 0,
            next: 0,
            skipped: 0,
        });
        Release {
            ready: VecDeque::new(),
            order,
        }
    }

    /// Takes a packet that was not taken before.
    pub(crate) fn push(&mut self, now: Instant, packet: Packet) {
        match &mut self.order {
            None => self.ready.push_back(packet),
            // Others did not wait for it, and it has lost its place.
            Some(order) if packet.id < order.next => self.ready.push_back(packet),
            Some(order) => {
                order.held_bytes += cost(&packet.bytes);
                order.held.insert(packet.id, (now, packet));
                order.release(now, &mut self.ready);
            }
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if let Some(order) = &mut self.order {
            order.release(now, &mut self.ready);
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let order = self.order.as_ref()?;
        order
            .held
            .values()
            .next()
            .map(|(since, _)| *since + order.wait)
            .filter(|due| *due < Instant::MAX)
    }

    pub(crate) fn pop(&mut self) -> Option<Packet> {
        give_back(&mut self.ready);
        self.ready.pop_front()
    }

    /// What the packets cost that wait for those before them.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.order.as_ref().map_or(0, |order| order.held_bytes)
    }

    /// Packets that were not waited for any longer.
    pub(crate) fn skipped(&self) -> u64 {
        self.order.as_ref().map_or(0, |order| order.skipped)
    }
}

impl Order {
    fn release(&mut self, now: Instant, ready: &mut VecDeque<Packet>) {
        while let Some(first) = self.held.first_entry() {
            let id = *first.key();
            let waited = first.get().0 + self.wait <= now;
            if id != self.next && !waited && self.held_bytes <= self.limit {
                break;
            }
            let (_, packet) = first.remove();
            self.skipped += id - self.next;
            self.next = id + 1;
            self.held_bytes -= cost(&packet.bytes);
            ready.push_back(packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::ByteSize;

    const MS: Duration = Duration::from_millis(1);

    fn release(reorder: Option<Duration>, limit: u64) -> Release {
        Release::new(&Config {
            reorder,
            pool_limit: ByteSize(limit),
            ..Config::default()
        })
    }

    fn packet(id: u64) -> Packet {
        Packet {
            id,
            bytes: vec![0; 100],
            recovered: false,
        }
    }

    fn popped(release: &mut Release) -> Vec<u64> {
        std::iter::from_fn(|| release.pop())
            .map(|packet| packet.id)
            .collect()
    }

    #[test]
    fn without_order_packets_pass_as_they_come() {
        let mut release = release(None, 1000);
        for id in [2, 0, 1] {
            release.push(Instant::ZERO, packet(id));
        }
        assert_eq!(popped(&mut release), [2, 0, 1]);
    }

    #[test]
    fn a_missing_packet_holds_the_others_back_for_so_long() {
        let mut release = release(Some(10 * MS), 1000);
        for id in [0, 2, 3] {
            release.push(Instant::ZERO, packet(id));
        }
        assert_eq!(popped(&mut release), [0]);
        let due = release.poll_timeout().unwrap();
        assert_eq!(due, Instant::ZERO + 10 * MS);

        release.handle_timeout(due);

        assert_eq!(popped(&mut release), [2, 3]);
        assert_eq!(release.skipped(), 1);
        release.push(due, packet(1));
        assert_eq!(popped(&mut release), [1], "late is better than never");
    }

    #[test]
    fn memory_is_bounded_where_time_is_not() {
        let mut release = release(Some(Duration::MAX), 1000);
        for id in 1..100 {
            release.push(Instant::ZERO, packet(id));
        }
        assert_eq!(release.poll_timeout(), None);
        assert_eq!(popped(&mut release), (1..100).collect::<Vec<_>>());
    }
}
