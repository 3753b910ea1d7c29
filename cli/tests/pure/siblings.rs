//! The commands of `hawser` start programs of their own.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use tempfile::TempDir;

/// Held by a test that installs programs.
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
        copy(
            Path::new(env!("CARGO_BIN_EXE_hawser")),
            &folder.path().join("hawser"),
        );
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

/// Copies a program by another process. A file that this one writes while another thread starts a process cannot be
/// executed until that process has closed it.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-p").args([from, to]).status();
    assert!(copied.unwrap().success());
}

/// Installs a program that prints `name`, the program of the lab's nodes and its arguments.
fn install(folder: &Path, program: &str, name: &str) {
    let written = folder.join(format!("{program}.new"));
    let script = format!("#!/bin/sh\necho {name} $HAWSER \"$@\"\nexit 7\n");
    fs::write(&written, script).unwrap();
    fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
    copy(&written, &folder.join(program));
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
fn every_argument_is_passed_as_it_is() {
    let installed = Installed::new();
    let hawser = installed.hawser().display().to_string();
    for (program, arguments, passed) in [
        ("lab", &["lab", "--help"][..], "--help"),
        ("lab", &["lab", "--version"], "--version"),
        (
            "lab",
            &["lab", "run", "faults", "-v", "--case=a,b"],
            "run faults -v --case=a,b",
        ),
        (
            "lab",
            &["-vv", "--log-format", "json", "lab", "list"],
            "-vv --log-format json list",
        ),
        (
            "controller",
            &["controller", "--config", "controller", "--check"],
            "--config controller --check",
        ),
        (
            "controller",
            &["controller", "--config=a", "--log-format=json", "-v"],
            "--config=a --log-format=json -v",
        ),
        (
            "ctl",
            &["ctl", "--json", "flow", "list"],
            "--json flow list",
        ),
        ("ctl", &["help", "ctl", "flow"], "flow --help"),
        ("agent", &["agent", "--config", "a"], "--config a"),
        ("agent", &["-v", "status", "--json"], "status -v --json"),
        ("agent", &["enrol", "--", "-"], "enrol -- -"),
        ("agent", &["keygen", "a"], "keygen -- a"),
        ("tunnel", &["tunnel", "client", "-v"], "client -v"),
        ("media", &["publish", "--help"], "publish --help"),
        ("media", &["view", "view", "-h"], "view view -h"),
        ("media", &["relay", "status"], "relay status"),
        ("media", &["keygen", "--media", "a"], "keygen -- a"),
        (
            "media",
            &["keygen", "a", "--relay-of", "b"],
            "keygen --relay-of b -- a",
        ),
    ] {
        let folder = installed.in_path.path();
        install(folder, &format!("hawser-{program}"), program);
        let nodes = (program == "lab").then(|| format!("{hawser} "));
        let nodes = nodes.unwrap_or_default();
        let expected = format!("{program} {nodes}{passed}");
        assert_started(&installed.run(arguments), &expected);
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
fn a_missing_program_is_said_to_be_missing() {
    let installed = Installed::new();
    let folder = installed.folder.path().to_str().unwrap();
    let built = ["make build", folder];
    assert_missing(
        &installed.run(&["lab", "list"]),
        &[&built[..], &["hawser-lab", "cargo install --path lab"]].concat(),
    );
    let of_package = [
        "hawser-controller",
        "the package hawser has it",
        "cargo install --path control/controller",
    ];
    assert_missing(
        &installed.run(&["controller", "--openapi"]),
        &[&built[..], &of_package].concat(),
    );
}

/// Returns what a command prints.
fn printed(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_is_that_of_the_program_with_the_words_that_were_typed() {
    let hawser = Path::new(env!("CARGO_BIN_EXE_hawser"));
    let all = printed(hawser, &["--help"]);
    let commands = all.split("Commands:\n").nth(1).unwrap();
    let lines: Vec<&str> = commands
        .lines()
        .take_while(|line| !line.is_empty())
        .collect();
    assert!(lines.len() > 12, "{all}");
    for line in lines {
        let (command, about) = line.trim().split_once("  ").unwrap();
        if command == "help" {
            continue;
        }
        let help = printed(hawser, &[command, "--help"]);
        assert_eq!(help.lines().next(), Some(about.trim()), "{command}");
        assert!(help.contains(&format!("Usage: hawser {command}")), "{help}");
        assert_eq!(printed(hawser, &["help", command]), help);
    }
    let agent = hawser.with_file_name("hawser-agent");
    let help = printed(&agent, &["status", "--help"]);
    assert!(help.contains("Usage: hawser-agent status"), "{help}");
}

/// As a supervisor needs it, which knows the process that it has started.
#[test]
fn signals_to_the_started_process_reach_the_controller() {
    let _alone = Installed::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("controller.toml");
    let state = folder.path().join("state").display().to_string();
    let start = format!("listen = \"127.0.0.1:0\"\nstate = \"{state}\"\n");
    fs::write(&file, &start).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
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
