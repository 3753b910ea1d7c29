//! The controller: it knows nodes, paths and flows, decides which paths each flow takes, and sends
//! the decisions to the nodes.
//!
//! [`store`] holds the persistent state. `view` is its content in memory, indexed for this
//! controller. `api` serves operators and nodes. `decide`, `observe` and `leader` make policies,
//! and `push` sends them to the nodes.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod access;
mod admission;
mod age;
#[cfg(test)]
mod any_bytes;
pub mod api;
mod audit;
mod authority;
mod budget;
mod check;
mod command;
mod config;
mod controller;
mod decide;
mod format;
mod heard;
mod leader;
mod lease;
mod limit;
mod listener;
mod liveness;
mod maintenance;
mod metrics;
mod observe;
mod precondition;
mod problem;
mod push;
mod record;
mod reference;
mod refusal;
mod request;
mod retention;
mod server;
mod session;
mod settings;
mod signal;
mod sources;
pub mod store;
mod streams;
mod tasks;
mod token_use;
mod view;

pub use access::Peer;
pub use authority::Presented;
pub use command::{Args, AuthorityStep};
pub use config::{
    AuditConfig, Config, ConfigError, EtcdConfig, LimitsConfig, NodesConfig, StoreConfig,
    TlsConfig, TunnelsConfig,
};
pub use controller::Controller;
pub use server::Server;

use anyhow::{Context, Result};
use hawser_io::descriptors;
use std::path::Path;
use tokio::signal::unix::{SignalKind, signal};

/// Runs a controller until SIGINT or SIGTERM. SIGHUP reloads the configuration.
pub fn run(args: &Args) -> Result<()> {
    if args.openapi {
        // A reader that has closed the pipe is no failure.
        hawser_service::print(&format!("{:#}\n", api::document()))?;
        return Ok(());
    }
    let file = args
        .config
        .as_deref()
        .context("no configuration file: give --config FILE")?;
    let config = Config::read(file)?;
    if args.check {
        hawser_service::print(&format!(
            "configuration is valid: listen on {}, state in {}\n",
            config.listen,
            config.state.display()
        ))?;
        return Ok(());
    }
    if let Some(step) = args.rotate_authority {
        let next = authority::rotation::rotate(&config.state, step)?;
        hawser_service::print(&format!("done; next: {next}\n"))?;
        return Ok(());
    }
    raise_descriptors(config.limits.connections)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    if args.restored {
        runtime.block_on(maintenance::mark_restored(&config))?;
        hawser_service::print(
            "the store has a new incarnation: nodes discard policies of the time after the backup\n",
        )?;
        return Ok(());
    }
    if args.new_admin_token {
        let file = runtime.block_on(maintenance::new_admin_token(&config))?;
        hawser_service::print(&format!(
            "the secret of the token is in {}\n",
            file.display()
        ))?;
        return Ok(());
    }
    runtime.block_on(run_until_signal(config, file))
}

/// Runs a controller with the configuration that was read from `file`.
async fn run_until_signal(config: Config, file: &Path) -> Result<()> {
    // The loop hears the first signal, too.
    let _stop = hawser_service::stop_flag()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let server = Server::start(config).await?;
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => match Config::read(file) {
                Ok(config) => server.reload(&config),
                Err(error) => tracing::error!("configuration not reloaded: {error}"),
            },
        }
    }
    tracing::info!("controller stopping");
    server.stop().await;
    Ok(())
}

/// Raises the limit of open files to what `connections` needs.
fn raise_descriptors(connections: usize) -> Result<()> {
    /// Descriptors for the store, listeners and the runtime.
    const OTHERS: u64 = 128;
    let needed = connections as u64 + OTHERS;
    let limit = descriptors::raise_limit(needed)
        .context("cannot raise the limit of open files (RLIMIT_NOFILE)")?;
    if limit < needed {
        tracing::warn!("the system allows {limit} open files, limits.connections needs {needed}");
    }
    Ok(())
}
