use hawser_units::Instant;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Virtual time. QUIC counts in `std`'s instants, which can only be had from the real clock: one of them is the origin.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    origin: std::time::Instant,
    now: Arc<AtomicU64>,
}

impl Clock {
    /// Time that stands at zero.
    pub(super) fn new() -> Self {
        Clock {
            origin: std::time::Instant::now(),
            now: Arc::default(),
        }
    }

    /// What `std` calls zero.
    pub(super) fn origin(&self) -> std::time::Instant {
        self.origin
    }

    /// Moves on.
    pub(super) fn set(&self, now: Instant) {
        self.now.store(now.as_nanos(), Relaxed);
    }

    /// The time, as `std` says it.
    pub(super) fn now(&self) -> std::time::Instant {
        self.std(Instant::from_nanos(self.now.load(Relaxed)))
    }

    /// Ours as `std`'s.
    pub(super) fn std(&self, at: Instant) -> std::time::Instant {
        self.origin + Duration::from_nanos(at.as_nanos())
    }

    /// `std`'s as ours.
    pub(super) fn instant(&self, at: std::time::Instant) -> Instant {
        Instant::ZERO + at.saturating_duration_since(self.origin)
    }
}
