use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A request to stop early. Long runs poll it, so that labs are removed in order.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Creates a stop that Ctrl-C, SIGTERM and a closed terminal request. The second of these
    /// signals exits the process at once; the next lab then removes the leftovers.
    pub fn on_signals() -> io::Result<Self> {
        const INTERRUPTED: i32 = 130;
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop.0))?;
            flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    /// Returns whether the stop was requested.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Requests the stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Sleeps for `duration`. Returns `true`, and returns early, if the stop is requested.
    pub fn sleep(&self, duration: Duration) -> bool {
        const POLL_INTERVAL: Duration = Duration::from_millis(20);
        let end = Instant::now() + duration;
        while !self.requested() {
            match end.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return false,
                left => thread::sleep(left.min(POLL_INTERVAL)),
            }
        }
        true
    }
}
