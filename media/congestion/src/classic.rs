use std::time::Duration;

/// The queueing delay of a marked packet above which the queue is not an L4S one: five times the
/// usual step threshold of 1 ms, and the lowest target of common classic AQMs (RFC 8289, CoDel).
const SUSPICIOUS: Duration = Duration::from_millis(4);

/// The number of rounds with marks by which suspicion outweighs acquittal before the response
/// changes.
const ROUNDS: u32 = 12;

/// Detects classic ECN AQMs: marks that come only when the queue is already long (RFC 9331, section
/// 4.3). Each round with marks is evidence for or against.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClassicAqm {
    score: u32,
    detected: bool,
    shortest: Option<Duration>,
}

impl ClassicAqm {
    /// Adds the queueing delay that a marked packet met.
    pub(crate) fn add_mark(&mut self, queue: Duration) {
        self.shortest = Some(self.shortest.map_or(queue, |shortest| shortest.min(queue)));
    }

    /// Judges the round that ended.
    pub(crate) fn end_round(&mut self) {
        let Some(shortest) = self.shortest.take() else {
            return;
        };
        if shortest > SUSPICIOUS {
            self.score = (self.score + 1).min(2 * ROUNDS);
        } else {
            self.score = self.score.saturating_sub(1);
        }
        if self.score >= ROUNDS {
            self.detected = true;
        } else if self.score == 0 {
            self.detected = false;
        }
    }

    /// Returns whether marks are to be answered like losses.
    pub(crate) fn is_detected(&self) -> bool {
        self.detected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rounds(aqm: &mut ClassicAqm, count: u32, queue: Duration) {
        for _ in 0..count {
            aqm.add_mark(queue);
            aqm.end_round();
        }
    }

    #[test]
    fn a_long_queue_with_marks_is_classic_until_it_is_short() {
        let mut aqm = ClassicAqm::default();
        rounds(&mut aqm, ROUNDS - 1, 10 * MS);
        assert!(!aqm.is_detected());
        rounds(&mut aqm, 1, 10 * MS);
        assert!(aqm.is_detected());
        rounds(&mut aqm, ROUNDS - 1, MS);
        assert!(aqm.is_detected());
        rounds(&mut aqm, 1, MS);
        assert!(!aqm.is_detected());
    }

    #[test]
    fn rounds_without_marks_say_nothing() {
        let mut aqm = ClassicAqm::default();
        for _ in 0..100 {
            aqm.end_round();
        }
        assert!(!aqm.is_detected());
    }
}
