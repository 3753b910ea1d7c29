use hawser_units::Instant;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Virtual time. QUIC uses `std::time::Instant`, which can only be obtained from the real clock:
/// one such instant is the origin.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    origin: std::time::Instant,
    now: Arc<AtomicU64>,
}

impl Clock {
    /// Creates a clock that is at zero.
    pub(super) fn new() -> Self {
        Clock {
            origin: std::time::Instant::now(),
            now: Arc::default(),
        }
    }

    /// Returns the `std` instant at virtual time zero.
    pub(super) fn origin(&self) -> std::time::Instant {
        self.origin
    }

    /// Advances the clock.
    pub(super) fn set(&self, now: Instant) {
        self.now.store(now.as_nanos(), Relaxed);
    }

    /// Returns the current virtual time as a `std` instant.
    pub(super) fn now(&self) -> std::time::Instant {
        self.std(Instant::from_nanos(self.now.load(Relaxed)))
    }

    /// Converts virtual time to a `std` instant.
    pub(super) fn std(&self, at: Instant) -> std::time::Instant {
        self.origin + Duration::from_nanos(at.as_nanos())
    }

    /// Converts a `std` instant to virtual time.
    pub(super) fn instant(&self, at: std::time::Instant) -> Instant {
        Instant::ZERO + at.saturating_duration_since(self.origin)
    }
}
