//! The command line of `hawser-agent`.

use crate::{Args, enrol, experience, generate_key, status};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// Replicate and deduplicate packets on this node
///
/// Runs at each edge of the network and needs root. SIGHUP makes it reload flows, policies and
/// keys.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hawser agent --config node.toml")]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true
)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    agent: Option<Args>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Status(status::Args),
    Enrol(enrol::Args),
    Report(experience::Args),
    /// Generate a secret key for two nodes
    #[command(after_help = "Example: hawser keygen pair.key")]
    Keygen {
        /// File to write, which must not exist yet. Only its owner can read it. Copy it to the other node
        file: PathBuf,
    },
}

/// Runs the agent, or one of the commands beside it.
///
/// # Errors
/// If the command fails.
pub fn execute(command_line: &CommandLine) -> Result<()> {
    match (&command_line.command, &command_line.agent) {
        (Some(Command::Status(args)), _) => status::run(args),
        (Some(Command::Enrol(args)), _) => enrol::run(args),
        (Some(Command::Report(args)), _) => experience::run(args),
        (Some(Command::Keygen { file }), _) => {
            generate_key(file).with_context(|| format!("cannot write {}", file.display()))
        }
        (None, Some(args)) => crate::run(args),
        (None, None) => bail!("--config FILE is missing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<CommandLine, clap::Error> {
        use clap::FromArgMatches;
        let program = hawser_service::command::<CommandLine>("hawser-agent");
        let arguments = [&["hawser-agent"], arguments].concat();
        CommandLine::from_arg_matches(&program.try_get_matches_from(arguments)?)
    }

    #[test]
    fn the_command_line_is_well_formed() {
        hawser_service::command::<CommandLine>("hawser-agent").debug_assert();
    }

    #[test]
    fn only_the_agent_itself_needs_its_configuration() {
        let agent = parse(&["--config", "a.toml", "--check"]).unwrap();
        assert!(agent.command.is_none() && agent.agent.unwrap().check);
        let keygen = parse(&["keygen", "pair.key"]).unwrap();
        assert!(matches!(keygen.command, Some(Command::Keygen { .. })));
        for wrong in [&[][..], &["--check"], &["--check", "keygen", "pair.key"]] {
            assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong:?}");
        }
    }
}
