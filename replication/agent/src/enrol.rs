//! Enrolment: how a machine becomes a node of a controller.

use crate::config::Config;
use anyhow::{Context, Result, bail};
use hawser_client::{Controller, Identity};
use hawser_io::file::read_secret;
use hawser_model::Name;
use hawser_model::access::EnrolmentToken;
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

/// Make this machine a node of a controller, and exit
///
/// Obtains the node's certificate with a one-time token. For machines that publish or watch tracks and
/// have no agent; where one runs, `hawser agent --enrol` does the same.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: hawser enrol edge-1.token --controller https://control.example:14750 --node edge-1"
)]
pub struct Args {
    /// File with the token that `hawser ctl node enrol` printed ("-" reads standard input)
    #[arg(value_name = "TOKENFILE")]
    token: PathBuf,
    /// URL of the controller; may be repeated
    #[arg(long, value_name = "https://HOST:PORT", required = true)]
    controller: Vec<Controller>,
    /// Directory for the certificate and its key, which is created
    #[arg(long, value_name = "DIRECTORY")]
    node: PathBuf,
}

/// Obtains the certificate of the node that the token names.
///
/// # Errors
/// If the token cannot be read or used, the directory belongs to another node or cannot be written, or no
/// controller answers.
pub fn run(args: &Args) -> Result<()> {
    let token = read(&args.token)?;
    let node = token.parse::<EnrolmentToken>()?.node;
    if let Ok(identity) = Identity::load(&args.node)
        && *identity.node() != node
    {
        bail!(
            "{} has the certificate of the node {}, and the token enrols {node}: name another directory",
            args.node.display(),
            identity.node()
        );
    }
    obtain(&args.node, &node, &args.controller, &token)
}

/// Obtains the certificate of the node of a configuration with a one-time token. It replaces an earlier
/// one.
pub(crate) fn enrol(config: &Config, token: &Path) -> Result<()> {
    let controller = config
        .controller
        .as_ref()
        .context("the configuration has no [controller] to enrol with")?;
    let token = read(token)?;
    let node: Name = config.name.parse().context("the node's name")?;
    obtain(&controller.state, &node, &controller.urls, &token)
}

fn obtain(folder: &Path, node: &Name, controllers: &[Controller], token: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(hawser_client::enrol_in(folder, node, controllers, token))?;
    hawser_service::print(&format!(
        "{node} is enrolled; its certificate is in {}\n",
        folder.display()
    ))?;
    Ok(())
}

fn read(token: &Path) -> Result<String> {
    if token == Path::new("-") {
        let mut text = String::new();
        stdin()
            .read_to_string(&mut text)
            .context("cannot read the token from standard input")?;
        return Ok(text);
    }
    let text = read_secret(token).context("the token cannot be used")?;
    Ok(text.to_string())
}
