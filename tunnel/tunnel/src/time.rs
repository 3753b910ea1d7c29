//! The clock of this process, in the time type of the sans-IO crates.

use hawser_units::Instant;
use std::sync::LazyLock;
use std::time::Instant as Std;

static START: LazyLock<Std> = LazyLock::new(Std::now);

/// Returns the time since the first call in this process.
pub(crate) fn now() -> Instant {
    Instant::ZERO + START.elapsed()
}

/// Converts a point in time for Tokio's timers.
pub(crate) fn timer(at: Instant) -> tokio::time::Instant {
    (*START + at.saturating_since(Instant::ZERO)).into()
}
