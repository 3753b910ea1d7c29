//! Both ends of `hawser lab collect`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

/// How long an end may take to print a line that a test waits for.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running end, and the lines that it prints to standard error.
pub(crate) struct End {
    process: Child,
    lines: Receiver<String>,
}

impl End {
    /// Starts an end.
    pub(crate) fn start(mut command: Command) -> End {
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = lines(process.stderr.take().unwrap());
        End { process, lines }
    }

    /// Waits for a line that contains `text`, and returns it.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(TIMEOUT);
            let line = line.unwrap_or_else(|_| panic!("no line with {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Sends a signal by its name, such as `INT`.
    pub(crate) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        let kill = kill.args(["-s", name, &self.process.id().to_string()]);
        assert!(kill.status().unwrap().success());
    }

    /// Waits until the end has exited. Returns its status, and what it has printed since the last line that was waited
    /// for.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = self.process.wait().unwrap();
        (status, self.lines.iter().map(|line| line + "\n").collect())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn lines(stderr: ChildStderr) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines() {
            // The test may have ended.
            let _ = sender.send(line.unwrap());
        }
    });
    receiver
}

/// A collection in a temporary directory.
pub(crate) struct Collection {
    folder: TempDir,
}

impl Collection {
    /// Creates the key of both ends.
    pub(crate) fn new() -> Collection {
        let folder = tempfile::tempdir().unwrap();
        hawser_io::key_file::generate_media(&folder.path().join("key")).unwrap();
        Collection { folder }
    }

    /// Returns the path of a file, or the directory of drives, `out`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the text of a file in the directory of drives.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path("out").join(name)).unwrap()
    }

    /// Returns the rates of an uplink in a drive, in Mb/s.
    pub(crate) fn rates(&self, drive: &str, path: &str) -> Vec<f64> {
        let text = self.read(drive);
        let rows = text
            .lines()
            .skip(1)
            .map(|row| row.split(',').collect::<Vec<_>>());
        rows.filter(|row| row[1] == path)
            .map(|row| row[2].parse().unwrap())
            .collect()
    }

    /// Returns the command of a receiving end.
    pub(crate) fn receive(&self, listen: &str, key: &Path) -> Command {
        let mut command = lab();
        command.args(["receive", "--listen", listen, "--key"]);
        command.arg(key).arg("--out").arg(self.path("out"));
        command
    }

    /// Returns the command of a sending end.
    pub(crate) fn send(&self, to: &str, seconds: u32, uplinks: &[&str]) -> Command {
        let mut command = lab();
        command.args(["send", "--to", to, "--seconds", &seconds.to_string()]);
        command.arg("--key").arg(self.path("key"));
        for uplink in uplinks {
            command.args(["--uplink", uplink]);
        }
        command
    }
}

/// Waits until a receiving end listens, and returns its address.
pub(crate) fn address(receiver: &End) -> String {
    let line = receiver.wait_for("waiting for the sending end at");
    line.rsplit(' ').next().unwrap().to_owned()
}

fn lab() -> Command {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_hawser-lab"));
    lab.arg("collect");
    lab
}
