//! The tunnel with another scheme.

use super::Scheme;
use anyhow::Result;
use hawser_tunnel::config::{ClientConfig, ServerConfig};
use std::path::PathBuf;

/// Run one end of a tunnel with another scheme, for an experiment
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The scheme, which both ends have to use
    scheme: Scheme,
    role: Role,
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Role {
    Client,
    Server,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let transport = args.scheme.config();
    match args.role {
        Role::Client => hawser_tunnel::run_client(ClientConfig {
            transport,
            ..ClientConfig::read(&args.config)?
        }),
        Role::Server => {
            let config = ServerConfig {
                transport,
                ..ServerConfig::read(&args.config)?
            };
            hawser_tunnel::run_server(config, args.config.clone())
        }
    }
}
