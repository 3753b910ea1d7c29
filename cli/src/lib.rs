//! The `hawser` command, which starts the program of each product. The manual pages need its command line.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod keygen;
mod sibling;

use anyhow::Result;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use hawser_service::Logging;
use sibling::COMMANDS;
use std::ffi::OsString;
use std::process::ExitCode;

const ABOUT: &str = "Live volumetric video over unreliable networks";

const LONG_ABOUT: &str = "Live volumetric video over unreliable networks

A publisher streams a recording. Relays send it to many viewers. Agents at the edges of the network replicate its packets onto \
several paths and deduplicate the copies. A viewer measures the quality of experience. The lab runs all of them on one machine.";

/// Returns the command line. The arguments of a command that another program has are taken as they are.
pub fn command() -> Command {
    let hawser = Command::new("hawser")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .max_term_width(100)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true);
    let hawser = Logging::augment_args(hawser)
        .next_help_heading(None::<&str>)
        .about(ABOUT)
        .long_about(LONG_ABOUT)
        .after_help("Example: hawser doctor --for agent");
    let siblings = COMMANDS.iter().map(|of| stub(of.name, of.about));
    hawser
        .subcommands(siblings)
        .subcommand(keygen::Args::augment_args(Command::new("keygen")))
        .subcommand(hawser_doctor::Args::augment_args(Command::new("doctor")))
        .subcommand(stub("help", "Explain a command"))
}

/// Returns a command whose arguments are taken as they are.
fn stub(name: &'static str, about: &'static str) -> Command {
    let arguments = Arg::new("arguments")
        .action(ArgAction::Append)
        .num_args(0..)
        .trailing_var_arg(true)
        .allow_hyphen_values(true)
        .value_parser(value_parser!(OsString));
    Command::new(name)
        .about(about)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(arguments)
}

/// Exits with 0 on success, 1 on failure, and 2 if the command line is wrong. `hawser ctl` has more
/// codes, see docs/ctl.md.
pub fn main() -> ExitCode {
    let arguments = explained(std::env::args_os().collect());
    let matches = command().get_matches_from(&arguments);
    hawser_service::exit_code("hawser", run(&matches, arguments)).into()
}

/// Returns the arguments with `help COMMAND` as `COMMAND --help`. Before `help`, there may be options of the log.
fn explained(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_command = |word: &OsString| word == "help" || COMMANDS.iter().any(|of| word == of.name);
    if let Some(first) = arguments.iter().skip(1).position(is_command)
        && arguments[first + 1] == "help"
    {
        arguments.remove(first + 1);
        arguments.push("--help".into());
    }
    arguments
}

fn run(matches: &ArgMatches, arguments: Vec<OsString>) -> Result<()> {
    let (name, own) = matches.subcommand().expect("a command is required");
    if let Some(sibling) = COMMANDS.iter().find(|sibling| sibling.name == name) {
        return Err(sibling.become_with(after(name, arguments)));
    }
    Logging::from_arg_matches(matches)?.start();
    match name {
        "keygen" => keygen::run(&keygen::Args::from_arg_matches(own)?),
        "doctor" => hawser_doctor::run(&hawser_doctor::Args::from_arg_matches(own)?),
        _ => unreachable!("there is no command {name}"),
    }
}

/// Returns the arguments without the name of this program and that of the command. Only options of the log can come
/// before the latter, and none has such a value.
fn after(command: &str, mut arguments: Vec<OsString>) -> Vec<OsString> {
    arguments.remove(0);
    if let Some(position) = arguments.iter().position(|argument| argument == command) {
        arguments.remove(position);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn help_is_that_of_the_command_after_it() {
        for (typed, expected) in [
            ("hawser help", "hawser --help"),
            ("hawser help ctl flow", "hawser ctl flow --help"),
            ("hawser -v help ctl", "hawser -v ctl --help"),
            ("hawser ctl help flow", "hawser ctl help flow"),
            ("hawser keygen key", "hawser keygen key"),
        ] {
            let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(explained(words(typed)), words(expected));
        }
    }
}
