//! A track of a controller, from the operator's commands to what a viewer receives.

use hawser_controller::{Config, Server};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The controller, its operator, and the folder in which all run.
struct Rig {
    folder: TempDir,
    server: Server,
    runtime: Runtime,
    controller: String,
}

impl Rig {
    /// Starts a controller with the nodes car, desk and wall, and a track that car writes.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::new().unwrap();
        let mut config = Config {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            state: folder.path().join("state"),
            ..Config::default()
        };
        config.nodes.report_every_ms = 1000;
        let server = runtime.block_on(Server::start(config)).unwrap();
        let controller = format!("https://{}", server.address());
        let settings = format!(
            "controllers = [\"{controller}\"]\nauthority = \"state/authority.pem\"\ntoken_file = \"state/admin.token\"\n"
        );
        fs::write(folder.path().join("ctl.toml"), settings).unwrap();
        let rig = Rig {
            folder,
            server,
            runtime,
            controller,
        };
        rig.succeeds("ctl tenant create acme");
        for node in ["car", "desk", "wall"] {
            rig.succeeds(&format!(
                "ctl node enrol {node} --tenant acme --out {node}.token"
            ));
            let controller = &rig.controller;
            rig.succeeds(&format!(
                "enrol {node}.token --node {node} --controller {controller}"
            ));
        }
        rig.succeeds(
            "ctl track create stage --tenant acme --writer car --reader desk --reader wall",
        );
        rig
    }

    fn hawser(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
        command
            .args(line.split_whitespace())
            .current_dir(self.folder.path())
            .env("HAWSER_CTL_CONFIG", self.folder.path().join("ctl.toml"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn succeeds(&self, line: &str) {
        let output = self.hawser(line).output().unwrap();
        assert!(output.status.success(), "{line}: {}", errors(&output));
    }

    /// Runs a command that must fail, and returns its errors.
    fn fails(&self, line: &str) -> String {
        let output = self.hawser(line).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}");
        errors(&output)
    }

    /// Returns the options of a node that has the secret from the controller.
    fn track_of(&self, node: &str) -> String {
        format!(
            "--track stage --node {node} --controller {}",
            self.controller
        )
    }

    fn publishes(&self, node: &str) -> String {
        let track = self.track_of(node);
        format!("publish {track} --recording synthetic --level nfov --fps 10 --listen 127.0.0.1:0")
    }

    fn views(&self, node: &str, publisher: &str, seconds: u32) -> String {
        let track = self.track_of(node);
        format!("view {publisher} {track} --seconds {seconds}")
    }

    fn stop_controller(self) -> TempDir {
        self.runtime.block_on(self.server.stop());
        self.folder
    }
}

/// A publisher, which is killed at the end.
struct Publisher {
    process: Child,
    address: String,
    /// Kept open, so that the publisher can go on writing.
    _errors: BufReader<ChildStderr>,
}

impl Publisher {
    fn start(mut command: Command) -> Self {
        let mut process = command.spawn().unwrap();
        let mut errors = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("address=") {
            line.clear();
            assert_ne!(errors.read_line(&mut line).unwrap(), 0, "no address");
        }
        let (_, address) = line.trim().split_once("address=").unwrap();
        Publisher {
            address: address.to_owned(),
            process,
            _errors: errors,
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_removed_reader_sees_nothing_and_others_continue() {
    let rig = Rig::new();
    let controller = &rig.controller;
    let said = rig.fails(&format!(
        "enrol desk.token --node car --controller {controller}"
    ));
    assert!(said.contains("name another directory"), "{said}");
    let publisher = Publisher::start(rig.hawser(&rig.publishes("car")));
    let [desk, wall] = ["desk", "wall"].map(|node| {
        let view = rig.views(node, &publisher.address, 10);
        rig.hawser(&view).spawn().unwrap()
    });
    std::thread::sleep(std::time::Duration::from_secs(2));
    rig.succeeds("ctl track set stage --remove wall");
    let wall = wall.wait_with_output().unwrap();
    assert_eq!(wall.status.code(), Some(1));
    let said = errors(&wall);
    assert!(
        said.contains("session opened")
            && said.contains("no track stage that wall may publish, watch or relay"),
        "{said}"
    );
    let said = rig.fails(&rig.publishes("desk"));
    assert!(said.contains("--add-writer desk"), "{said}");
    // The publisher and the reader ask every second.
    std::thread::sleep(std::time::Duration::from_secs(2));
    // The stream does without the controller from here on.
    let _folder = rig.stop_controller();
    let desk = desk.wait_with_output().unwrap();
    let summary = String::from_utf8_lossy(&desk.stdout).into_owned();
    assert!(desk.status.success(), "{}", errors(&desk));
    assert!(summary.contains("; 2 sessions,"), "{summary}");
    let (frames, _) = summary.split_once(" frames in ").unwrap();
    // There are a hundred; a new session takes half a second.
    let frames: u32 = frames.parse().unwrap();
    assert!(frames >= 70, "{summary}");
}
