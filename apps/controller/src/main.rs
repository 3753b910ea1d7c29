//! The `hawser-controller` command, which `hawser controller` starts.

use clap::Parser;
use hawser_controller::CommandLine;
use std::process::ExitCode;

/// Exits with 0 on success, 1 on failure, and 2 if the command line is wrong.
fn main() -> ExitCode {
    let command_line = CommandLine::parse();
    command_line.logging.start();
    hawser_command::exit_code("hawser-controller", command_line.run()).into()
}
