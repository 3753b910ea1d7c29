//! The command line of `hawser-media`: volumetric video from the publisher to the viewer.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use anyhow::{Context, Result};
use std::path::PathBuf;

/// Publish, relay and watch volumetric video
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Publish(hawser_publish::Args),
    Relay(hawser_relay::Args),
    View(hawser_view::Args),
    Serve(hawser_publish::pull::Args),
    Fetch(hawser_view::pull::Args),
    /// Generate the secret of a broadcast
    #[command(after_help = "Example: hawser keygen --media stage.key")]
    Keygen {
        /// File to write, which must not exist yet. Only its owner can read it. Copy it to the viewers
        file: PathBuf,
        /// Write what a relay needs of this secret of a broadcast. It does not decrypt media
        #[arg(long, value_name = "FILE")]
        relay_of: Option<PathBuf>,
    },
}

/// Runs the command.
///
/// # Errors
/// If it fails.
pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Publish(args) => hawser_publish::run(args),
        Command::Relay(args) => hawser_relay::run(&args),
        Command::View(args) => hawser_view::run(args),
        Command::Serve(args) => hawser_publish::pull::run(args),
        Command::Fetch(args) => hawser_view::pull::run(args),
        Command::Keygen {
            file,
            relay_of: Some(media),
        } => hawser_relay::write_secret(&media, &file),
        Command::Keygen { file, .. } => hawser_publish::generate_secret(&file)
            .with_context(|| format!("cannot write {}", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        hawser_service::command::<Args>("hawser-media").debug_assert();
    }
}
