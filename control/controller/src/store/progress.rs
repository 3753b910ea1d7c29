//! Whether a watch delivers: a watch that is silent may have nothing to deliver or may be broken.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// The progress of a watch, which notes it.
#[derive(Debug, Default)]
pub struct Progress(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When everything written before was delivered; `None` if that cannot be otherwise.
    complete: Option<Instant>,
    /// Why it is not since then, if known.
    why: Option<String>,
}

impl Progress {
    /// Notes that everything written until now was delivered.
    pub(crate) fn complete(&self) {
        let complete = Some(Instant::now());
        *self.0.lock() = State {
            complete,
            why: None,
        };
    }

    /// Notes that a watch cannot be behind.
    pub(crate) fn always(&self) {
        *self.0.lock() = State::default();
    }

    /// Notes why the watch does not deliver.
    pub(crate) fn interrupted(&self, why: &str) {
        self.0.lock().why = Some(why.to_owned());
    }

    /// Returns what is wrong if not everything that was written before `within` is known to be
    /// delivered.
    pub fn fault(&self, within: Duration) -> Option<String> {
        let state = self.0.lock();
        let age = state.complete?.elapsed();
        let why = state.why.as_deref().unwrap_or("it is silent");
        (age > within).then(|| {
            let age = age.as_secs();
            format!("what this controller knows of the store is {age} s old: the watch was interrupted: {why}")
        })
    }
}
