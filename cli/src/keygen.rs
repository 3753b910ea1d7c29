//! `hawser keygen`, which two products have.

use crate::sibling::{AGENT, MEDIA, Program};
use std::ffi::OsString;
use std::path::PathBuf;

/// Generate a secret key for two nodes, or for a broadcast
#[derive(clap::Args)]
#[command(after_help = "Example: hawser keygen --media stage.key")]
pub(crate) struct Args {
    /// File to write, which must not exist yet. Only its owner can read it. Copy it to the other
    /// node, or to the viewers
    file: PathBuf,
    /// Generate the secret of a broadcast, for `hawser publish` and `hawser view`
    #[arg(long)]
    media: bool,
    /// Write what a relay needs of this secret of a broadcast. It does not decrypt media
    #[arg(long, value_name = "FILE", conflicts_with = "media")]
    relay_of: Option<PathBuf>,
}

/// Replaces this process by the program that makes such a key. Returns only if that fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut arguments: Vec<OsString> = vec!["keygen".into()];
    if let Some(media) = &args.relay_of {
        arguments.extend(["--relay-of".into(), media.into()]);
    }
    arguments.extend(["--".into(), (&args.file).into()]);
    let program: &Program = match args.media || args.relay_of.is_some() {
        true => &MEDIA,
        false => &AGENT,
    };
    Err(program.become_with("hawser", arguments))
}
