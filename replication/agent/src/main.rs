//! The program `hawser-agent`.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

fn main() -> ExitCode {
    hawser_service::main("hawser-agent", |args| hawser_agent::execute(&args))
}
