//! Programs of the machine that are run for what they do or print, none of which can make its caller wait for ever.

use hawser_units::Line;
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which a program is asked whether it has ended, once it prints nothing more.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A reason why a program did not do what it was run for.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// There is no such program on this machine.
    #[error("`{program}` is not installed")]
    Missing {
        /// The name of the program.
        program: String,
    },
    /// The program cannot be run.
    #[error("cannot run `{program}`")]
    Start {
        /// The name of the program.
        program: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The program says that it has failed.
    #[error("`{program}`: {message}")]
    Failed {
        /// The name of the program.
        program: String,
        /// The errors that it printed.
        message: Line,
    },
    /// The program was killed because it had not ended in time.
    #[error("`{program}` has not ended after {limit:?}")]
    TooSlow {
        /// The name of the program.
        program: String,
        /// The time limit.
        limit: Duration,
    },
}

/// Runs a program with this input, and returns what it prints. Both may have any length.
///
/// # Errors
///
/// If the program is missing, cannot be run, fails, or has not ended after `limit`: it is killed then.
pub fn output(
    command: &mut Command,
    input: &str,
    limit: Duration,
) -> Result<Vec<u8>, ProgramError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let deadline = Instant::now() + limit;
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(ProgramError::Missing { program });
        }
        Err(source) => return Err(ProgramError::Start { program, source }),
    };
    let printed = exchange(&mut child, input.to_owned());
    let printed = printed.map(|pipe| {
        let left = deadline.saturating_duration_since(Instant::now());
        pipe.recv_timeout(left).unwrap_or_default()
    });
    let Some(is_success) = ended(&mut child, deadline) else {
        return Err(ProgramError::TooSlow { program, limit });
    };
    let [output, message] = printed;
    if is_success {
        return Ok(output);
    }
    let message = Line::of_output(&message);
    Err(ProgramError::Failed { program, message })
}

/// Writes the input and reads what is printed as output and as errors, on threads that end with the pipes.
fn exchange(child: &mut Child, input: String) -> [Receiver<Vec<u8>>; 2] {
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    // A program that ends before it has read everything says why.
    thread::spawn(move || stdin.write_all(input.as_bytes()));
    let stdout = child.stdout.take().expect("stdout is a pipe");
    let stderr = child.stderr.take().expect("stderr is a pipe");
    [read(stdout), read(stderr)]
}

fn read(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut printed = Vec::new();
        let _ = pipe.read_to_end(&mut printed);
        let _ = sender.send(printed);
    });
    receiver
}

/// Waits until the program has ended, and returns whether it succeeded; `None` if it had to be killed.
fn ended(child: &mut Child, deadline: Instant) -> Option<bool> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status.success());
        }
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sh(script: &str, input: &str, limit: Duration) -> Result<Vec<u8>, String> {
        let mut command = Command::new("sh");
        let output = output(command.args(["-c", script]), input, limit);
        output.map_err(|error| error.to_string())
    }

    #[test]
    fn input_and_output_have_any_length() {
        let long = "line\n".repeat(100_000);
        assert_eq!(sh("cat", &long, LONG), Ok(long.clone().into_bytes()));
        assert_eq!(sh("echo done", &long, LONG), Ok(b"done\n".to_vec()));
        let errors = sh("cat >&2; echo done", &long, LONG);
        assert_eq!(errors, Ok(b"done\n".to_vec()));
    }

    #[test]
    fn a_failure_is_one_line() {
        let failed = sh("printf 'no\\n\\033[2Jsuch rule\\n' >&2; exit 3", "", LONG);
        assert_eq!(failed, Err("`sh`: no; \\u{1b}[2Jsuch rule".to_owned()));
        let missing = output(&mut Command::new("hawser-no-program"), "", LONG);
        assert!(matches!(missing, Err(ProgramError::Missing { .. })));
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        for script in ["exec sleep 600", "sleep 5 & exec sleep 600"] {
            let error = sh(script, "", Duration::from_millis(50)).unwrap_err();
            assert_eq!(error, "`sh` has not ended after 50ms");
        }
    }
}
