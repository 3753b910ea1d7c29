use crate::Config;
use crate::memory::{cost, shrink_if_sparse};
use bytes::Bytes;
use hawser_units::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A packet as it was passed to [`handle_packet`](crate::Endpoint::handle_packet) at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The number of the packet. Numbers increase by one for each packet sent.
    pub id: u64,
    /// The bytes of the packet.
    pub bytes: Bytes,
    /// Whether it was decoded from coded packets.
    pub recovered: bool,
}

impl Packet {
    /// Returns the packet with bytes of its own. Those of a received packet are a part of what the
    /// socket received with it, up to 64 KB.
    fn detached(self) -> Packet {
        Packet {
            bytes: Bytes::copy_from_slice(&self.bytes),
            ..self
        }
    }
}

/// Delivers packets as they arrive, or in order.
#[derive(Debug)]
pub(crate) struct ReorderBuffer {
    ready: VecDeque<Packet>,
    order: Option<Order>,
}

/// Packets that wait for earlier ones.
#[derive(Debug)]
struct Order {
    wait: Duration,
    limit: u64,
    held: BTreeMap<u64, (Instant, Packet)>,
    /// The cost of the packets in `held`.
    held_bytes: u64,
    next: u64,
    skipped: u64,
}

impl ReorderBuffer {
    pub(crate) fn new(config: &Config) -> Self {
        let order = config.reorder.map(|wait| Order {
            wait,
            limit: config.packet_memory.0,
            held: BTreeMap::new(),
            held_bytes: 0,
            next: 0,
            skipped: 0,
        });
        ReorderBuffer {
            ready: VecDeque::new(),
            order,
        }
    }

    /// Takes a packet. The caller has removed duplicates.
    pub(crate) fn push(&mut self, now: Instant, packet: Packet) {
        match &mut self.order {
            None => self.ready.push_back(packet),
            // Later packets were delivered without waiting for this one, so its place in the order
            // is lost.
            Some(order) if packet.id < order.next => self.ready.push_back(packet),
            Some(order) => {
                let packet = match packet.id == order.next {
                    true => packet,
                    false => packet.detached(),
                };
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
        shrink_if_sparse(&mut self.ready);
        self.ready.pop_front()
    }

    /// Returns the cost of the packets that wait for earlier ones.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.order.as_ref().map_or(0, |order| order.held_bytes)
    }

    /// Returns the number of packets that later ones no longer wait for.
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

    fn reorder_buffer(reorder: Option<Duration>, limit: u64) -> ReorderBuffer {
        ReorderBuffer::new(&Config {
            reorder,
            packet_memory: ByteSize(limit),
            ..Config::default()
        })
    }

    fn packet(id: u64) -> Packet {
        Packet {
            id,
            bytes: vec![0; 100].into(),
            recovered: false,
        }
    }

    fn popped(buffer: &mut ReorderBuffer) -> Vec<u64> {
        std::iter::from_fn(|| buffer.pop())
            .map(|packet| packet.id)
            .collect()
    }

    #[test]
    fn without_order_packets_are_delivered_as_they_arrive() {
        let mut buffer = reorder_buffer(None, 1000);
        for id in [2, 0, 1] {
            buffer.push(Instant::ZERO, packet(id));
        }
        assert_eq!(popped(&mut buffer), [2, 0, 1]);
    }

    #[test]
    fn a_missing_packet_delays_later_ones_for_the_configured_time() {
        let mut buffer = reorder_buffer(Some(10 * MS), 1000);
        for id in [0, 2, 3] {
            buffer.push(Instant::ZERO, packet(id));
        }
        assert_eq!(popped(&mut buffer), [0]);
        let due = buffer.poll_timeout().unwrap();
        assert_eq!(due, Instant::ZERO + 10 * MS);

        buffer.handle_timeout(due);

        assert_eq!(popped(&mut buffer), [2, 3]);
        assert_eq!(buffer.skipped(), 1);
        buffer.push(due, packet(1));
        assert_eq!(
            popped(&mut buffer),
            [1],
            "a late packet is delivered at once"
        );
    }

    #[test]
    fn memory_is_bounded_where_time_is_not() {
        let mut buffer = reorder_buffer(Some(Duration::MAX), 1000);
        for id in 1..100 {
            buffer.push(Instant::ZERO, packet(id));
        }
        assert_eq!(buffer.poll_timeout(), None);
        assert_eq!(popped(&mut buffer), (1..100).collect::<Vec<_>>());
    }
}
