//! A program from its command line to its exit code.

use crate::{Logging, exit_code};
use clap::{Args, Command, FromArgMatches};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// Returns the command line of the program `name`: its own arguments, and the options of the log.
pub fn command<A: Args>(name: &'static str) -> Command {
    let program = Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .max_term_width(100);
    // The heading of the log's options ends before the program's own.
    A::augment_args(Logging::augment_args(program).next_help_heading(None::<&str>))
}

/// Runs the program `name` with the arguments of this process, of which the first one is the name by which it was started.
/// Exits with 0 on success, 1 or the code of a [`Failure`](crate::Failure) on failure, and 2 if the command line is wrong.
///
/// `hawser` starts programs by the name of its own command, such as `hawser ctl`. Usage and errors are then those of `hawser`.
pub fn main<A: Args>(name: &'static str, run: impl FnOnce(A) -> anyhow::Result<()>) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let started_as = started_as(arguments.first().map_or(name.as_ref(), OsString::as_os_str));
    let matches = command::<A>(name).get_matches_from(arguments);
    let parsed = Logging::from_arg_matches(&matches)
        .and_then(|logging| Ok((logging, A::from_arg_matches(&matches)?)));
    let (logging, args) = parsed.unwrap_or_else(|error| error.exit());
    logging.start();
    exit_code(&started_as, run(args)).into()
}

/// Returns whether `hawser` has started this program.
pub fn is_started_by_hawser() -> bool {
    std::env::args_os()
        .next()
        .is_some_and(|name| started_as(&name) == "hawser")
}

/// Returns the name of a program without its folder and command.
fn started_as(name: &OsStr) -> String {
    let file = Path::new(name).file_name().unwrap_or(name);
    let name = file.to_string_lossy();
    name.split(' ').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Args)]
    struct Watch {
        /// The track to watch
        #[arg(long)]
        track: String,
    }

    fn usage(name: &str) -> String {
        let mut program = command::<Watch>("hawser-watch");
        let error = program.try_get_matches_from_mut([name, "--help"]);
        error.unwrap_err().to_string()
    }

    #[test]
    fn the_usage_has_the_command_that_started_the_program() {
        for (name, shown) in [
            ("hawser watch", "Usage: hawser watch [OPTIONS] --track"),
            (
                "/usr/bin/hawser-watch",
                "Usage: hawser-watch [OPTIONS] --track",
            ),
        ] {
            assert!(usage(name).contains(shown), "{}", usage(name));
        }
        assert_eq!(started_as("hawser watch".as_ref()), "hawser");
        assert_eq!(started_as("/usr/bin/hawser-watch".as_ref()), "hawser-watch");
    }

    #[test]
    fn options_of_the_log_are_apart_from_those_of_the_program() {
        let program = command::<Watch>("hawser-watch");
        let heading = |id: &str| {
            let mut options = program.get_arguments();
            let option = options.find(|option| option.get_id() == id);
            option.unwrap().get_help_heading()
        };
        assert_eq!(heading("track"), None);
        assert_eq!(heading("verbose"), Some("Logging"));
    }
}
