//! The program `hawser-tunnel`.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

fn main() -> ExitCode {
    hawser_service::main("hawser-tunnel", |args| hawser_tunnel::run(&args))
}
