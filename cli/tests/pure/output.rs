//! The output of commands: it controls no terminal, and neither a reader that has left nor a full device makes a command
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
            &["serve", "--recording", file][..],
            &["agent", "--config", file],
            &["tunnel", "status", "--config", file],
            &["relay", "--config", file],
            &["controller", "--config", file],
            &["view", "127.0.0.1:1", "--key", file],
        ] {
            names_the_file_on_one_line(arguments);
        }
    }
}

#[test]
fn a_wrong_file_is_shown_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.toml");
    fs::write(&wrong, "# the name\nname = \n").unwrap();
    let wrong = wrong.to_str().unwrap();
    for arguments in [
        &["serve", "--recording", wrong][..],
        &["agent", "--config", wrong],
        &["tunnel", "status", "--config", wrong],
        &["relay", "--config", wrong],
        &["doctor", "--config", wrong],
        &["ctl", "--config", wrong, "tenant", "list"],
    ] {
        let output = hawser(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<&str> = error.lines().collect();
        assert!(lines.contains(&"2 | name = "), "{arguments:?}: {error}");
        assert!(error.contains("wrong.toml"), "{arguments:?}: {error}");
        assert!(!error.contains("\\n"), "{arguments:?}: {error}");
    }
}

#[test]
fn no_program_waits_for_ever_for_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
    nix::unistd::mkfifo(&pipe, mode).unwrap();
    let pipe = pipe.to_str().unwrap();
    let key = ["--key", pipe];
    let running = [
        &["agent", "--config", pipe][..],
        &["relay", "--config", pipe],
        &["tunnel", "status", "--config", pipe],
        &["doctor", "--config", pipe],
        &["ctl", "--config", pipe, "node", "list"],
        &[
            "enrol",
            pipe,
            "--controller",
            "https://127.0.0.1:1",
            "--node",
            "n",
        ],
        &["serve", "--recording", pipe],
        &[&["publish", "--recording", "synthetic"][..], &key].concat(),
        &[&["view", "127.0.0.1:1"][..], &key].concat(),
    ]
    .map(|arguments| {
        let mut command = Command::new("timeout");
        let command = command.args(["60", env!("CARGO_BIN_EXE_hawser")]);
        command
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    });
    for program in running {
        let output = program.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("it is a pipe"), "{error}");
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
        vec!["ctl", "completion", "bash"],
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
    let failure = hawser(&["serve", "--recording", "/no/such"])
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
            "fetch",
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

/// Makes the key of a publisher and its viewers. Returns its file.
fn media_key(folder: &tempfile::TempDir) -> String {
    let key = folder.path().join("media.key");
    let key = key.to_str().unwrap();
    let made = hawser(&["keygen", "--media", key]).status().unwrap();
    assert!(made.success());
    key.to_owned()
}

#[test]
fn the_report_of_a_viewer_is_one_json_object() {
    let folder = tempfile::tempdir().unwrap();
    let key = &media_key(&folder);
    let options = ["127.0.0.1:1", "--seconds", "0.2", "--json"];
    for more in [&["fetch"][..], &["view", "--key", key]] {
        let output = hawser(&[more, &options].concat()).output().unwrap();
        // There is no publisher.
        assert_eq!(output.status.code(), Some(1), "{more:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["frames"], 0, "{report}");
        assert_eq!(report["qoe"], serde_json::Value::Null, "{report}");
    }
}

/// Runs a command of which standard error is a terminal, with variables of the environment. Returns what it shows.
fn shown_on_terminal(command: &str, environment: &[(&str, &str)]) -> String {
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", command, "/dev/null"]);
    script
        .env_remove("NO_COLOR")
        .env_remove("RUST_LOG")
        .env("TERM", "xterm");
    let output = script
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_log_has_colours_only_where_they_are_wanted() {
    let command = format!(
        "{} fetch 127.0.0.1:1 --seconds 0.2",
        env!("CARGO_BIN_EXE_hawser")
    );
    let coloured = shown_on_terminal(&command, &[]);
    assert!(coloured.contains("\u{1b}["), "{coloured:?}");
    for environment in [[("NO_COLOR", "1")], [("TERM", "dumb")]] {
        let plain = shown_on_terminal(&command, &environment);
        assert!(plain.contains("WARN"), "{plain:?}");
        assert!(!plain.contains('\u{1b}'), "{environment:?}: {plain:?}");
    }
    let plain = shown_on_terminal(&format!("{command} 2>&1 | cat"), &[]);
    assert!(
        plain.contains("WARN") && !plain.contains('\u{1b}'),
        "{plain:?}"
    );
}

#[test]
fn a_json_log_is_one_object_a_line_whatever_text_is_in_it() {
    let address = format!("{}:1", FOREIGN.replace(':', " "));
    for environment in [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "xterm")] {
        let fetch = [
            "fetch",
            &address,
            "--seconds",
            "0.2",
            "--log-format",
            "json",
        ];
        let output = hawser(&fetch).envs([environment]).output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        let is_shown = |char: char| char == '\n' || hawser_units::is_shown(char);
        assert!(log.chars().all(is_shown), "{log:?}");
        // The error follows, with the name of the program in front.
        let lines: Vec<&str> = log
            .lines()
            .filter(|line| !line.starts_with("hawser: "))
            .collect();
        assert!(!lines.is_empty(), "{log}");
        for line in lines {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(event["level"], "WARN", "{line}");
            assert!(event["fields"]["message"].is_string(), "{line}");
        }
    }
}

#[test]
fn no_command_line_makes_a_publisher_or_viewer_panic() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let key: &'static str = media_key(&folder).leak();
    let source = [
        "--recording",
        "synthetic",
        "--listen",
        "127.0.0.1:0",
        "--seconds",
        "0.1",
    ];
    let options = ["--congestion", "cubic", "--level", "nfov", "--frames", "2"];
    let serve = [&["serve"][..], &source, &options].concat();
    let publish = [&["publish", "--key", key][..], &source].concat();
    let short = ["127.0.0.1:1", "--seconds", "0.1"];
    let fetch = [&["fetch"][..], &short].concat();
    let view = [&["view", "--key", key][..], &short].concat();
    // An option is given once.
    let with = |line: &[&'static str], more: &[&'static str]| -> Vec<&'static str> {
        let mut line = line.to_vec();
        if let Some(at) = line.iter().position(|word| *word == more[0]) {
            line.drain(at..at + 2);
        }
        line.extend(more);
        line
    };
    let folder: &'static str = folder.path().to_str().unwrap().to_owned().leak();
    let mut lines: Vec<Vec<&str>> = Vec::new();
    for more in [
        &["--fps", "1e9"][..],
        &["--fps", "nan"],
        &["--fps", "-0"],
        &["--seconds", "nan"],
        &["--seconds", "-1"],
        &["--seconds", "1e300"],
        &["--frames", "0"],
        &["--frames", "18446744073709551616"],
        &["--level", ""],
        &["--congestion", ""],
        &["--log", folder],
        &["--log", "/dev/full"],
        &["--listen", ""],
        &["--recording", ""],
        &["--recording", folder],
        &["--recording", "/dev/zero"],
        &["--recording", "/dev/null"],
    ] {
        lines.push(with(&serve, more));
        lines.push(with(&publish, more));
    }
    for more in [
        &["--max-rate", "1e30"][..],
        &["--min-rate", "nan"],
        &["--lifetime", "0"],
        &["--pace", "70"],
        &["--stats", "/dev/full"],
        &["--encodings", "0"],
        &["--viewers", "0"],
        &["--metrics", "0.0.0.0:1"],
    ] {
        lines.push(with(&publish, more));
    }
    for more in [
        &["--seconds", "nan"][..],
        &["--frames", "0"],
        &["--pose", "nan,0,0"],
        &["--pose", "1e38,0,0"],
        &["--pose", ""],
        &["--render-fps", "0"],
        &["--save", "/dev/null"],
        &["--snapshot", folder],
        &["--timeline", "/dev/full"],
        &["--in-flight", "0"],
    ] {
        lines.push(with(&fetch, more));
    }
    for more in [
        &["--layers", "0"][..],
        &["--max-points", "0"],
        &["--poses", "/dev/zero"],
        &["--poses", folder],
        &["--timeline", "/dev/full"],
        &["--snapshot", folder],
    ] {
        lines.push([&view[..], more].concat());
    }
    for key in ["/dev/zero", "/dev/null", folder, ""] {
        lines.push([&["view", "--key", key][..], &short].concat());
    }
    for address in ["", ":", "[", "[::1", "127.0.0.1:99999", "a b:1", "%:1"] {
        lines.push(vec!["fetch", address, "--seconds", "0.1"]);
    }
    let broken = OsStr::from_bytes(b"\xff\xfe");
    let texts = lines
        .iter()
        .map(|line| line.iter().map(OsString::from).collect());
    let mut lines: Vec<Vec<OsString>> = texts.collect();
    for option in ["--recording", "--log", "--key"] {
        lines.push(vec!["publish".into(), option.into(), broken.into()]);
    }
    for option in ["--timeline", "--save", "--snapshot"] {
        lines.push(vec![
            "fetch".into(),
            broken.into(),
            option.into(),
            broken.into(),
        ]);
    }
    for line in lines {
        // `timeout` ends a command that hangs, with 124.
        let output = Command::new("timeout")
            .arg("60")
            .arg(env!("CARGO_BIN_EXE_hawser"))
            .args(&line)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        assert!(matches!(code, Some(0..=2)), "{line:?}: {code:?}: {error}");
        assert!(!error.contains("panicked"), "{line:?}: {error}");
    }
}
