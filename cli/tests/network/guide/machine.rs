//! A machine of the guide: a network namespace with directories of its own.

use super::page::{Block, How, Kind};
use hawser_testbed::netns::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use wildmatch::WildMatch;

/// The time that a reader needs for the next command.
const PAUSE: Duration = Duration::from_secs(2);

/// Commands that run until they are ended, and what they say when they are ready.
const READY: [(&str, &str); 7] = [
    ("hawser agent ", "agent running"),
    ("hawser controller ", "controller ready"),
    ("hawser publish ", "publishing by push"),
    ("hawser relay ", "publisher found"),
    ("hawser serve ", "publishing"),
    ("hawser tunnel client ", "session opened"),
    ("hawser tunnel server ", "listening for clients"),
];

/// The time in which every command has to end.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Directories that each machine has for itself: those that Hawser writes, and the file system of the
/// eBPF programs.
const OWN_DIRECTORIES: &str = "set -e
for directory in /run /var/lib /usr/share/doc; do mount -t tmpfs own $directory; done
mount -t bpf own /sys/fs/bpf
mkdir /usr/share/doc/hawser
mount --bind DOCUMENTS /usr/share/doc/hawser
echo ready
exec sleep infinity";

/// A machine, as its user sees it.
pub(super) struct Machine {
    pub(super) name: &'static str,
    /// A process with the machine's network and directories.
    holder: Child,
    home: PathBuf,
    background: Vec<Child>,
    /// Whether the newest commands are in a terminal of their own.
    newest_is_apart: bool,
    /// File with the output of the newest commands.
    output: PathBuf,
    number: usize,
}

impl Machine {
    /// Makes a machine in `namespace`. `homes` has a home for each machine, `documents` is what the
    /// package puts into `/usr/share/doc/hawser`.
    pub(super) fn start(
        name: &'static str,
        namespace: &Namespace,
        homes: &Path,
        documents: &Path,
    ) -> Self {
        let home = homes.join(name);
        fs::create_dir(&home).unwrap();
        let script = OWN_DIRECTORIES.replace("DOCUMENTS", documents.to_str().unwrap());
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "sh", "-c", &script]);
        holder.stdout(Stdio::piped());
        namespace.confine(&mut holder).unwrap();
        let mut holder = holder.spawn().unwrap();
        let mut ready = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(holder.stdout.take().unwrap()),
            &mut ready,
        )
        .unwrap();
        assert_eq!(ready, "ready\n", "a machine with directories of its own");
        Machine {
            name,
            holder,
            output: home.join("nothing"),
            home,
            background: Vec::new(),
            newest_is_apart: false,
            number: 0,
        }
    }

    /// Does what a block says, as a reader would.
    pub(super) fn follow(&mut self, block: &Block) {
        match &block.kind {
            Kind::Commands(How::Here) => self.run(block),
            Kind::Commands(How::Background) => {
                let child = self.spawn(block);
                self.background.push(child);
                self.newest_is_apart = true;
                self.await_ready(block);
                std::thread::sleep(PAUSE);
            }
            Kind::Commands(How::End) => {
                self.end_background();
                self.run(block);
            }
            Kind::Commands(How::WholeMachine) => {}
            Kind::File(file) => fs::write(self.home.join(file), &block.text).unwrap(),
            Kind::Output => self.compare(block),
        }
    }

    fn run(&mut self, block: &Block) {
        self.newest_is_apart = false;
        let mut child = self.spawn(block);
        let code = self.wait(&mut child, block);
        assert_eq!(code, Some(0), "{block}\n{}", self.printed());
    }

    fn spawn(&mut self, block: &Block) -> Child {
        self.number += 1;
        self.output = self.home.join(format!("output-{}", self.number));
        let output = File::create(&self.output).unwrap();
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.holder.id()))
            .args(["--mount", "--net"])
            .arg(format!("--wdns={}", self.home.display()))
            .args(["sh", "-ec", &block.text])
            .env("PATH", self.path())
            .env("HOME", &self.home)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        command.spawn().unwrap()
    }

    /// Returns where programs are found: those that are tested first.
    fn path(&self) -> String {
        let programs = Path::new(env!("CARGO_BIN_EXE_hawser")).parent().unwrap();
        let system = std::env::var("PATH").unwrap();
        let own = self.home.parent().unwrap().join("programs");
        format!(
            "{}:{}:{system}:/usr/sbin:/sbin",
            own.display(),
            programs.display()
        )
    }

    /// Waits until the newest commands say that they are ready, if they do.
    fn await_ready(&self, block: &Block) {
        let start = Instant::now();
        let mut says = READY
            .iter()
            .filter(|(command, _)| block.text.contains(command));
        let ready = says.next().map_or("", |(_, ready)| ready);
        while !self.printed().contains(ready) {
            assert!(start.elapsed() < TIMEOUT, "{block}\n{}", self.printed());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait(&self, child: &mut Child, block: &Block) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < TIMEOUT, "{block}\n{}", self.printed());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Compares what the newest commands have printed, which have to end first if they are the last
    /// ones in a terminal of their own.
    fn compare(&mut self, block: &Block) {
        if self.newest_is_apart {
            let mut child = self.background.pop().expect("it has not been ended");
            self.wait(&mut child, block);
            self.newest_is_apart = false;
        }
        let printed = self.printed();
        let mut lines = printed.lines();
        for expected in block.text.lines() {
            let pattern = WildMatch::new(expected);
            assert!(
                lines.any(|line| pattern.matches(line)),
                "line {}: no {expected:?} in\n{printed}",
                block.line
            );
        }
    }

    fn printed(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Ends what runs, the newest first, as Ctrl-C does.
    fn end_background(&mut self) {
        for mut child in self.background.drain(..).rev() {
            // `sh` has become the last command or waits for it, and both get the signal.
            for process in children(child.id()).into_iter().chain([child.id()]) {
                let _ = kill(Pid::from_raw(process.try_into().unwrap()), Signal::SIGINT);
            }
            child.wait().unwrap();
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for child in self.background.iter_mut().chain([&mut self.holder]) {
            for process in children(child.id()) {
                let _ = kill(Pid::from_raw(process.try_into().unwrap()), Signal::SIGKILL);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the processes that a process has started.
fn children(process: u32) -> Vec<u32> {
    let file = format!("/proc/{process}/task/{process}/children");
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}

/// Writes a program that machines find before the system's.
pub(super) fn add_program(homes: &Path, name: &str, script: &str) {
    let directory = homes.join("programs");
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}
