//! What processes of a lab have said.

use std::fs;
use std::path::Path;

/// The last line of a log, for an error that says why a process ended.
pub(crate) fn last_words(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    log.lines().last().unwrap_or("it said nothing").to_owned()
}
