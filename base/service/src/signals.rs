//! Signals that end a program, or have no effect.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{exit, register};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

/// Signals that are closer together are one wish: `timeout`, and a terminal that is closed, signal a program and then
/// its group.
const ONE_WISH_MS: u64 = 1_000;

/// Returns a flag that the first SIGINT or SIGTERM sets, so that the program ends in order. One that comes a second
/// later ends it at once, whatever it is doing.
///
/// # Errors
/// If signals cannot be handled.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    stop_flag_of(&[SIGINT, SIGTERM])
}

/// As [`stop_flag`], for these signals.
///
/// # Errors
/// As [`stop_flag`].
pub fn stop_flag_of(signals: &[i32]) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let (start, first_ms) = (Instant::now(), Arc::new(AtomicU64::new(u64::MAX)));
    for &signal in signals {
        let (stop, first_ms) = (Arc::clone(&stop), Arc::clone(&first_ms));
        let handle = move || {
            let now_ms = start.elapsed().as_millis() as u64;
            match first_ms.compare_exchange(u64::MAX, now_ms, Relaxed, Relaxed) {
                Ok(_) => stop.store(true, Relaxed),
                // As a shell reports a process that a signal has ended.
                Err(first) if now_ms >= first + ONE_WISH_MS => exit(128 + signal),
                Err(_) => {}
            }
        };
        #[expect(
            unsafe_code,
            reason = "sound: it reads the clock, changes atomics, and ends the process"
        )]
        // SAFETY: all of these may be done in a signal handler.
        let registered = unsafe { register(signal, handle) };
        registered.context("cannot handle signals")?;
    }
    Ok(stop)
}

/// Logs each SIGHUP, which has no effect: `why` says what to do instead.
///
/// # Errors
/// If signals cannot be handled.
pub fn ignore_hangups(why: &'static str) -> Result<()> {
    let mut hangups = Signals::new([SIGHUP]).context("cannot handle signals")?;
    thread::spawn(move || {
        for _ in hangups.forever() {
            tracing::info!("SIGHUP has no effect: {why}");
        }
    });
    Ok(())
}
