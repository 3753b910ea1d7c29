//! `hawser lab`, which is a program of its own: what runs on nodes contains no experiments.

use crate::sibling;
use anyhow::{Context, Result};
use hawser_service::Logging;
use std::ffi::OsString;

/// The program with the experiments.
const PROGRAM: &str = "hawser-lab";

/// The environment variable with the program that plays the nodes.
const NODES: &str = "HAWSER";

const SOURCE: &str = "build it with `make build` in Hawser's source tree, \
                      or install it from there with `cargo install --path lab`";

/// Run experiments on emulated networks on this machine
///
/// Starts the program hawser-lab, which lies in the folder of this program or in PATH.
#[derive(clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct Args {
    /// Arguments of hawser-lab: see `hawser lab --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process by `hawser-lab`. Returns only if that fails.
pub(crate) fn run(args: &Args, logging: &Logging) -> Result<()> {
    let mut lab = sibling::command(PROGRAM)?;
    lab.args(logging.arguments()).args(&args.arguments);
    if std::env::var_os(NODES).is_none() {
        lab.env(
            NODES,
            std::env::current_exe().context("cannot find this program")?,
        );
    }
    Err(sibling::exec(lab, SOURCE))
}
