use hawser_units::Instant;
use std::time::Duration;

/// The smallest delay is forgotten after one to two times this duration. It bounds the drift of the
/// two clocks (2 ms at 100 ppm), and a path that has become longer for good is not late for ever.
const KEPT: Duration = Duration::from_secs(20);

/// The smallest one-way delay of a path recently, by clocks that need not agree.
#[derive(Debug, Clone, Default)]
pub(super) struct Floor {
    /// The start of the current period, and the smallest delay in it.
    current: Option<(Instant, u32)>,
    /// The smallest delay of the period before.
    before: Option<u32>,
}

impl Floor {
    /// Records a packet that was sent when the sender's clock showed `sent_micros` and arrived at
    /// `at`. Returns by how much its delay exceeds the smallest one.
    pub(super) fn record(&mut self, at: Instant, sent_micros: u32) -> Duration {
        // The clocks wrap around, and so does their difference.
        let delay = ((at.as_nanos() / 1000) as u32).wrapping_sub(sent_micros);
        let least = match self.current {
            Some((start, least)) if at.saturating_since(start) < KEPT => {
                let least = shorter(least, delay);
                self.current = Some((start, least));
                least
            }
            ended => {
                self.before = ended.map(|(_, least)| least);
                self.current = Some((at, delay));
                delay
            }
        };
        let floor = self.before.map_or(least, |before| shorter(before, least));
        Duration::from_micros(u64::from(delay.wrapping_sub(floor)))
    }
}

/// Returns the shorter of two delays of which only the difference is known.
fn shorter(one: u32, other: u32) -> u32 {
    if (one.wrapping_sub(other) as i32) < 0 {
        one
    } else {
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_count_from_the_smallest_across_a_wrap() {
        let mut floor = Floor::default();
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let sent = |millis: u32| (u32::MAX - 500_000).wrapping_add(millis * 1000);
        let mut above = |arrived, sent_at| floor.record(at(arrived), sent(sent_at)).as_millis();
        assert_eq!(above(100, 0), 0);
        assert_eq!(above(150, 40), 10);
        assert_eq!(above(1_080, 1_000), 0);
        assert_eq!(above(1_230, 1_100), 50);
    }

    #[test]
    fn a_path_that_has_become_longer_is_late_for_a_while_only() {
        let mut floor = Floor::default();
        let mut above = |seconds: u64, delay_ms: u64| {
            let sent = Duration::from_secs(seconds);
            let at = Instant::ZERO + sent + Duration::from_millis(delay_ms);
            floor.record(at, sent.as_micros() as u32).as_millis()
        };
        assert_eq!(above(0, 20), 0);
        assert_eq!(above(10, 70), 50);
        assert_eq!(above(30, 70), 50);
        assert_eq!(above(60, 70), 0);
    }
}
