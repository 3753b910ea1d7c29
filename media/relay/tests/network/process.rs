//! A relay in a process of its own, which runs this test binary.

use clap::Parser;
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use std::path::Path;
use std::process::{Command, Stdio};

/// The environment variable with the command line to run instead of a test.
const COMMAND_LINE: &str = "HAWSER_RELAY_TEST";

#[derive(Parser)]
enum Cli {
    Relay(hawser_relay::Args),
}

/// Starts `hawser relay --config FILE` in the namespace.
pub(crate) fn start(namespace: &Namespace, config: &Path) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "process::is_another_program_when_told_to",
        "--nocapture",
    ]);
    let line = format!("hawser relay --config {}", config.display());
    command.env(COMMAND_LINE, line);
    command.stdout(Stdio::null());
    Process::spawn(namespace, command).unwrap()
}

#[test]
fn is_another_program_when_told_to() {
    let Ok(line) = std::env::var(COMMAND_LINE) else {
        return;
    };
    let Cli::Relay(args) = Cli::parse_from(line.split(' '));
    if let Err(error) = hawser_relay::run(&args) {
        eprintln!("{error:#}");
        std::process::exit(1);
    }
}
