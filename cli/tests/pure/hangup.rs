//! SIGHUP to programs that have nothing to reload.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Starts the program, and waits until it logs a line that contains `text`.
fn start(arguments: &[&str], text: &str) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    let mut child = command
        .args(arguments)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    until(&mut log, text);
    (child, log)
}

fn until(log: &mut BufReader<std::process::ChildStderr>, text: &str) {
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert_ne!(
            log.read_line(&mut line).unwrap(),
            0,
            "the program exited without logging {text:?}"
        );
    }
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}

#[test]
fn a_publisher_goes_on() {
    let arguments = [
        "serve",
        "--recording",
        "synthetic",
        "--level",
        "nfov",
        "--frames",
        "2",
        "--congestion",
        "cubic",
    ];
    let (mut publisher, mut log) = start(
        &[&arguments[..], &["--listen", "127.0.0.1:0"]].concat(),
        "publishing",
    );
    signal(&publisher, Signal::SIGHUP);
    until(&mut log, "SIGHUP has no effect");
    signal(&publisher, Signal::SIGTERM);
    assert!(publisher.wait().unwrap().success());
}

#[test]
fn a_viewer_ends_and_says_what_it_saw() {
    let (mut viewer, mut log) = start(&["fetch", "127.0.0.1:1"], "reconnecting");
    signal(&viewer, Signal::SIGHUP);
    until(&mut log, "no frame arrived");
    assert_eq!(viewer.wait().unwrap().code(), Some(1));
}
