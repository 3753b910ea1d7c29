//! The parts that the programs share: their command line with the options of the log, the output, the report of a
//! failure, and the exit code.

mod logging;
mod output;
mod program;
mod signals;

pub use logging::Logging;
pub use output::{
    complain, is_screen, is_stale, print, print_json, print_over, printable_json, show,
    show_status, staleness,
};
pub use program::{command, is_started_by_hawser, main};
pub use signals::{ignore_hangups, stop_flag, stop_flag_of};

use hawser_units::{Line, printable};
use std::error::Error;
use std::fmt;

/// The longest message of an error, in bytes.
const MAX_MESSAGE: usize = 4096;

/// A failure with an exit code of its own.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    error: anyhow::Error,
}

impl Failure {
    /// Creates a failure for which the program exits with this code.
    pub fn new(code: u8, error: anyhow::Error) -> Self {
        Failure { code, error }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Returns the exit code of a command: 0 on success, that of a [`Failure`], and 1 on another one.
/// The reason of a failure goes to standard error in one line, after the name of the program.
pub fn exit_code(program: &str, outcome: anyhow::Result<()>) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            complain(&format!("{program}: {}", chain(&error)));
            error
                .downcast_ref::<Failure>()
                .map_or(1, |failure| failure.code)
        }
    }
}

/// Formats an error and its causes in one line, except for lines of a configuration that are shown. A cause that an
/// error message already ends with is not repeated.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(message) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Returns an error's message in one line: it may contain text of others, such as the name of a file. Only the lines of a
/// configuration that it ends with stay lines.
fn message(error: &(dyn Error + 'static)) -> String {
    let text = error.to_string();
    if error.is::<toml::de::Error>() || error.is::<Box<toml::de::Error>>() {
        return printable(&text).into_owned();
    }
    let own_and_cause = error.source().and_then(|cause| {
        let own = text.strip_suffix(&cause.to_string())?;
        Some((own, message(cause)))
    });
    let (own, cause) = own_and_cause.unwrap_or((&text, String::new()));
    format!("{}{cause}", Line::within(own, MAX_MESSAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_its_exit_code_and_the_message_of_its_error() {
        let error = anyhow::anyhow!("no such flow").context("cannot show it");
        let failure = anyhow::Error::from(Failure::new(3, error));
        assert_eq!(chain(&failure), "cannot show it: no such flow");
        assert_eq!(exit_code("hawser", Err(failure)), 3);
        assert_eq!(exit_code("hawser", Err(anyhow::anyhow!("other"))), 1);
        assert_eq!(exit_code("hawser", Ok(())), 0);
    }

    #[test]
    fn an_error_is_one_line_and_controls_no_terminal() {
        let error = anyhow::anyhow!("closed\n\x1b[31mERROR: run this").context("a\u{202e}b");
        assert_eq!(
            chain(&error),
            "a\\u{202e}b: closed\\n\\u{1b}[31mERROR: run this"
        );
    }

    #[test]
    fn a_wrong_configuration_is_shown_with_its_line() {
        let source = hawser_io::config::Source::of("a.toml".as_ref(), "a = \n");
        let error = source.parse::<toml::Table>().unwrap_err();
        let error = anyhow::Error::from(error).context("not started");
        assert!(chain(&error).lines().count() > 2, "{}", chain(&error));
    }

    #[test]
    fn only_a_configuration_has_lines_in_an_error() {
        let name = "a\nERROR.toml";
        let source = hawser_io::config::Source::of(name.as_ref(), "a = \n");
        let error = source.parse::<toml::Table>().unwrap_err();
        let error = anyhow::Error::from(error).context("not started\nfor b");
        let text = chain(&error);
        assert!(
            text.starts_with("not started\\nfor b: a\\nERROR.toml: "),
            "{text}"
        );
        assert!(text.lines().count() > 2, "{text}");
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("refused")
            .context("cannot connect: refused")
            .context("no frames");
        assert_eq!(chain(&error), "no frames: cannot connect: refused");
    }
}
