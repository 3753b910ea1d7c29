use std::time::Duration;

/// Exponential backoff with jitter: the wait doubles after every failure, up to a maximum.
///
/// ```
/// use hawser_units::Backoff;
/// use std::time::Duration;
///
/// let ms = Duration::from_millis;
/// let mut backoff = Backoff::new(ms(100), ms(350));
/// assert_eq!(backoff.after_failure(1.0), ms(100));
/// assert_eq!(backoff.after_failure(0.0), ms(100));
/// backoff.reset();
/// assert_eq!(backoff.after_failure(0.0), ms(50));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Creates a backoff with the first and the longest wait.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Backoff {
            first,
            longest,
            next: first,
        }
    }

    /// Returns the wait after a failure: between half of the current wait and all of it, depending
    /// on `random` (0 to 1).
    pub fn after_failure(&mut self, random: f64) -> Duration {
        let wait = self.next;
        self.next = wait.saturating_mul(2).min(self.longest);
        wait.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
    }

    /// Starts again with the first wait.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_begin_again_after_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        let waits: Vec<_> = (0..100)
            .map(|_| backoff.after_failure(1.0).as_millis())
            .collect();
        assert_eq!(waits[..4], [100, 200, 350, 350]);
        assert_eq!(waits[99], 350);
        backoff.reset();
        assert_eq!(backoff.after_failure(0.0).as_millis(), 50);
        assert_eq!(backoff.after_failure(0.5).as_millis(), 150);
    }
}
