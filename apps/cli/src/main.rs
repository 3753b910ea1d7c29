//! The `hawser` command.

mod lab;
mod logging;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Live volumetric video over unreliable networks
///
/// A publisher streams a recording. Agents at the edges of the network replicate its packets onto
/// several paths and deduplicate the copies. A viewer measures the quality of experience. The lab
/// runs all of them on one machine.
#[derive(Parser)]
#[command(version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    logging: logging::Args,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replicate and deduplicate packets on this node
    ///
    /// Runs at each edge of the network and needs root. SIGHUP makes it reload flows, policies and
    /// keys.
    Agent(hawser_agent::Args),
    Status(hawser_agent::status::Args),
    /// Generate a secret key for two nodes
    Keygen(KeygenArgs),
    /// Decide the policies of flows, and assign flows to nodes
    ///
    /// Manages nodes, paths and flows. Serves operators (`hawser ctl`, or curl) and agents over
    /// HTTPS.
    Controller(hawser_controller::Args),
    Ctl(Box<hawser_ctl::Args>),
    /// Carry IP packets over several uplinks at once
    Tunnel(hawser_tunnel::Args),
    Publish(hawser_publish::Args),
    View(hawser_view::Args),
    Lab(lab::Args),
}

#[derive(clap::Args)]
struct KeygenArgs {
    /// File to write, which must not exist yet. Only its owner can read it. Copy it to the other
    /// node
    file: PathBuf,
}

/// Exits with 0 on success, 1 on failure, and 2 if the command line is wrong.
fn main() -> ExitCode {
    let cli = Cli::parse();
    logging::start(&cli.logging);
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hawser: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Agent(args) => hawser_agent::run(&args),
        Command::Status(args) => hawser_agent::status::run(&args),
        Command::Keygen(args) => keygen(&args.file),
        Command::Controller(args) => hawser_controller::run(&args),
        Command::Ctl(args) => hawser_ctl::run(&args, Cli::command()),
        Command::Tunnel(args) => hawser_tunnel::run(&args),
        Command::Publish(args) => hawser_publish::run(args),
        Command::View(args) => hawser_view::run(args),
        Command::Lab(args) => lab::run(args),
    }
}

fn keygen(file: &Path) -> anyhow::Result<()> {
    hawser_agent::generate_key(file).with_context(|| format!("cannot write {}", file.display()))
}

/// Formats an error and its causes in one line. A cause that an error message already ends with is
/// not repeated.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("refused")
            .context("cannot connect: refused")
            .context("no frames");
        assert_eq!(chain(&error), "no frames: cannot connect: refused");
    }
}
