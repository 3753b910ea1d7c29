//! `hawser lab` and `hawser controller` start programs of their own.

use crate::controller;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use tempfile::TempDir;

/// Held by a test: a program that is being written while another test starts a process cannot be
/// executed until that process has closed it.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A copy of `hawser` in a folder of its own, and a folder that is in `PATH`.
struct Installed {
    folder: TempDir,
    in_path: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Installed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let alone = ONE_AT_A_TIME
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        fs::copy(env!("CARGO_BIN_EXE_hawser"), folder.path().join("hawser")).unwrap();
        Installed {
            folder,
            in_path: tempfile::tempdir().unwrap(),
            _alone: alone,
        }
    }

    fn hawser(&self) -> PathBuf {
        self.folder.path().join("hawser")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(self.hawser())
            .args(arguments)
            .env("PATH", self.in_path.path())
            .env_remove("HAWSER")
            .output()
            .unwrap()
    }
}

/// Installs a program that prints `name`, the program of the lab's nodes and its arguments.
fn install(folder: &Path, program: &str, name: &str) {
    let file = folder.join(program);
    let script = format!("#!/bin/sh\necho {name} $HAWSER \"$@\"\nexit 7\n");
    fs::write(&file, script).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

fn assert_started(output: &Output, expected: &str) {
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected);
}

fn assert_missing(output: &Output, words: &[&str]) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(error.lines().count(), 1, "{error}");
    for word in words {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn every_argument_is_passed_to_the_lab() {
    let installed = Installed::new();
    install(installed.in_path.path(), "hawser-lab", "lab");
    let hawser = installed.hawser().display().to_string();
    for (arguments, passed) in [
        (&["lab", "--help"][..], "--help"),
        (&["lab", "--version"], "--version"),
        (
            &["lab", "run", "faults", "-v", "--case=a,b"],
            "run faults -v --case=a,b",
        ),
        (
            &["-vv", "--log-format", "json", "lab", "list"],
            "-v -v --log-format=json list",
        ),
    ] {
        assert_started(&installed.run(arguments), &format!("lab {hawser} {passed}"));
    }
}

#[test]
fn every_argument_is_passed_to_the_controller() {
    let installed = Installed::new();
    install(installed.in_path.path(), "hawser-controller", "started");
    for (arguments, passed) in [
        (
            &["controller", "--config", "controller", "--check"][..],
            "--config controller --check",
        ),
        (
            &["controller", "--config=a", "--log-format=json", "-v"],
            "--config=a --log-format=json -v",
        ),
        (
            &["-vv", "--log-format", "json", "controller", "--openapi"],
            "-vv --log-format json --openapi",
        ),
    ] {
        assert_started(&installed.run(arguments), &format!("started {passed}"));
    }
}

#[test]
fn the_program_beside_hawser_comes_before_that_in_path() {
    let installed = Installed::new();
    for program in ["hawser-lab", "hawser-controller"] {
        install(installed.in_path.path(), program, "other");
        install(installed.folder.path(), program, "own");
    }
    let hawser = installed.hawser().display().to_string();
    assert_started(
        &installed.run(&["lab", "list"]),
        &format!("own {hawser} list"),
    );
    assert_started(
        &installed.run(&["controller", "--openapi"]),
        "own --openapi",
    );
}

#[test]
fn a_missing_lab_is_said_to_be_missing() {
    let installed = Installed::new();
    let folder = installed.folder.path().to_str().unwrap();
    assert_missing(
        &installed.run(&["lab", "list"]),
        &[
            "hawser-lab",
            folder,
            "make build",
            "cargo install --path lab",
        ],
    );
}

#[test]
fn a_missing_controller_is_said_to_be_missing_and_its_command_line_is_explained() {
    let installed = Installed::new();
    let folder = installed.folder.path().to_str().unwrap();
    assert_missing(
        &installed.run(&["controller", "--openapi"]),
        &[
            "hawser-controller",
            folder,
            "the package hawser",
            "make build",
            "cargo install --path control/controller",
        ],
    );
    let help = installed.run(&["controller", "--help"]);
    assert!(help.status.success());
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(
        help.contains("Usage: hawser controller") && help.contains("--rotate-authority <STEP>"),
        "{help}"
    );
    let wrong = installed.run(&["controller", "--no-such-flag"]);
    assert_eq!(wrong.status.code(), Some(2));
}

/// As a supervisor needs it, which knows the process that it has started.
#[test]
fn signals_to_the_process_that_was_started_reach_the_controller() {
    let _alone = Installed::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("controller.toml");
    let state = folder.path().join("state").display().to_string();
    let start = format!("listen = \"127.0.0.1:0\"\nstate = \"{state}\"\n");
    fs::write(&file, &start).unwrap();
    let mut command = Command::new(controller::hawser());
    command.args(["controller", "--config"]).arg(&file);
    let mut controller = command.stderr(Stdio::piped()).spawn().unwrap();
    let process = Pid::from_raw(controller.id().try_into().unwrap());
    let mut log = BufReader::new(controller.stderr.take().unwrap()).lines();
    let mut logs = |text: &str| log.any(|line| line.unwrap().contains(text));
    assert!(logs("controller ready"));
    fs::write(&file, format!("{start}no_such_key = 1\n")).unwrap();
    kill(process, Signal::SIGHUP).unwrap();
    assert!(logs("configuration not reloaded"));
    kill(process, Signal::SIGTERM).unwrap();
    assert!(logs("controller stopping"));
    assert!(controller.wait().unwrap().success());
}
