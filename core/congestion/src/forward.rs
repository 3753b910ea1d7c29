use crate::recent::{LongMinimum, Recent};
use crate::sent::Confirmed;
use hawser_units::Instant;
use std::time::Duration;

/// The time in which a timer that is late hardly delays every packet: two reports, and less than the
/// time in which the shortest frames leave, before which there is no queue.
const MOMENT: Duration = Duration::from_millis(10);

/// The delay of the way to the receiver, between two clocks of which the difference does not matter.
/// Unlike the round trip, it has none of the noise of reports on their way back.
#[derive(Debug, Clone)]
pub(crate) struct ForwardDelay {
    minimum: LongMinimum<i64>,
    recent: Recent<i64>,
}

impl Default for ForwardDelay {
    fn default() -> Self {
        ForwardDelay {
            minimum: LongMinimum::default(),
            recent: Recent::new(MOMENT),
        }
    }
}

impl ForwardDelay {
    /// Takes the packets of a report.
    pub(crate) fn add(&mut self, now: Instant, confirmed: &Confirmed) {
        let delays = confirmed.arrived.iter().map(|packet| packet.forward_ns);
        if let Some(lowest) = delays.min() {
            self.minimum.add(now, lowest);
            self.recent.add(now, lowest);
        }
    }

    /// Takes the recent delay for that of the path, which has become longer.
    pub(crate) fn raise_base(&mut self, now: Instant) {
        if let Some(lowest) = self.recent.lowest() {
            self.minimum.replace(now, lowest);
        }
    }

    /// Returns the delay above the lowest one that no packet of the last moment escaped.
    pub(crate) fn queue(&self) -> Duration {
        let lowest = self.recent.lowest().zip(self.minimum.get());
        let excess = lowest.map_or(0, |(recent, base)| recent.saturating_sub(base));
        Duration::from_nanos(u64::try_from(excess).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sent::Arrived;
    use hawser_units::{ByteSize, Ecn};

    const MS: Duration = Duration::from_millis(1);

    fn report(forward_us: &[i64]) -> Confirmed {
        let packet = |(number, forward_us): (u64, &i64)| Arrived {
            number,
            size: ByteSize(1200),
            sent_at: Instant::ZERO,
            arrived_at: Instant::ZERO,
            forward_ns: forward_us * 1000,
            ecn: Ecn::Ect1,
        };
        Confirmed {
            arrived: (0..).zip(forward_us).map(packet).collect(),
            ..Confirmed::default()
        }
    }

    #[test]
    fn a_queue_delays_every_packet_of_a_moment_whatever_the_clocks_say() {
        let mut forward = ForwardDelay::default();
        // The receiver's clock is an hour behind.
        let behind = -3_600_000_000;
        let mut add = |at: u32, delays: [i64; 2]| {
            let delays = delays.map(|delay| behind + delay);
            forward.add(Instant::ZERO + at * MS, &report(&delays));
            forward.queue()
        };
        assert_eq!(add(0, [10_000, 10_400]), Duration::ZERO);
        assert_eq!(add(20, [12_000, 11_000]), MS);
        assert_eq!(add(25, [10_100, 13_000]), Duration::from_micros(100));
        assert_eq!(add(30, [14_000, 14_000]), Duration::from_micros(100));
        assert_eq!(add(40, [13_000, 14_000]), 3 * MS);
        forward.raise_base(Instant::ZERO + 40 * MS);
        assert_eq!(forward.queue(), Duration::ZERO);
    }
}
