//! The `hawser` command.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[cfg(test)]
mod advice;
mod controller;
mod lab;
mod man;
mod sibling;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use hawser_service::Logging;
use std::path::PathBuf;
use std::process::ExitCode;

/// Live volumetric video over unreliable networks
///
/// A publisher streams a recording. Relays send it to many viewers. Agents at the edges of the network replicate its packets onto
/// several paths and deduplicate the copies. A viewer measures the quality of experience. The lab
/// runs all of them on one machine.
#[derive(Parser)]
#[command(version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    logging: Logging,
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
    Enrol(hawser_agent::enrol::Args),
    /// Generate a secret key for two nodes, or for a broadcast
    Keygen(KeygenArgs),
    Controller(hawser_service::controller::Args),
    Ctl(Box<hawser_ctl::Args>),
    /// Carry IP packets over several uplinks at once
    Tunnel(hawser_tunnel::Args),
    Publish(hawser_publish::Args),
    Relay(hawser_relay::Args),
    View(hawser_view::Args),
    Doctor(hawser_doctor::Args),
    Lab(lab::Args),
    /// Print a completion script of all commands for a shell
    Completion {
        /// The shell
        shell: Shell,
    },
    #[command(hide = true)]
    Man(man::Args),
}

#[derive(clap::Args)]
struct KeygenArgs {
    /// File to write, which must not exist yet. Only its owner can read it. Copy it to the other
    /// node, or to the viewers
    file: PathBuf,
    /// Generate the secret of a broadcast, for `hawser publish --push` and `hawser view --push`
    #[arg(long)]
    media: bool,
    /// Write what a relay needs of this secret of a broadcast. It does not decrypt media
    #[arg(long, value_name = "FILE", conflicts_with = "media")]
    relay_of: Option<PathBuf>,
}

/// Exits with 0 on success, 1 on failure, and 2 if the command line is wrong. `hawser ctl` has more
/// codes, see docs/ctl.md.
fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.logging.start();
    hawser_service::exit_code("hawser", run(cli.command, &cli.logging)).into()
}

fn run(command: Command, logging: &Logging) -> anyhow::Result<()> {
    match command {
        Command::Agent(args) => hawser_agent::run(&args),
        Command::Status(args) => hawser_agent::status::run(&args),
        Command::Enrol(args) => hawser_agent::enrol::run(&args),
        Command::Keygen(args) => keygen(&args),
        Command::Controller(_) => controller::run(),
        Command::Ctl(args) => hawser_ctl::run(&args, Cli::command()),
        Command::Tunnel(args) => hawser_tunnel::run(&args),
        Command::Publish(args) => hawser_publish::run(args),
        Command::Relay(args) => hawser_relay::run(&args),
        Command::View(args) => hawser_view::run(args),
        Command::Doctor(args) => hawser_doctor::run(&args),
        Command::Lab(args) => lab::run(&args, logging),
        Command::Completion { shell } => complete(shell),
        Command::Man(args) => man::write(&args, Cli::command()),
    }
}

fn complete(shell: Shell) -> anyhow::Result<()> {
    // A reader that has closed the pipe is no failure.
    hawser_service::print(&hawser_ctl::completion(shell, Cli::command()))?;
    Ok(())
}

fn keygen(args: &KeygenArgs) -> anyhow::Result<()> {
    let KeygenArgs { file, media, .. } = args;
    if let Some(media) = &args.relay_of {
        return hawser_relay::write_secret(media, file);
    }
    let generated = match media {
        true => hawser_publish::generate_secret(file),
        false => hawser_agent::generate_key(file),
    };
    generated.with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
