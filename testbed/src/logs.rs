//! Log files of the processes in a lab.

use std::fs;
use std::path::Path;

/// Returns the last line of a log, for an error that says why a process exited.
pub fn last_log_line(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    log.lines().last().unwrap_or("its log is empty").to_owned()
}
