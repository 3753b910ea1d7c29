//! `hawser-lab`, which the test executable plays itself, with nodes that are played by `hawser`.

use clap::Parser;
use hawser_lab::command::CommandLine;
use hawser_lab::summary::Summary;
use hawser_testbed::program;
use std::path::Path;
use std::process::{Command, Output};

/// Returns `hawser lab` without arguments.
pub(crate) fn lab() -> Command {
    let tests = std::env::current_exe().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = program::of_test(folder, &tests, "support::is_the_lab_when_told_to").unwrap();
    let mut command = Command::new(program);
    command.env("HAWSER", env!("CARGO_BIN_EXE_hawser"));
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

#[test]
fn is_the_lab_when_told_to() {
    let Some(arguments) = program::arguments().unwrap() else {
        return;
    };
    let program = ["hawser-lab".to_owned()];
    let command_line = CommandLine::parse_from(program.into_iter().chain(arguments));
    command_line.logging.start();
    let code = hawser_service::exit_code("hawser", command_line.run());
    std::process::exit(code.into());
}
