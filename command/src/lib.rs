//! The common command line of the programs: the options of the log, the output, the report of a
//! failure, and the exit code.

mod logging;

pub use logging::Logging;

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

/// Returns the exit code of a command: 0 on success and 1 on failure. The reason of a failure goes
/// to standard error in one line, after the name of the program.
pub fn exit_code(program: &str, outcome: anyhow::Result<()>) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{program}: {}", chain(&error));
            1
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
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("refused")
            .context("cannot connect: refused")
            .context("no frames");
        assert_eq!(chain(&error), "no frames: cannot connect: refused");
    }
}
