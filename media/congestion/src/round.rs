use hawser_units::Instant;
use std::time::Duration;

/// The time in which a response is not repeated: until a packet that was sent after it is reported,
/// and at least one virtual round trip has passed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Round {
    last: Option<(u64, Instant)>,
}

impl Round {
    /// Begins a round `now`, when `newest` was the last packet sent.
    pub fn begin(&mut self, now: Instant, newest: Option<u64>) {
        self.last = newest.map(|newest| (newest, now));
    }

    /// Returns whether a round has passed, or none was ever begun.
    pub fn has_passed(&self, now: Instant, reported: u64, length: Duration) -> bool {
        self.last.is_none_or(|(newest, began)| {
            reported > newest && now.saturating_since(began) >= length
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_takes_the_time_and_the_packet() {
        let ms = Duration::from_millis;
        let at = |time| Instant::ZERO + ms(time);
        let mut round = Round::default();
        assert!(round.has_passed(at(0), 0, ms(25)));

        round.begin(at(10), Some(7));
        assert!(!round.has_passed(at(35), 7, ms(25)));
        assert!(!round.has_passed(at(34), 8, ms(25)));
        assert!(round.has_passed(at(35), 8, ms(25)));
    }
}
