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

/// Makes a command append its output and its errors to a log, which has those of an earlier process.
pub fn redirect_again(command: &mut Command, log: &Path) -> Result<()> {
    let output = File::options().create(true).append(true).open(log);
    let output = output.with_context(|| format!("cannot write {}", log.display()))?;
    command.stdout(output.try_clone()?).stderr(output);
    Ok(())
}

/// Returns the last lines of a log, at most `count`, for an error that says why processes do not do what
/// is expected.
pub fn last_log_lines(log: &Path, count: usize) -> String {
    ending(&fs::read_to_string(log).unwrap_or_default(), count)
}

fn ending(log: &str, count: usize) -> String {
    let lines: Vec<&str> = log.lines().collect();
    match lines.len() {
        0 => "its log is empty".to_owned(),
        all => lines[all.saturating_sub(count)..].join("\n"),
    }
}

/// Returns the last line of a log, for an error that says why a process exited.
pub fn last_log_line(log: &Path) -> String {
    last_log_lines(log, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_end_of_a_log() {
        let log = "one\ntwo\nthree\n";
        assert_eq!(ending(log, 1), "three");
        assert_eq!(ending(log, 2), "two\nthree");
        assert_eq!(ending(log, 9), "one\ntwo\nthree");
        assert_eq!(ending("", 2), "its log is empty");
    }
}
