use crate::round::Round;
use crate::sent::Confirmed;
use hawser_units::Instant;
use std::time::Duration;

/// The weight of the newest round in the moving average (RFC 8257, section 3.3).
const GAIN: f64 = 1.0 / 16.0;

/// The share of bytes that arrive marked: the moving average alpha of RFC 8257, over virtual round
/// trips.
#[derive(Debug, Clone, Default)]
pub(crate) struct MarkedShare {
    alpha: f64,
    acked: u64,
    marked: u64,
    round: Round,
}

impl MarkedShare {
    /// Counts the packets of a report. Returns whether a round ended.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        confirmed: &Confirmed,
        newest_sent: Option<u64>,
        length: Duration,
    ) -> bool {
        self.acked = self.acked.saturating_add(confirmed.acked.0);
        self.marked = self.marked.saturating_add(confirmed.marked.0);
        let newest = confirmed.newest().map_or(0, |packet| packet.number);
        if !self.round.has_passed(now, newest, length) || self.acked == 0 {
            return false;
        }
        let share = self.marked as f64 / self.acked as f64;
        self.alpha += GAIN * (share - self.alpha);
        self.round.begin(now, newest_sent);
        (self.acked, self.marked) = (0, 0);
        true
    }

    /// Returns the moving average, from 0 to 1.
    pub(crate) fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Raises the average to at least `alpha`.
    pub(crate) fn raise(&mut self, alpha: f64) {
        self.alpha = self.alpha.max(alpha.min(1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::ByteSize;

    #[test]
    fn a_round_moves_the_average_by_a_sixteenth_of_its_share() {
        let ms = Duration::from_millis;
        let mut share = MarkedShare::default();
        let mut report = |at: u64, marked: u64, newest_sent| {
            let confirmed = Confirmed {
                acked: ByteSize(1000),
                marked: ByteSize(marked),
                ..Confirmed::default()
            };
            let ended = share.add(Instant::ZERO + ms(at), &confirmed, newest_sent, ms(25));
            (ended, share.alpha())
        };
        assert_eq!(report(0, 500, None), (true, 0.5 / 16.0));
        assert_eq!(report(25, 0, None), (true, 0.5 / 16.0 * 15.0 / 16.0));
        assert!(report(50, 0, Some(9)).0);
        assert!(!report(75, 1000, Some(9)).0, "packet 9 is not reported yet");
    }
}
