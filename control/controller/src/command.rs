use crate::Args;
use hawser_service::Logging;

#[expect(missing_docs, reason = "the help of the program is that of `Args`")]
#[derive(Debug, clap::Parser)]
#[command(name = "hawser-controller", version, max_term_width = 100)]
pub struct CommandLine {
    /// The options of the log.
    #[command(flatten)]
    pub logging: Logging,
    // The heading of the log's options ends before these, and the help of the last one counts.
    #[command(flatten, next_help_heading = None::<&str>)]
    args: Args,
}

impl CommandLine {
    /// Does what the command line says, as [`run`](crate::run) does.
    pub fn run(&self) -> anyhow::Result<()> {
        crate::run(&self.args)
    }
}
