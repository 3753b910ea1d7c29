//! The program `hawser-ctl`, which also is for machines that run no part of Hawser.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

fn main() -> ExitCode {
    hawser_service::main("hawser-ctl", |args| hawser_ctl::run(&args))
}
