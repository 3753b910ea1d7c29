use hawser_units::Backoff as Schedule;
use std::time::Duration;

/// Exponential backoff in real time, with jitter from the operating system's random numbers.
#[derive(Debug, Clone)]
pub struct Backoff(Schedule);

impl Backoff {
    /// Creates a backoff with the first and the longest wait.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Backoff(Schedule::new(first, longest))
    }

    /// Starts again with the first wait.
    pub const fn reset(&mut self) {
        self.0.reset();
    }

    /// Waits after a failure.
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.0.after_failure(random())).await;
    }
}

/// Waits for a random part of `longest`, so that many clients do not act at the same time.
pub async fn pause_within(longest: Duration) {
    tokio::time::sleep(longest.mul_f64(random())).await;
}

/// Returns a random number from 0 to 1.
fn random() -> f64 {
    // Without entropy every client waits the full time, which is correct except for the lack of
    // jitter.
    getrandom::u32().map_or(1.0, |number| f64::from(number) / f64::from(u32::MAX))
}
