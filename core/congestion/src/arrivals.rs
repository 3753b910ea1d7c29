use crate::sent::{Arrived, Confirmed};
use hawser_units::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// The time over which the rate is taken.
const SPAN: Duration = Duration::from_millis(12);

/// The fewest packets, and the shortest time between the first and the last, that give a rate.
const LEAST_PACKETS: usize = 8;
const LEAST_TIME: Duration = Duration::from_millis(2);

/// The number of packets that are remembered.
const CAPACITY: usize = 1024;

/// The rate at which the newest packets arrived, beside the rate at which the same packets left.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals {
    packets: VecDeque<Arrived>,
}

/// Rates of the same packets in bits per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dispersion {
    pub(crate) arrived_bps: f64,
    pub(crate) sent_bps: f64,
}

impl Arrivals {
    pub(crate) fn add(&mut self, confirmed: &Confirmed) {
        let start = self.packets.len();
        self.packets.extend(confirmed.arrived.iter().copied());
        self.packets.make_contiguous()[start..].sort_by_key(|packet| packet.number);
        let newest = self.packets.iter().map(|p| p.arrived_at).max();
        let from = newest.map_or(Instant::ZERO, |newest| newest - SPAN);
        self.packets.retain(|packet| packet.arrived_at >= from);
        let excess = self.packets.len().saturating_sub(CAPACITY);
        self.packets.drain(..excess);
    }

    /// Returns the rates, unless there are too few packets to know.
    pub(crate) fn dispersion(&self) -> Option<Dispersion> {
        if self.packets.len() < LEAST_PACKETS {
            return None;
        }
        let first = self.packets.front()?;
        let last = self.packets.back()?;
        let bytes: u64 = self.packets.iter().skip(1).map(|p| p.size.0).sum();
        let arrived = last.arrived_at.saturating_since(first.arrived_at);
        let sent = last.sent_at.saturating_since(first.sent_at);
        if arrived < LEAST_TIME {
            return None;
        }
        let bits = bytes as f64 * 8.0;
        Some(Dispersion {
            arrived_bps: bits / arrived.as_secs_f64(),
            sent_bps: bits / sent.as_secs_f64().max(1e-6),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::{ByteSize, Ecn};

    fn packets(count: u64, sent_us: u64, arrived_us: u64) -> Confirmed {
        let packet = |number| Arrived {
            number,
            size: ByteSize(1250),
            sent_at: Instant::ZERO + Duration::from_micros(number * sent_us),
            arrived_at: Instant::ZERO + Duration::from_micros(number * arrived_us),
            forward_ns: 0,
            ecn: Ecn::Ect1,
        };
        Confirmed {
            arrived: (0..count).rev().map(packet).collect(),
            ..Confirmed::default()
        }
    }

    #[test]
    fn packets_that_spread_on_the_way_show_the_rate_of_the_path() {
        let mut arrivals = Arrivals::default();
        arrivals.add(&packets(20, 100, 500));
        let rates = arrivals.dispersion().unwrap();
        assert!((rates.sent_bps / 100e6 - 1.0).abs() < 0.01);
        assert!((rates.arrived_bps / 20e6 - 1.0).abs() < 0.01);
    }

    #[test]
    fn few_packets_show_nothing() {
        let mut arrivals = Arrivals::default();
        arrivals.add(&packets(LEAST_PACKETS as u64 - 1, 100, 500));
        assert_eq!(arrivals.dispersion(), None);
    }
}
