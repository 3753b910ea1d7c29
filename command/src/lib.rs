//! The common command line of the programs: the options of the log, the output, the report of a
//! failure, the exit code, and the arguments that two programs know.

pub mod controller;
mod logging;

pub use logging::Logging;

use std::fmt;
use std::io::{self, ErrorKind, Write};

/// Prints text to standard output. Returns `false` if the reader has closed the pipe, as `head`
/// does, which is no failure.
pub fn print(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

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
            eprintln!("{program}: {}", chain(&error));
            error
                .downcast_ref::<Failure>()
                .map_or(1, |failure| failure.code)
        }
    }
}

/// Formats an error and its causes in one line. A cause that an error message already ends with is
/// not repeated.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
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
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("refused")
            .context("cannot connect: refused")
            .context("no frames");
        assert_eq!(chain(&error), "no frames: cannot connect: refused");
    }
}
