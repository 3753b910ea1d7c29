//! Experiments, run by `hawser lab`.

use hawser_lab::summary::Summary;
use std::path::Path;
use std::process::{Command, Output};

/// Returns `hawser lab` without arguments.
pub(crate) fn lab() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    command.arg("lab");
    command
}

/// Runs an experiment, whose results go into the folder `out`. Returns its summary, and what it printed.
///
/// # Panics
/// If there is no summary.
pub(crate) fn run(experiment: &mut Command, out: &Path) -> (Summary, Output) {
    let output = experiment.arg("--out").arg(out).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let summary = Summary::read(out).unwrap_or_else(|_| panic!("{errors}"));
    (summary, output)
}
