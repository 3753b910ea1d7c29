use crate::recent::{LongMinimum, Recent};
use crate::sent::{Arrived, Confirmed};
use hawser_units::Instant;
use std::time::Duration;

/// The time in which a timer that is late hardly delays every packet: two reports, and less than the
/// time in which the shortest frames leave, before which there is no queue.
const MOMENT: Duration = Duration::from_millis(10);

/// Half of the time for which the lowest delay is remembered. Two clocks whose frequencies differ by 100
/// parts per million pretend a queue of 0.2 ms in twice this time.
const EPOCH: Duration = Duration::from_secs(1);

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
            minimum: LongMinimum::new(EPOCH),
            recent: Recent::new(MOMENT),
        }
    }
}

impl ForwardDelay {
    /// Takes the packets of a report.
    pub(crate) fn add(&mut self, now: Instant, confirmed: &Confirmed) {
        let delays = confirmed.arrived.iter().map(Arrived::forward_ns);
        if let Some(lowest) = delays.min() {
            self.minimum.add(now, lowest);
            self.recent.add(now, lowest);
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
    use hawser_units::{ByteSize, Ecn};

    const MS: Duration = Duration::from_millis(1);

    /// The receiver's clock is an hour behind.
    const SENT: Duration = Duration::from_secs(3600);

    fn report(forward_us: &[u64]) -> Confirmed {
        let packet = |(number, forward_us): (u64, &u64)| Arrived {
            number,
            size: ByteSize(1200),
            sent_at: Instant::ZERO + SENT,
            arrived_at: Instant::ZERO,
            received_at: Instant::ZERO + Duration::from_micros(*forward_us),
            ecn: Ecn::Ect1,
        };
        Confirmed {
            arrived: (0..).zip(forward_us).map(packet).collect(),
            ..Confirmed::default()
        }
    }

    #[test]
    fn a_queue_delays_every_recent_packet_despite_clock_drift() {
        let mut forward = ForwardDelay::default();
        let mut add = |at: u32, delays: [u64; 2]| {
            forward.add(Instant::ZERO + at * MS, &report(&delays));
            forward.queue()
        };
        assert_eq!(add(0, [10_000, 10_400]), Duration::ZERO);
        assert_eq!(add(20, [12_000, 11_000]), MS);
        assert_eq!(add(25, [10_100, 13_000]), Duration::from_micros(100));
        assert_eq!(add(30, [14_000, 14_000]), Duration::from_micros(100));
        assert_eq!(add(40, [13_000, 14_000]), 3 * MS);
    }

    #[test]
    fn a_clock_that_runs_faster_is_no_queue() {
        let mut forward = ForwardDelay::default();
        for tenth in 0..600 {
            let now = Instant::ZERO + 100 * MS * tenth;
            // 100 parts per million.
            forward.add(now, &report(&[10_000 + 10 * u64::from(tenth)]));
            assert!(forward.queue() <= Duration::from_micros(210));
        }
    }
}
