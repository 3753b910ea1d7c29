use hawser_units::Instant;
use std::time::Duration;

/// The messages that a viewer may still send: one for each interval, and a burst of them at once. It
/// is a token bucket, kept as the time at which it would be full again.
#[derive(Debug)]
pub(super) struct Allowance {
    full_at: Instant,
}

/// The time for which a viewer may send one message. A viewer of 400 Mb/s sends 650 reports in a
/// second.
const INTERVAL: Duration = Duration::from_micros(500);

/// The time for which messages may be saved up: those that a network held back arrive at once.
const SAVED: Duration = Duration::from_millis(500);

impl Allowance {
    /// Creates a full allowance.
    pub(super) const fn new() -> Self {
        Allowance {
            full_at: Instant::ZERO,
        }
    }

    /// Returns whether another message may be taken.
    pub(super) fn has_room(&self, now: Instant) -> bool {
        self.full_at.saturating_since(now) < SAVED
    }

    /// Takes a message.
    pub(super) fn take(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_taken_and_then_one_message_for_each_interval() {
        let mut allowance = Allowance::new();
        let start = Instant::from_nanos(1_000_000_000);
        let mut taken = |now: Instant| {
            let mut count = 0;
            while allowance.has_room(now) {
                allowance.take(now);
                count += 1;
            }
            count
        };
        assert_eq!(taken(start), 1000);
        assert_eq!(taken(start), 0);
        assert_eq!(taken(start + 10 * INTERVAL), 10);
        assert_eq!(taken(start + Duration::from_secs(10)), 1000);
    }
}
