//! Runs a test program, and ends it when it has printed nothing for a long time: a test that waits for
//! ever must not keep the others from running.

use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// The time without output after which a test program is ended. The slowest test takes a third of it.
const LIMIT: Duration = Duration::from_secs(300);

/// The interval at which a program that holds its output open is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The same for a program that has closed its output, which is usually about to exit.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The time without output after which all of a program that has exited has arrived.
const DRAIN: Duration = Duration::from_millis(500);

/// The longest time for that: another process may go on writing.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// The argument of this program that makes it the runner of a test program.
pub(crate) const RUNNER: &str = "run-test";

/// Returns the path of this program. Unlike that of the process, it stays when cargo replaces the file.
pub(crate) fn this_program() -> Result<String> {
    let this = std::env::args_os()
        .next()
        .context("no path of this program")?;
    let this = std::path::absolute(this)?;
    let this = this.to_str();
    Ok(this
        .context("the path of this program is not UTF-8")?
        .into())
}

/// Runs `program` with cargo's runner protocol: its path and its arguments. Returns its exit code, or
/// failure if it was ended.
pub(crate) fn run(program: &[String]) -> Result<ExitCode> {
    let (program, arguments) = program.split_first().context("no test program is given")?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(match ended_after(command, LIMIT)? {
        Some(status) => code(status),
        None => {
            let seconds = LIMIT.as_secs();
            // The name of the test that hangs may be on a line without an end.
            println!(
                "\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; ended {program}, which printed nothing for {seconds} s"
            );
            println!("test {program} ... FAILED");
            ExitCode::FAILURE
        }
    })
}

/// A program that was ended by a signal has no code, so the signal is printed.
fn code(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        println!("\nthe test program was ended by signal {signal}");
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Runs a command, and passes its output on. Returns its status, or none if it printed nothing for
/// `limit` and was killed.
fn ended_after(mut command: Command, limit: Duration) -> Result<Option<ExitStatus>> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    let (sign, signs) = sync_channel(1);
    let stdout = child.stdout.take().context("stdout is a pipe")?;
    let stderr = child.stderr.take().context("stderr is a pipe")?;
    pass_on(stdout, std::io::stdout(), sign.clone());
    pass_on(stderr, std::io::stderr(), sign);
    let mut last_sign = Instant::now();
    loop {
        match signs.recv_timeout(POLL_INTERVAL) {
            Ok(()) => last_sign = Instant::now(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(EXIT_POLL_INTERVAL),
        }
        if let Some(status) = child.try_wait()? {
            drain(&signs);
            return Ok(Some(status));
        }
        if last_sign.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
    }
}

/// Copies a pipe to `to`, with a sign for every piece. The sign is dropped at the end of the pipe.
fn pass_on(
    mut pipe: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    sign: SyncSender<()>,
) {
    thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(length @ 1..) = pipe.read(&mut buffer) {
            // The program goes on if nobody reads its output.
            let _ = to.write_all(&buffer[..length]).and_then(|()| to.flush());
            let _ = sign.try_send(());
        }
    });
}

/// Waits until all output is passed on. Another process that holds the pipe is not waited for.
fn drain(signs: &Receiver<()>) {
    let end = Instant::now() + DRAIN_LIMIT;
    while Instant::now() < end && signs.recv_timeout(DRAIN).is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const FOREVER: Duration = Duration::MAX;

    #[test]
    fn silent_program_is_ended() {
        for script in [
            "exec sleep 1000",
            "echo begun; exec sleep 1000",
            "exec >&- 2>&-; exec sleep 1000",
        ] {
            let ended = ended_after(shell(script), Duration::from_millis(100)).unwrap();
            assert_eq!(ended, None, "{script}");
        }
    }

    #[test]
    fn status_of_a_program_is_passed_on() {
        for (script, expected) in [("exit 0", 0), ("exit 101", 101)] {
            let status = ended_after(shell(script), FOREVER).unwrap().unwrap();
            assert_eq!(status.code(), Some(expected));
        }
    }

    #[test]
    fn process_that_keeps_the_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("sleep 1000 & echo $! >{}", file.display());
        let status = ended_after(shell(&script), FOREVER).unwrap().unwrap();
        let pid = std::fs::read_to_string(file).unwrap();
        let killed = Command::new("kill").arg(pid.trim()).status().unwrap();
        assert!(status.success() && killed.success());
    }
}
