use crate::sent::{Confirmed, SentPackets};
use hawser_units::Instant;
use std::time::Duration;

/// Detects losses by time, as RACK does (RFC 8985): a packet is lost when one that was sent after it
/// has arrived, and a round trip and a quarter have passed since it was sent.
#[derive(Debug, Clone, Default)]
pub struct LossDetector {
    latest_delivered: Option<(u64, Instant)>,
}

impl LossDetector {
    /// Takes the arrivals of a report.
    pub fn handle_arrivals(&mut self, confirmed: &Confirmed) {
        if let Some(newest) = confirmed.newest()
            && self
                .latest_delivered
                .is_none_or(|(number, _)| newest.number > number)
        {
            self.latest_delivered = Some((newest.number, newest.sent_at));
        }
    }

    /// Returns the numbers of packets that are lost by now.
    pub fn lost(&self, now: Instant, sent: &SentPackets, rtt: Duration) -> Vec<u64> {
        let Some((_, delivered_sent_at)) = self.latest_delivered else {
            return Vec::new();
        };
        let sent_before = delivered_sent_at.min(now - (rtt + rtt / 4));
        sent.overdue(sent_before).collect()
    }

    /// Returns when the oldest packet of unknown fate becomes lost, if a later one has arrived.
    pub fn poll_timeout(&self, sent: &SentPackets, rtt: Duration) -> Option<Instant> {
        let (_, delivered_sent_at) = self.latest_delivered?;
        let oldest = sent.oldest_in_flight()?;
        (oldest < delivered_sent_at).then(|| oldest + (rtt + rtt / 4) + Duration::from_nanos(1))
    }
}

/// The packets of an interval, and how many of them were lost.
#[derive(Debug, Clone, Default)]
pub(crate) struct LossCount {
    began: Option<Instant>,
    arrived: u64,
    lost: u64,
}

impl LossCount {
    /// Takes a report. Returns the time since the interval began.
    pub(crate) fn add(&mut self, now: Instant, confirmed: &Confirmed) -> Duration {
        self.arrived += confirmed.arrived.len() as u64;
        self.lost += confirmed.lost.len() as u64;
        now.saturating_since(*self.began.get_or_insert(now))
    }

    /// Returns the number of packets.
    pub(crate) fn packets(&self) -> u64 {
        self.arrived + self.lost
    }

    /// Begins the next interval. Returns the lost share of this one.
    pub(crate) fn end(&mut self, now: Instant) -> f64 {
        let share = self.lost as f64 / self.packets().max(1) as f64;
        (self.began, self.arrived, self.lost) = (Some(now), 0, 0);
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Acked, Feedback};
    use hawser_units::{ByteSize, Ecn};

    #[test]
    fn an_overtaken_packet_is_lost_after_a_time() {
        let ms = Duration::from_millis;
        let at = |time| Instant::ZERO + ms(time);
        let mut sent = SentPackets::default();
        let mut detector = LossDetector::default();
        for number in 1..=3 {
            sent.insert(at(number), number, ByteSize(1));
        }
        let acked = [Acked {
            number: 2,
            held: Duration::ZERO,
            ecn: Ecn::Ect1,
        }];
        let report = Feedback {
            now: at(22),
            reported: at(22),
            acked: &acked,
            lost: &[],
            abandoned: &[],
            is_answer: true,
            app_limited: false,
        };
        detector.handle_arrivals(&sent.confirm(&report));

        assert_eq!(detector.lost(at(26), &sent, ms(20)), []);
        assert!(detector.poll_timeout(&sent, ms(20)) > Some(at(26)));
        assert_eq!(detector.lost(at(40), &sent, ms(20)), [1]);
    }
}
