//! Signals to a program, which the test executable plays.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The variable that makes the test a program which is told to stop, and does not.
const PLAYS: &str = "HAWSER_TEST_PLAYS";

#[test]
fn is_a_program_that_hangs_when_told_to() {
    if std::env::var_os(PLAYS).is_none() {
        return;
    }
    let stop = hawser_service::stop_flag().unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "\nstarted").unwrap();
    while !stop.load(Relaxed) {
        std::thread::yield_now();
    }
    writeln!(out, "told to stop").unwrap();
    // Until its input is closed, as it is when the test fails.
    for line in std::io::stdin().lines() {
        writeln!(out, "heard {}", line.unwrap()).unwrap();
    }
}

fn start() -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "is_a_program_that_hangs_when_told_to",
        ])
        .env(PLAYS, "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out.lines())
}

/// Sends a signal so many times in a row.
fn signal(child: &Child, name: &str, times: usize) {
    let ids = vec![child.id().to_string(); times];
    let sent = Command::new("kill").args(["-s", name]).args(ids).status();
    assert!(sent.unwrap().success());
}

#[test]
fn a_second_signal_ends_a_program_that_hangs() {
    for (first, second, status) in [
        ("TERM", "TERM", 143),
        ("INT", "INT", 130),
        ("TERM", "INT", 130),
    ] {
        let (mut child, mut lines) = start();
        let mut until = |text: &str| assert!(lines.any(|line| line.unwrap() == text), "{text}");
        until("started");
        signal(&child, first, 1);
        until("told to stop");
        // `wait` would close its input first.
        let input = child.stdin.take();
        let ended = loop {
            if let Some(ended) = child.try_wait().unwrap() {
                break ended;
            }
            signal(&child, second, 1);
            std::thread::sleep(Duration::from_millis(100));
        };
        assert_eq!(ended.code(), Some(status));
        drop(input);
    }
}

#[test]
fn a_signal_that_comes_twice_at_once_is_one() {
    loop {
        let (mut child, mut lines) = start();
        let mut says = |text: &str| lines.any(|line| line.unwrap() == text);
        assert!(says("started"));
        let began = Instant::now();
        signal(&child, "TERM", 2);
        let mut input = child.stdin.take().unwrap();
        let goes_on = says("told to stop") && writeln!(input, "me").is_ok() && says("heard me");
        drop(input);
        let status = child.wait().unwrap();
        if goes_on {
            assert_eq!(status.code(), Some(0));
            return;
        }
        // Where a busy machine has put a second between them, they are two.
        assert!(began.elapsed() >= Duration::from_secs(1), "{status}");
    }
}
