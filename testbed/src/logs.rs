//! Log files of the processes in a lab.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// Makes a command write its output and its errors to a new log.
pub fn redirect(command: &mut Command, log: &Path) -> Result<()> {
    let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stdout(output.try_clone()?).stderr(output);
    Ok(())
}

/// Returns the last line of a log, for an error that says why a process exited.
pub fn last_log_line(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    log.lines().last().unwrap_or("its log is empty").to_owned()
}
