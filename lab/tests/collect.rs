//! `hawser lab collect` over the loopback interface.

use hawser_netem::{Drive, Opportunities};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The receiving end, and its address.
struct Receiver {
    process: Child,
    address: String,
}

impl Receiver {
    fn start(key: &Path, out: &Path) -> Receiver {
        let mut command = lab();
        command.args(["receive", "--listen", "127.0.0.1:0", "--key"]);
        command.arg(key).arg("--out").arg(out);
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let address = first.rsplit(' ').next().unwrap().to_owned();
        // What it prints later has to go somewhere.
        std::thread::spawn(move || lines.for_each(drop));
        Receiver { process, address }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn lab() -> Command {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_hawser-lab"));
    lab.arg("collect");
    lab
}

fn key(folder: &TempDir, name: &str) -> std::path::PathBuf {
    let path = folder.path().join(name);
    hawser_io::key_file::generate_media(&path).unwrap();
    path
}

#[test]
fn what_arrives_becomes_a_drive_and_a_trace_for_each_uplink() {
    let folder = tempfile::tempdir().unwrap();
    let (key, out) = (key(&folder, "key"), folder.path().join("out"));
    let mut receiver = Receiver::start(&key, &out);
    let mut send = lab();
    send.args([
        "send",
        "--seconds",
        "2",
        "--uplink",
        "lo=6",
        "--uplink",
        "lo=3",
    ]);
    send.args(["--to", &receiver.address, "--key"]).arg(&key);
    assert!(send.status().unwrap().success());
    assert!(receiver.process.wait().unwrap().success());

    let text = fs::read_to_string(out.join("drive.csv")).unwrap();
    let drive = Drive::parse(&text).unwrap();
    assert_eq!(drive.paths().collect::<Vec<_>>(), [0, 1]);
    for (path, sent) in [("0", 6.0), ("1", 3.0)] {
        let rows = text
            .lines()
            .skip(1)
            .map(|row| row.split(',').collect::<Vec<_>>());
        let rates: Vec<f64> = rows
            .filter(|row| row[1] == path)
            .map(|row| row[2].parse().unwrap())
            .collect();
        assert!(rates.len() >= 15, "{text}");
        let mean = rates.iter().take(20).sum::<f64>() / rates.len().min(20) as f64;
        assert!(
            (0.8 * sent..1.1 * sent).contains(&mean),
            "{mean} of {sent}: {text}"
        );
        let trace = fs::read_to_string(out.join(format!("uplink-{path}.up"))).unwrap();
        assert!(Opportunities::parse(&trace).is_ok());
    }
}

#[test]
fn ends_with_different_keys_do_not_understand_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(&key(&folder, "one"), &folder.path().join("out"));
    let mut send = lab();
    send.args(["send", "--seconds", "1", "--uplink", "lo=1", "--to"]);
    send.args([&receiver.address, "--key"])
        .arg(key(&folder, "other"));
    let output = send.output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("does not answer"), "{error}");
    assert!(!folder.path().join("out").exists());
}
