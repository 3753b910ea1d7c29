//! `hawser man`: the manual pages, for packages.

use anyhow::Context;
use clap::Command;
use std::fs;
use std::path::PathBuf;

/// Write a manual page for every command
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory for the pages, which is made if it does not exist
    #[arg(long, value_name = "DIRECTORY")]
    out: PathBuf,
}

/// Writes the pages of a program: `hawser.1`, `hawser-agent.1` and so on.
pub(crate) fn write(args: &Args, program: Command) -> anyhow::Result<()> {
    let folder = &args.out;
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(program, folder))
        .with_context(|| format!("cannot write to {}", folder.display()))
}
