use crate::Args;
use hawser_command::Logging;

/// The command line of `hawser-controller`.
#[derive(Debug, clap::Parser)]
#[command(name = "hawser-controller", version, max_term_width = 100)]
pub struct CommandLine {
    /// The options of the log.
    #[command(flatten)]
    pub logging: Logging,
    #[command(flatten)]
    args: Args,
}

impl CommandLine {
    /// Does what the command line says, as [`run`](crate::run) does.
    pub fn run(&self) -> anyhow::Result<()> {
        crate::run(&self.args)
    }
}
