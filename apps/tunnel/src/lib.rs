//! The coded tunnel: IP packets over several uplinks at once, with the losses of one recovered through the others.
//!
//! A client has a TUN device and one QUIC connection for each uplink; a server has many clients behind one device. The
//! connections of a client make a session, over which `hawser_xnc` sends, recovers and receives packets.
//! `docs/design/tunnel.md` says how the parts work together.

mod budget;
mod client;
pub mod config;
mod device;
mod interfaces;
mod join;
mod metrics;
mod nat;
mod netlink;
mod packet;
mod quic;
mod server;
mod session;
pub mod status;
mod tables;
mod time;
mod tls;

use anyhow::Result;
use config::{ClientConfig, ServerConfig};
use std::path::PathBuf;
use std::thread;

/// The command line of `hawser tunnel`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    /// Carry this node's packets over all of its uplinks to a server
    Client(ClientArgs),
    /// Carry clients' packets on
    Server(RunArgs),
    Status(status::Args),
}

#[derive(Debug, Clone, clap::Args)]
struct RunArgs {
    /// The configuration (docs/tunnel.md explains every key)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration and end
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Clone, clap::Args)]
struct ClientArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Close what the kill switch closes and end: for the time before the network and the client are started. Does nothing
    /// while the client runs
    #[arg(long, conflicts_with = "check")]
    close: bool,
    /// Open what the kill switch closed, which it stays when the client ends, and end
    #[arg(long, conflicts_with_all = ["check", "close"])]
    release: bool,
}

/// Runs a client or a server until SIGINT or SIGTERM, or shows the status of one.
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Client(args) => {
            let config = ClientConfig::read(&args.run.config)?;
            match args {
                ClientArgs { release: true, .. } => client::kill_switch::release(&config),
                ClientArgs { close: true, .. } => client::kill_switch::close(&config),
                ClientArgs {
                    run: RunArgs { check: true, .. },
                    ..
                } => Ok(()),
                _ => {
                    // Before anything else, because what comes next may fail.
                    let kill_switch = client::kill_switch::apply(&config)?;
                    run_to_end(client::run(config, kill_switch))
                }
            }
        }
        Command::Server(args) => {
            let config = ServerConfig::read(&args.config)?;
            if args.check {
                Ok(())
            } else {
                run_to_end(server::run(config))
            }
        }
        Command::Status(args) => status::run(args),
    }
}

fn run_to_end(work: impl Future<Output = Result<()>>) -> Result<()> {
    // The kernel has as much to do with each packet as the tunnel, and a packet that changes threads waits for them.
    let threads =
        thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime
        .worker_threads(threads)
        .enable_all()
        .build()?
        .block_on(work)
}
