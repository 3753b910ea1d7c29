//! `hawser lab`, which is a program of its own: what runs on nodes contains no experiments.

use anyhow::{Context, Result, anyhow};
use hawser_command::Logging;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The program with the experiments.
const PROGRAM: &str = "hawser-lab";

/// The environment variable with the program that plays the nodes.
const NODES: &str = "HAWSER";

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
    let this = std::env::current_exe().context("cannot find this program")?;
    let beside = this.with_file_name(PROGRAM);
    let mut lab = if beside.is_file() {
        Command::new(beside)
    } else {
        Command::new(PROGRAM)
    };
    lab.args(logging.arguments()).args(&args.arguments);
    if std::env::var_os(NODES).is_none() {
        lab.env(NODES, &this);
    }
    let error = lab.exec();
    Err(match error.kind() {
        ErrorKind::NotFound => missing(&this),
        _ => anyhow!(error).context(format!("cannot start {PROGRAM}")),
    })
}

fn missing(this: &Path) -> anyhow::Error {
    let folder = this.parent().unwrap_or(Path::new("/")).display();
    anyhow!(
        "{PROGRAM} is neither in {folder} nor in PATH: build it with `make build` in Hawser's source tree, \
         or install it from there with `cargo install --path lab`"
    )
}
