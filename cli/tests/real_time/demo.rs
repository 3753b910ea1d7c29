//! The demonstration in a browser: `hawser lab demo`.

use crate::support;
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// The maximum time for the demonstration to end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A machine with a loopback interface. It is removed when this is dropped.
struct Machine(Namespace);

impl Drop for Machine {
    fn drop(&mut self) {
        let removed = self.0.kill_processes().and_then(|()| self.0.delete());
        if let Err(error) = removed {
            eprintln!("{error}");
        }
    }
}

#[test]
fn a_cut_cable_stops_the_side_without_copies() {
    let name = format!("hawser-demo-{}", std::process::id());
    let machine = Machine(Namespace::create(name).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut command = support::lab();
    command.args(["demo", "--page", "127.0.0.1:0", "--seconds", "3600"]);
    command.arg("--out").arg(folder.path().join("live"));
    command.stdout(Stdio::piped());
    let mut demo = Process::spawn(&machine.0, command).unwrap();
    let lines = BufReader::new(demo.stdout().unwrap()).lines();
    let mut lines = lines.map(|line| line.unwrap());
    let address = lines.find(|line| line.starts_with("http://"));
    let address = address.expect("the demonstration prints an address");

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../web/viewer/tests/demo.js");
    let mut watch = machine.0.command("node").unwrap();
    let watched = watch.arg(script).arg(address).arg(folder.path()).output();
    let watched = watched.expect("node");

    println!("{}", String::from_utf8_lossy(&watched.stdout));
    let errors = String::from_utf8_lossy(&watched.stderr);
    assert!(watched.status.success(), "{errors}");
    assert!(demo.stop(TIMEOUT).unwrap().success());
}

#[test]
fn without_a_terminal_the_demonstration_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = support::lab();
    command.args(["demo", "--page", "127.0.0.1:0", "--out"]);
    let output = command.arg(folder.path().join("live")).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed
            .lines()
            .any(|line| line.starts_with("http://127.0.0.1:")),
        "{printed}"
    );
}
