//! The relay: sends one broadcast to many viewers. The kernel forwards the packets; this program has the
//! sessions, sets the budget of each viewer, and sends lost packets again.
//! `docs/design/relay.md` explains how the parts work together.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod config;
mod forward;
mod kernel;
mod metrics;
#[cfg(feature = "moq")]
mod moq;
#[cfg(not(feature = "moq"))]
#[path = "without_moq.rs"]
mod moq;
mod process;
mod routes;
mod senders;
mod serve;
pub mod status;

pub use config::{
    BroadcastConfig, Config, FromMoq, MoqConfig, MoqSource, MoqTrust, SecretUrl, Upstream,
};
pub use forward::{Begun, BroadcastIndex, Forwarder, Outcomes, Served};
pub use senders::Senders;
pub use serve::Server;

use anyhow::{Context, Result};
use hawser_io::key_file;
use hawser_keys::KeySource;
use hawser_objects::TrackSecret;
use std::path::{Path, PathBuf};

/// Send a broadcast to many viewers, in the kernel
///
/// Receives the packets of a publisher, or of another relay, and sends each to all viewers without
/// decrypting it. Needs root and Linux 6.6. SIGHUP has no effect.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example: hawser relay --config relay.toml")]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The configuration file (docs/relay.md explains every key)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long, requires = "config")]
    check: bool,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    Status(status::Args),
}

/// Relays until SIGINT or SIGTERM, or prints the status of a relay.
///
/// # Errors
/// If the configuration is not valid, a socket cannot be opened, or the kernel does not load the program.
pub fn run(args: &Args) -> Result<()> {
    match (&args.command, &args.config) {
        (Some(Command::Status(args)), _) => status::run(args),
        (None, Some(file)) => relay(file, args.check),
        (None, None) => anyhow::bail!("--config FILE is missing"),
    }
}

fn relay(file: &Path, is_check: bool) -> Result<()> {
    let config = Config::read(file)?;
    if is_check {
        for broadcast in &config.broadcasts {
            // The controller is not contacted.
            if let KeySource::File(file) = &broadcast.key {
                key_file::read_relay(file).map_err(anyhow::Error::msg)?;
            }
            #[cfg(feature = "moq")]
            {
                if let Some(moq) = &broadcast.moq {
                    moq::config(broadcast, moq)?;
                }
                if let Upstream::Moq(from) = &broadcast.upstream {
                    moq::source(from)?;
                }
            }
        }
        hawser_service::print(&format!("configuration is valid: {}\n", file.display()))?;
        return Ok(());
    }
    let stop = hawser_service::stop_flag()?;
    hawser_service::ignore_hangups("another configuration needs a restart")?;
    let listen: Vec<_> = config.broadcasts.iter().map(|b| b.listen).collect();
    let senders = Senders::load(&listen)?;
    let mut server = Server::open(&config, senders)?;
    server.run(&stop)
}

/// Writes the secret that a relay needs of a broadcast to a file that must not exist yet. Only the owner
/// can read it.
///
/// # Errors
/// If the secret of the broadcast cannot be read, or the file not be written.
pub fn write_secret(media: &Path, relay: &Path) -> Result<()> {
    let secret = key_file::read_media(media).map_err(anyhow::Error::msg)?;
    let access = TrackSecret::new(*secret).access();
    key_file::write_relay(relay, &access.to_bytes())
        .with_context(|| format!("cannot write {}", relay.display()))
}
