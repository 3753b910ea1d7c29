//! Signals that end a program.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Returns a flag that the first SIGINT or SIGTERM sets, so that the program ends in order. The second one ends it
/// at once, whatever it is doing.
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
    for signal in signals {
        // As a shell reports a process that a signal has ended.
        let status = 128 + signal;
        // In this order: the first signal finds the flag unset.
        register_conditional_shutdown(*signal, status, Arc::clone(&stop))
            .and_then(|_| register(*signal, Arc::clone(&stop)))
            .context("cannot handle signals")?;
    }
    Ok(stop)
}
