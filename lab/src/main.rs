//! The `hawser-lab` command.

use clap::Parser;
use hawser_lab::command::CommandLine;
use std::process::ExitCode;

/// Exits with 0 on success, 1 on failure, and 2 if the command line is wrong.
fn main() -> ExitCode {
    let command_line = CommandLine::parse();
    command_line.logging.start();
    hawser_service::exit_code("hawser", command_line.run()).into()
}
