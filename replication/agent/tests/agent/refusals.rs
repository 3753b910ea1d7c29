//! An agent that cannot start prints the reason and what to do in one line, and leaves nothing
//! attached.

use crate::rig::{Rig, reverse_path_filter, xdp};
use crate::support::hawser;
use crate::support::program::hawser_in;
use hawser_testbed::topology::{Lab, Topology};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use tempfile::TempDir;

/// The configuration of the agents that cannot start.
const CONFIGURATION: &str = r#"
[node]
name = "refused"
state = "STATE"
pins = "PINS"
generic_xdp = false
transit = ["source0"]

[[peer]]
name = "peer"
authenticate = false

[[path]]
number = 1
interface = "path1"
local = "10.1.1.1"
remote = "10.1.1.2"

[[path]]
number = 2
interface = "path2"
local = "10.1.2.1"
remote = "10.1.2.2"

[[send]]
flow = 1
peer = "peer"
select = { destination = "10.0.2.0/24" }
paths = [1, 2]

[[receive]]
flow = 3
peer = "peer"
"#;

struct Setup {
    lab: Lab,
    directory: TempDir,
}

impl Setup {
    fn new() -> Self {
        let lab = Topology {
            paths: 2,
            ..Topology::default()
        }
        .build()
        .unwrap();
        let directory = tempfile::tempdir().unwrap();
        // So that an agent that is not root gets as far as needing root.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Setup { lab, directory }
    }

    /// Runs an agent at the ingress edge, and returns its error.
    fn refusal(
        &self,
        change: impl FnOnce(String) -> String,
        command: impl FnOnce(&mut Command),
    ) -> String {
        let file = self.directory.path().join("edge.toml");
        let text = CONFIGURATION
            .replace("STATE", self.directory.path().to_str().unwrap())
            .replace("PINS", self.lab.pins("refused").to_str().unwrap());
        fs::write(&file, change(text)).unwrap();
        let mut agent = Command::new(hawser());
        command(&mut agent);
        agent
            .args(["agent", "--config"])
            .arg(&file)
            .env("RUST_LOG", "off");
        self.lab.ingress().confine(&mut agent).unwrap();
        let output = agent.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), error.lines().count()),
            (Some(1), 1),
            "{error}"
        );
        error
    }
}

fn assert_says(refusal: &str, words: &[&str]) {
    assert!(
        words.iter().all(|words| refusal.contains(words)),
        "{words:?}: {refusal}"
    );
}

#[test]
fn an_interface_without_native_xdp() {
    let refusal = Setup::new().refusal(|text| text.replace("source0", "lo"), |_| ());
    assert_says(
        &refusal,
        &["lo", "no native XDP", "remove `generic_xdp = false`"],
    );
}

/// A start that fails puts back what it has changed.
#[test]
fn a_strict_reverse_path_filter_stays_strict() {
    let setup = Setup::new();
    let ingress = setup.lab.ingress();
    ingress
        .sysctl("net.ipv4.conf.path1.rp_filter", "1")
        .unwrap();
    let taken = |text: String| text.replace("\"path2\"", "\"lo\"");
    let refusal = setup.refusal(taken, |_| ());
    assert_says(&refusal, &["lo", "no native XDP"]);
    assert_eq!(reverse_path_filter(ingress, "path1"), "1");
}

#[test]
fn an_interface_whose_xdp_is_taken() {
    let rig = Rig::new();
    let setup = Setup {
        lab: rig.lab,
        directory: tempfile::tempdir().unwrap(),
    };
    let refusal = setup.refusal(|text| text, |_| ());
    assert_says(
        &refusal,
        &["source0", "already has an XDP program", "bpftool net"],
    );
    assert!(!setup.lab.pins("refused").exists());
    let devices = setup
        .lab
        .addressing()
        .paths
        .iter()
        .map(|path| &path.near.device);
    devices.for_each(|device| assert_eq!(xdp(setup.lab.ingress(), device), None));
}

#[test]
fn no_bpf_file_system() {
    let setup = Setup::new();
    let elsewhere = setup.directory.path().join("pins");
    let pins = setup.lab.pins("refused");
    let refusal = setup.refusal(
        |text| text.replace(pins.to_str().unwrap(), elsewhere.to_str().unwrap()),
        |_| (),
    );
    assert_says(
        &refusal,
        &[
            "is not in a bpf file system",
            "mount -t bpf bpf /sys/fs/bpf",
        ],
    );
}

#[test]
fn not_root() {
    const NOBODY: u32 = 65_534;
    let setup = Setup::new();
    let root = setup.directory.path();
    let tests = root.join("tests");
    fs::copy(std::env::current_exe().unwrap(), &tests).unwrap();
    let copy = hawser_in(root, &tests);
    let own_state = root.join("state");
    fs::create_dir(&own_state).unwrap();
    chown(&own_state, Some(NOBODY), Some(NOBODY)).unwrap();
    // Entering the namespace needs root, so the privileges are dropped afterwards.
    let as_nobody = |command: &mut Command| {
        *command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(&copy);
    };
    let only_sending = |text: String| text.split("[[receive]]").next().unwrap().to_owned();
    let state = format!("state = {root:?}");
    let refusal = setup.refusal(
        |text| only_sending(text).replace(&state, &format!("state = {own_state:?}")),
        as_nobody,
    );
    assert_says(&refusal, &["loading eBPF programs needs root"]);
    let refusal = setup.refusal(only_sending, as_nobody);
    assert_says(&refusal, &["cannot create", "root can write everywhere"]);
}
