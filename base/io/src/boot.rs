//! The current boot of the machine, to which state of the kernel belongs.

use std::fs;
use tracing::warn;

/// The file in which the kernel identifies the current boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the identifier of the current boot.
pub fn current() -> String {
    let boot = fs::read_to_string(BOOT).unwrap_or_else(|error| {
        warn!("cannot identify this boot of the machine: {BOOT}: {error}");
        String::new()
    });
    boot.trim().to_owned()
}
