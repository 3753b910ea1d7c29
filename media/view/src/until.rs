//! When a viewing ends.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The conditions under which watching stops.
pub(crate) struct Until<'a> {
    pub(crate) stop: &'a AtomicBool,
    pub(crate) end: Option<Instant>,
}

impl Until<'_> {
    pub(crate) fn should_stop(&self) -> bool {
        self.stop.load(Relaxed) || self.end.is_some_and(|end| Instant::now() >= end)
    }
}

/// Returns the end of a viewing that begins now. One that is never reached is none.
pub(crate) fn end_after(duration: Option<Duration>) -> Option<Instant> {
    Instant::now().checked_add(duration?)
}
