//! The set-up script on machines that are not this one: with an old Rust, another distribution, or
//! no network.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// The programs that the script itself uses.
const TOOLS: [&str; 9] = ["sh", "sed", "cut", "sort", "tr", "id", "grep", "ls", "env"];

/// A machine whose only programs are [`TOOLS`] and those that a test adds.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for tool in TOOLS {
            let found = ["/usr/bin", "/bin"]
                .map(|bin| Path::new(bin).join(tool))
                .into_iter()
                .find(|path| path.exists())
                .unwrap();
            symlink(found, directory.path().join(tool)).unwrap();
        }
        Machine(directory)
    }

    /// Adds a program, a shell script.
    fn with(self, name: &str, script: &str) -> Self {
        let path = self.0.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn with_rust(self, version: &str) -> Self {
        self.with("cargo", "").with(
            "rustc",
            &format!("echo 'rustc {version} (123456789 2026-01-01)'"),
        )
    }

    /// Adds a package manager that writes its arguments to `calls`, and then runs `script`.
    fn with_manager(self, name: &str, script: &str) -> Self {
        let calls = self.calls();
        self.with(name, &format!("echo \"$@\" >>{calls}\n{script}"))
    }

    fn calls(&self) -> String {
        self.0.path().join("calls").display().to_string()
    }

    fn set_up(&self, what: &[&str]) -> Output {
        Command::new("/bin/sh")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/setup.sh"))
            .args(what)
            .env_clear()
            .env("PATH", self.0.path())
            .output()
            .unwrap()
    }

    /// Returns what the script prints when it fails.
    fn refusal(&self) -> String {
        self.refusal_of(&[])
    }

    /// As [`refusal`](Machine::refusal), of the set-up for another target.
    fn refusal_of(&self, what: &[&str]) -> String {
        let output = self.set_up(what);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn an_old_rust_is_refused_before_anything_is_installed() {
    for (version, says) in [
        ("1.90.0", "Rust 1.90 is too old"),
        ("unknown", "cannot understand"),
    ] {
        let machine = Machine::new()
            .with_rust(version)
            .with_manager("apt-get", "");
        let refusal = machine.refusal();
        assert!(refusal.contains(says), "{refusal}");
        assert!(!Path::new(&machine.calls()).exists(), "{version}");
    }
    let machine = Machine::new().with_manager("apt-get", "");
    assert!(machine.refusal().contains("no Rust: install Rust 1.91"));
    assert!(!Path::new(&machine.calls()).exists());
}

#[test]
fn on_fedora_the_command_for_its_packages_is_printed() {
    let machine = Machine::new().with_rust("1.91.1").with_manager("dnf", "");
    let refusal = machine.refusal();
    assert!(refusal.contains("dnf install"), "{refusal}");
    assert!(refusal.contains("pkgconf-pkg-config"), "{refusal}");
    assert!(!refusal.contains("libelf-dev"), "{refusal}");
    assert!(!Path::new(&machine.calls()).exists());
}

#[test]
fn without_a_network_the_missing_packages_are_named() {
    let machine = Machine::new()
        .with_rust("1.95.0")
        .with("sudo", "\"$@\"")
        .with_manager("apt-get", "exit 100");
    let refusal = machine.refusal();
    assert!(refusal.contains("cannot install. Missing: "), "{refusal}");
    assert!(refusal.contains("ffmpeg"), "{refusal}");
    let calls = fs::read_to_string(machine.calls()).unwrap();
    assert!(calls.starts_with("update -qq\ninstall -y"), "{calls}");
}

#[test]
fn a_service_is_as_it_was_after_an_installation_that_failed() {
    let machine = Machine::new()
        .with_rust("1.95.0")
        .with("sudo", "\"$@\"")
        .with_manager("apt-get", "[ \"$1\" = update ] || exit 100")
        .with_manager("systemctl", "");
    let refusal = machine.refusal_of(&["checks"]);
    assert!(refusal.contains("cannot install. Missing: "), "{refusal}");
    let calls = fs::read_to_string(machine.calls()).unwrap();
    let calls: Vec<&str> = calls.lines().collect();
    let position = |call: &str| calls.iter().position(|line| line.starts_with(call));
    let expected = ["--quiet mask etcd", "install -y", "--quiet unmask etcd"];
    let [mask, install, unmask] = expected.map(|call| position(call).unwrap());
    assert!(mask < install && install < unmask, "{calls:?}");
}

#[test]
fn where_nothing_is_missing_nothing_is_installed() {
    // As `make test` has run the script, this machine has everything.
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/setup.sh"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}
