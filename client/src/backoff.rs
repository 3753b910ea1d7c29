use std::time::Duration;

/// Exponential backoff with jitter: the wait doubles after every failure, up to a maximum.
#[derive(Debug, Clone)]
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
        self.next = (wait * 2).min(self.longest);
        wait.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
    }

    /// Starts again with the first wait.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }

    /// Waits as long as [`Backoff::after_failure`] returns for a random number from the operating
    /// system.
    pub async fn pause(&mut self) {
        // Without entropy every client waits the full time, which is correct except for the lack of
        // jitter.
        let random = getrandom::u32().map_or(1.0, |number| f64::from(number) / f64::from(u32::MAX));
        tokio::time::sleep(self.after_failure(random)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_begin_again_after_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        let waits: Vec<_> = (0..4)
            .map(|_| backoff.after_failure(1.0).as_millis())
            .collect();
        assert_eq!(waits, [100, 200, 350, 350]);
        backoff.reset();
        assert_eq!(backoff.after_failure(0.0).as_millis(), 50);
        assert_eq!(backoff.after_failure(0.5).as_millis(), 150);
    }
}
