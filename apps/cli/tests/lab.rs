//! `hawser lab` starts the program `hawser-lab`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
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

/// Installs a `hawser-lab` that prints `name`, the program of the nodes and its arguments.
fn install(folder: &Path, name: &str) {
    let file = folder.join("hawser-lab");
    let script = format!("#!/bin/sh\necho {name} \"$HAWSER\" \"$@\"\nexit 7\n");
    fs::write(&file, script).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

fn assert_started(output: &Output, expected: &str) {
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected);
}

#[test]
fn every_argument_is_passed_through() {
    let installed = Installed::new();
    install(installed.in_path.path(), "lab");
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
fn the_lab_beside_hawser_comes_before_that_in_path() {
    let installed = Installed::new();
    install(installed.in_path.path(), "other");
    install(installed.folder.path(), "own");
    let hawser = installed.hawser().display().to_string();
    assert_started(
        &installed.run(&["lab", "list"]),
        &format!("own {hawser} list"),
    );
}

#[test]
fn a_missing_lab_is_said_to_be_missing() {
    let installed = Installed::new();
    let output = installed.run(&["lab", "list"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(error.lines().count(), 1, "{error}");
    for words in [
        "hawser-lab",
        installed.folder.path().to_str().unwrap(),
        "make build",
        "cargo install --path lab",
    ] {
        assert!(error.contains(words), "{error}");
    }
}
