//! Test programs: built once by cargo, and then run side by side.

use crate::silence;
use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::camino::Utf8PathBuf;
use cargo_metadata::{Artifact, CompilerMessage, Message, Metadata};
use std::cmp::Reverse;
use std::fs;
use std::io::BufReader;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

/// The variable with the seed of the property tests, and the seed unless it is set: a change that passes
/// here passes elsewhere.
const PROPTEST_SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "1");

/// A test program.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// The name of its target, such as the file in `tests/`.
    pub(crate) name: String,
    /// The folder of its package, in which it runs.
    pub(crate) folder: Utf8PathBuf,
    pub(crate) executable: Utf8PathBuf,
}

impl Program {
    /// Returns whether its package is in a folder of the tree.
    pub(crate) fn is_of(&self, workspace: &Metadata, folder: &str) -> bool {
        self.folder
            .starts_with(workspace.workspace_root.join(folder))
    }
}

/// How programs are run.
pub(crate) struct Way<'a> {
    /// The words before each program, to become root.
    pub(crate) before: &'a [&'a str],
    /// The arguments of each program.
    pub(crate) arguments: &'a [String],
    /// The number of programs that run at the same time.
    pub(crate) at_once: usize,
}

/// Gives the tests of a command their seed.
pub(crate) fn seed(command: &mut Command) {
    let (name, seed) = PROPTEST_SEED;
    if std::env::var_os(name).is_none() {
        command.env(name, seed);
    }
}

/// Builds with a command of cargo that tests, prints its diagnostics, and returns the test programs in the order in which
/// they were built.
///
/// # Errors
/// If the build fails or has warnings.
pub(crate) fn build(mut cargo: Command) -> Result<Vec<Program>> {
    cargo.args(["--no-run", "--message-format=json"]);
    let mut build = cargo
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {cargo:?}"))?;
    let output = build.stdout.take().context("the output is a pipe")?;
    let mut programs = Vec::new();
    let mut diagnostics = 0;
    for message in Message::parse_stream(BufReader::new(output)) {
        match message? {
            Message::CompilerArtifact(artifact) => programs.extend(program(artifact)?),
            Message::CompilerMessage(CompilerMessage { message, .. }) => {
                diagnostics += 1;
                eprint!("{}", message.rendered.unwrap_or_default());
            }
            _ => {}
        }
    }
    ensure!(build.wait()?.success(), "the tests cannot be built");
    ensure!(diagnostics == 0, "the tests are built with warnings");
    Ok(programs)
}

fn program(artifact: Artifact) -> Result<Option<Program>> {
    let (true, Some(executable)) = (artifact.profile.test, artifact.executable) else {
        return Ok(None);
    };
    let manifest = artifact.manifest_path;
    Ok(Some(Program {
        name: artifact.target.name,
        folder: manifest
            .parent()
            .context("a manifest without a folder")?
            .into(),
        executable,
    }))
}

/// Runs programs, several at a time, those with the most code first because they take the longest, and passes the output of each to `finished` when it has ended, with whether it succeeded.
///
/// # Errors
/// If one cannot be started.
pub(crate) fn run(
    programs: &[Program],
    way: &Way<'_>,
    finished: impl Fn(&Program, &str, bool) + Sync,
) -> Result<()> {
    let this = silence::this_program()?;
    let bytes = |program: &&Program| fs::metadata(&program.executable).map_or(0, |file| file.len());
    let mut programs: Vec<_> = programs.iter().collect();
    programs.sort_by_key(|program| Reverse(bytes(program)));
    let next = Mutex::new(programs.into_iter());
    let one_after_the_other = || -> Result<()> {
        loop {
            // Not in the condition of a loop, where it would be locked while the program runs.
            let program = next.lock().expect("no thread panics").next();
            let Some(program) = program else {
                return Ok(());
            };
            let words = [
                way.before,
                &[&this, silence::RUNNER, program.executable.as_str()],
            ]
            .concat();
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).args(way.arguments);
            // As cargo does, for tests that read files of their package.
            command
                .current_dir(&program.folder)
                .env("CARGO_MANIFEST_DIR", &program.folder);
            seed(&mut command);
            let output = command.stdin(Stdio::null()).output();
            let output = output.with_context(|| format!("cannot run {command:?}"))?;
            let text = [output.stdout, output.stderr].concat();
            finished(
                program,
                &String::from_utf8_lossy(&text),
                output.status.success(),
            );
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..way.at_once)
            .map(|_| scope.spawn(one_after_the_other))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => bail!("a thread that runs tests panicked"),
            })
    })
}
