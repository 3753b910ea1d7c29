//! The place in a recording that the camera plays, for the sound that goes with it.

use hawser_units::Instant;
use parking_lot::Mutex;
use std::sync::Arc;

/// The place of the pictures that are played, for the sound.
#[derive(Debug, Default)]
pub(crate) struct Playing(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When the newest picture was captured, and its time in the recording, in seconds.
    newest: Option<(Instant, f64)>,
    is_over: bool,
}

impl Playing {
    /// Records that a picture of a time of the recording, in seconds, was captured.
    pub(crate) fn set(&self, captured: Instant, time_s: f64) {
        self.0.lock().newest = Some((captured, time_s));
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.lock().is_over
    }

    /// Returns the time of our clock in seconds at which the recording was at its beginning, or would have been.
    pub(crate) fn beginning_s(&self) -> Option<f64> {
        let (captured, time_s) = self.0.lock().newest?;
        Some(seconds(captured) - time_s)
    }
}

/// The pictures, which the sound follows. It ends with them, however they end.
pub(crate) struct Leading(pub(crate) Arc<Playing>);

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.0.lock().is_over = true;
    }
}

/// Returns a time in seconds.
pub(crate) fn seconds(at: Instant) -> f64 {
    at.as_nanos() as f64 / 1e9
}
