//! The `hawser-controller` command, which `hawser controller` starts.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use clap::Parser;
use hawser_controller::CommandLine;
use std::process::ExitCode;

/// Exits with 0 on success, 1 on failure, and 2 if the command line is wrong.
fn main() -> ExitCode {
    let command_line = CommandLine::parse();
    command_line.logging.start();
    hawser_service::exit_code("hawser-controller", command_line.run()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn the_help_says_what_the_program_does_and_has_its_options_apart_from_those_of_the_log() {
        let program = CommandLine::command();
        let about = program.get_about().unwrap().to_string();
        assert_eq!(
            about,
            "Decide the policies of flows, and assign flows to nodes"
        );
        let heading = |id| {
            let mut options = program.get_arguments();
            options
                .find(|option| option.get_id() == id)
                .unwrap()
                .get_help_heading()
        };
        assert_eq!(heading("config"), None);
        assert_eq!(heading("verbose"), Some("Logging"));
    }
}
