//! The clock of this process, as the sans-IO parts count time.

use hawser_units::Instant;
use std::sync::LazyLock;
use std::time::Instant as Std;

static START: LazyLock<Std> = LazyLock::new(Std::now);

/// Now, since the process began to ask.
pub(crate) fn now() -> Instant {
    Instant::ZERO + START.elapsed()
}

/// The same point in time for a timer.
pub(crate) fn timer(at: Instant) -> tokio::time::Instant {
    (*START + at.saturating_since(Instant::ZERO)).into()
}
