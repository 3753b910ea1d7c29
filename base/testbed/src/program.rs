//! Programs that are played by a test.
//!
//! A test that needs its application as a process cannot rely on a binary that was built at another
//! time. The test executable therefore plays the program: [`of_test`] returns an executable that
//! starts it again, to run the one test that asks for [`arguments`] and behaves as the program
//! does.

use anyhow::{Context, Result, ensure};
use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The environment variable with the arguments of the program, one in each line.
const ARGUMENTS: &str = "HAWSER_TEST_ARGUMENTS";

/// Writes an executable to `folder` that runs the test `name` of the executable `tests` as a
/// program, and returns its path. Its arguments must not contain line breaks.
///
/// # Errors
/// If `folder` cannot be written to.
pub fn of_test(folder: &Path, tests: &Path, name: &str) -> Result<PathBuf> {
    let file_name = tests.file_name().context("tests are in a file")?;
    let program = folder.join(file_name).with_extension("program");
    // The test's report would be part of the program's output, which standard input takes past it.
    let script = format!(
        "#!/bin/sh\nexport {ARGUMENTS}=\"$(printf '%s\\n' \"$@\")\"\n\
         exec '{}' --exact {name} --nocapture --test-threads=1 0>&1 1>/dev/null\n",
        tests.display()
    );
    install(&script, &program)?;
    Ok(program)
}

/// Returns the arguments of the program that the calling test has to play. `None` in a test run,
/// which has nothing to play.
///
/// # Errors
/// If standard output cannot be directed to where the program's output belongs.
pub fn arguments() -> Result<Option<Vec<String>>> {
    let Ok(arguments) = env::var(ARGUMENTS) else {
        return Ok(None);
    };
    nix::unistd::dup2_stdout(std::io::stdin()).context("cannot restore standard output")?;
    nix::unistd::dup2_stdin(File::open("/dev/null")?).context("cannot close standard input")?;
    Ok(Some(arguments.lines().map(str::to_owned).collect()))
}

/// Writes an executable script. Another process does so: a file that is open for writing cannot be
/// executed, and a child that another thread is just starting would keep it open.
fn install(script: &str, program: &Path) -> Result<()> {
    static WRITTEN: AtomicU32 = AtomicU32::new(0);
    let number = WRITTEN.fetch_add(1, Relaxed);
    let new = program.with_extension(format!("{}-{number}", process::id()));
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(&new);
    let mut child = install.stdin(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("the input is a pipe")?;
    input.write_all(script.as_bytes())?;
    drop(input);
    ensure!(child.wait()?.success(), "cannot write {}", new.display());
    fs::rename(&new, program).with_context(|| format!("cannot write {}", program.display()))
}
