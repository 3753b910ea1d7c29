//! The operators' command line alone, for machines that run no part of Hawser: `hawser-ctl` is
//! `hawser ctl`.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use clap::{CommandFactory, Parser};
use hawser_service::Logging;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "hawser-ctl",
    version,
    propagate_version = true,
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    logging: Logging,
    #[command(flatten)]
    ctl: hawser_ctl::Args,
}

/// Exits with 0 on success, 1 on failure, and 2 if the command line is wrong.
fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.logging.start();
    hawser_service::exit_code("hawser-ctl", hawser_ctl::run(&cli.ctl, Cli::command())).into()
}
