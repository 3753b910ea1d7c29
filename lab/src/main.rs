//! The program `hawser-lab`.

use hawser_lab::command::Args;
use std::process::ExitCode;

fn main() -> ExitCode {
    hawser_service::main("hawser-lab", Args::run)
}
