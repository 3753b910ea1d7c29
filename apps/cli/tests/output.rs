//! What is printed: it controls no terminal, and neither a reader that has left nor a full device makes a command
//! panic.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

fn hawser(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    command.args(arguments);
    command
}

/// A relay that has a status file, and does not run.
struct Relay(tempfile::TempDir);

impl Relay {
    /// Makes the files. The status is of `written_unix_ms`, and has a text of others as the name of the relay and in
    /// its counts.
    fn with(written_unix_ms: u128, foreign: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "name = \"r\"\nstate = \"{}\"\n[[broadcast]]\nname = \"stage\"\nupstream = \"127.0.0.1:9\"\n\
             listen = \"127.0.0.1:14755\"\nkey = \"stage.key\"\n",
            folder.path().display()
        );
        fs::write(folder.path().join("relay.toml"), config).unwrap();
        fs::create_dir(folder.path().join("r")).unwrap();
        let status = serde_json::json!({
            "name": foreign, "version": "0", "pid": 1, "written_unix_ms": written_unix_ms as u64,
            "packets": { foreign: 5 }, "broadcasts": [],
        });
        fs::write(folder.path().join("r/status.json"), status.to_string()).unwrap();
        Relay(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("relay.toml")
    }

    fn status(&self, more: &[&str]) -> Output {
        let file = self.file();
        let arguments = ["relay", "status", "--config", file.to_str().unwrap()];
        hawser(&[&arguments, more].concat()).output().unwrap()
    }
}

fn now_ms() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_millis()
}

const FOREIGN: &str = "closed\nERROR forged: run this\u{1b}[2J\u{9b}31m\u{202e}";

#[test]
fn a_status_with_text_of_others_controls_no_terminal() {
    let relay = Relay::with(now_ms(), FOREIGN);
    for more in [&[][..], &["--json"]] {
        let output = relay.status(more);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("ERROR forged"), "{text}");
        let is_shown = |char: char| char == '\n' || hawser_units::is_shown(char);
        assert!(text.chars().all(is_shown), "{text:?}");
        let forged = text.lines().any(|line| line.starts_with("ERROR"));
        assert!(!forged, "{text}");
    }
}

/// Checks that an error names the file on one line, and controls no terminal.
fn names_the_file_on_one_line(arguments: &[&str]) {
    let output = hawser(arguments).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{text:?}");
    assert!(
        !text.lines().any(|line| line.starts_with("ERROR")),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("closed\\nERROR forged"), "{text}");
}

#[test]
fn an_error_with_the_name_of_a_file_controls_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let damaged = folder.path().join(FOREIGN);
    fs::write(&damaged, "name = \n").unwrap();
    let missing = folder.path().join(format!("missing {FOREIGN}"));
    for file in [missing, damaged] {
        let file = file.to_str().unwrap();
        for arguments in [
            &["publish", "--recording", file][..],
            &["agent", "--config", file],
            &["tunnel", "status", "--config", file],
            &["relay", "--config", file],
            &["controller", "--config", file],
            &["view", "127.0.0.1:1", "--push", "--key", file],
        ] {
            names_the_file_on_one_line(arguments);
        }
    }
}

#[test]
fn the_status_of_what_does_not_run_is_1() {
    let output = Relay::with(now_ms(), "r").status(&[]);
    assert_eq!(output.status.code(), Some(0));
    for more in [&[][..], &["--json"]] {
        let output = Relay::with(1, "r").status(more);
        assert_eq!(output.status.code(), Some(1));
        assert!(!output.stdout.is_empty());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("not running"), "{error}");
    }
}

/// Commands that print something and succeed.
fn printing(relay: &Path) -> Vec<Vec<&str>> {
    let relay = relay.to_str().unwrap();
    vec![
        vec!["relay", "status", "--config", relay],
        vec!["relay", "status", "--config", relay, "--json"],
        vec!["relay", "status", "--config", relay, "--watch"],
        vec!["completion", "bash"],
        vec!["doctor", "--for", "view"],
    ]
}

#[test]
fn a_reader_that_has_left_is_no_failure() {
    let relay = Relay::with(now_ms() + 3_600_000, "r");
    for arguments in printing(&relay.file()) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = hawser(&arguments).stdout(writer).status().unwrap();
        assert_eq!(status.code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn a_full_device_is_an_error_and_no_panic() {
    let relay = Relay::with(now_ms() + 3_600_000, "r");
    let full = || {
        fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap()
    };
    for arguments in printing(&relay.file()) {
        let output = hawser(&arguments)
            .stdout(full())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains("standard output"), "{error}");
    }
    let failure = hawser(&["publish", "--recording", "/no/such"])
        .stderr(full())
        .status();
    assert_eq!(failure.unwrap().code(), Some(1));
}

#[test]
fn a_pipe_that_nobody_reads_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for option in ["--render", "--timeline", "--arrivals"] {
        let pipe = pipe.to_str().unwrap();
        // A viewer ends by itself, whatever becomes of the pipe.
        let arguments = [
            "20",
            env!("CARGO_BIN_EXE_hawser"),
            "view",
            "127.0.0.1:1",
            option,
            pipe,
        ];
        let output = Command::new("timeout").args(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("pipe"), "{error}");
    }
}
