//! Helpers of the tests of agents: the programs under test, and waiting with a timeout.

pub(crate) mod program;

pub(crate) use program::hawser;

use std::thread;
use std::time::{Duration, Instant};

/// Timeout of every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until `condition` returns a value.
pub(crate) fn wait<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
