//! The program `hawser-media`.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

fn main() -> ExitCode {
    hawser_service::main("hawser-media", hawser_media::run)
}
