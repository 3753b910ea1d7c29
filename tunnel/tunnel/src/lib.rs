//! The coded tunnel: sends IP packets over several uplinks at once and recovers the losses of one
//! uplink over the others.
//!
//! A client has a TUN device and one QUIC connection for each uplink. A server has one device for
//! many clients. The connections of a client form a session, over which `hawser_xnc` sends,
//! receives and recovers packets. `docs/design/tunnel.md` explains how the parts work together.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[cfg(test)]
mod any_bytes;
mod budget;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod checks;
mod client;
pub mod config;
mod device;
mod ecn_socket;
mod interfaces;
mod join;
mod metrics;
#[cfg(test)]
#[path = "../../../base/wire/tests/support/mutation.rs"]
mod mutation;
mod nat;
mod netlink;
mod packet;
mod quic;
mod server;
mod session;
mod socket;
mod stale_flows;
pub mod status;
mod tables;
mod tcp;
mod time;
mod tls;
mod version;

use anyhow::Result;
use config::{ClientConfig, ServerConfig};
use std::path::{Path, PathBuf};
use std::thread;

/// Carry IP packets over several uplinks at once
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example: hawser tunnel client --config client.toml")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    /// Run a tunnel client: send this node's packets to a server over all of its uplinks
    ///
    /// SIGHUP has no effect: certificates are read for each connection.
    #[command(after_help = "Example: hawser tunnel client --config client.toml")]
    Client(ClientArgs),
    /// Run a tunnel server: forward the packets of clients
    ///
    /// SIGHUP makes it reload certificates, `[[client]]` and revoked clients.
    #[command(after_help = "Example: hawser tunnel server --config server.toml")]
    Server(RunArgs),
    Status(status::Args),
}

#[derive(Debug, Clone, clap::Args)]
struct RunArgs {
    /// The configuration file (docs/tunnel.md explains every key)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration and exit
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Clone, clap::Args)]
struct ClientArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Install the rules of the kill switch and exit, to block traffic before the network and the
    /// client are started. Has no effect while the client runs
    #[arg(long, conflicts_with = "check")]
    close: bool,
    /// Remove the rules of the kill switch, which otherwise stay after the client has exited, and
    /// exit
    #[arg(long, conflicts_with_all = ["check", "close"])]
    release: bool,
}

/// Runs a client or a server until SIGINT or SIGTERM, or prints the status of one.
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Client(args) => start_client(args),
        Command::Server(args) => start_server(args),
        Command::Status(args) => status::run(args),
    }
}

fn start_client(args: &ClientArgs) -> Result<()> {
    let config = ClientConfig::read(&args.run.config)?;
    match args {
        ClientArgs { release: true, .. } => client::kill_switch::release(&config),
        ClientArgs { close: true, .. } => client::kill_switch::close(&config),
        ClientArgs {
            run: RunArgs { check: true, .. },
            ..
        } => {
            tls::client(&config.common.credentials)?;
            print_valid(&args.run.config)
        }
        _ => run_client(config),
    }
}

/// Runs a client until SIGINT or SIGTERM.
///
/// # Errors
/// If the tunnel cannot be set up, or its device fails or is removed.
pub fn run_client(config: ClientConfig) -> Result<()> {
    // Before anything else: a later step may fail, and the traffic has to be blocked by then.
    let kill_switch = client::kill_switch::apply(&config)?;
    run_to_end(client::run(config, kill_switch))
}

fn start_server(args: &RunArgs) -> Result<()> {
    let config = ServerConfig::read(&args.config)?;
    if args.check {
        tls::server(&config.common.credentials)?;
        return print_valid(&args.config);
    }
    run_server(config, args.config.clone())
}

/// Runs a server until SIGINT or SIGTERM. `file` is the one from which it reads the list of clients again
/// at SIGHUP.
///
/// # Errors
/// If the server cannot be set up, or its device fails or is removed.
pub fn run_server(config: ServerConfig, file: PathBuf) -> Result<()> {
    run_to_end(server::run(config, file))
}

fn print_valid(config: &Path) -> Result<()> {
    hawser_service::print(&format!("configuration is valid: {}\n", config.display()))?;
    Ok(())
}

fn run_to_end(work: impl Future<Output = Result<()>>) -> Result<()> {
    // Half of the processors: the kernel spends as much time on each packet as the tunnel does, and
    // a packet that moves to another thread waits for that thread.
    let threads =
        thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime
        .worker_threads(threads)
        .enable_all()
        .build()?
        .block_on(work)
}
