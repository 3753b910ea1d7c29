use crate::sent::{Arrived, Confirmed};
use hawser_units::{ByteSize, Instant};
use std::collections::VecDeque;
use std::time::Duration;

/// The time over which the rate is taken.
const SPAN: Duration = Duration::from_millis(12);

/// The fewest packets, and the shortest time between the first and the last, that give a rate.
const LEAST_PACKETS: usize = 8;
const LEAST_TIME: Duration = Duration::from_millis(2);

/// The number of packets that are remembered.
const CAPACITY: usize = 1024;

/// The rate at which the newest packets arrived, beside the rate at which the same packets left. The
/// longest gap counts in neither: a path that pauses is not a slow one.
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
        self.packets.extend(confirmed.arrived.iter().copied());
        let newest = self.packets.iter().map(|packet| packet.received_at).max();
        let from = newest.map_or(Instant::ZERO, |newest| newest - SPAN);
        self.packets.retain(|packet| packet.received_at >= from);
        let excess = self.packets.len().saturating_sub(CAPACITY);
        self.packets.drain(..excess);
    }

    /// Returns the rates, unless there are too few packets to know.
    pub(crate) fn dispersion(&self) -> Option<Dispersion> {
        if self.packets.len() < LEAST_PACKETS {
            return None;
        }
        let arrived = Passage::of(self.packets.iter().map(|p| (p.received_at, p.size)))?;
        let sent = Passage::of(self.packets.iter().map(|p| (p.sent_at, p.size)))?;
        (arrived.time >= LEAST_TIME).then(|| Dispersion {
            arrived_bps: arrived.bps(),
            sent_bps: sent.bps(),
        })
    }
}

/// The packets that passed a point, without the longest gap and the packet after it.
struct Passage {
    size: ByteSize,
    time: Duration,
}

impl Passage {
    fn of(packets: impl Iterator<Item = (Instant, ByteSize)>) -> Option<Passage> {
        let mut packets: Vec<_> = packets.collect();
        packets.sort();
        let gaps = packets.windows(2).map(|pair| {
            let (at, size) = pair[1];
            (at.saturating_since(pair[0].0), size)
        });
        let (longest, after) = gaps.clone().max()?;
        let (time, size) = gaps.fold(
            (Duration::ZERO, ByteSize(0)),
            |(time, size), (gap, packet)| (time + gap, size + packet),
        );
        Some(Passage {
            size: ByteSize(size.0 - after.0),
            time: time - longest,
        })
    }

    fn bps(&self) -> f64 {
        self.size.bits() as f64 / self.time.as_secs_f64().max(1e-6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::Ecn;

    fn packets(count: u64, sent_us: u64, arrived_us: u64) -> Confirmed {
        let packet = |number| Arrived {
            number,
            size: ByteSize(1250),
            sent_at: Instant::ZERO + Duration::from_micros(number * sent_us),
            arrived_at: Instant::ZERO,
            received_at: Instant::ZERO + Duration::from_micros(number * arrived_us),
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
    fn a_pause_of_the_path_shows_no_lower_rate() {
        let mut arrivals = Arrivals::default();
        let mut confirmed = packets(20, 500, 500);
        let pause = Duration::from_millis(9);
        let late = confirmed.arrived.iter_mut().filter(|p| p.number >= 12);
        late.for_each(|packet| packet.received_at += pause);
        arrivals.add(&confirmed);
        let rates = arrivals.dispersion().unwrap();
        assert!((rates.arrived_bps / 20e6 - 1.0).abs() < 0.01, "{rates:?}");
    }

    #[test]
    fn few_packets_show_nothing() {
        let mut arrivals = Arrivals::default();
        arrivals.add(&packets(LEAST_PACKETS as u64 - 1, 100, 500));
        assert_eq!(arrivals.dispersion(), None);
    }
}
