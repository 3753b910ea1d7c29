//! A track whose publisher, relay and viewer know only its name and the controller.

use hawser_testbed::logs::{last_log_lines, redirect};
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use serde_json::Value;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The maximum time to wait for a condition: on a busy machine a viewer may try a relay a second time only, after 30 s.
const TIMEOUT: Duration = Duration::from_secs(90);

const URL: &str = "https://192.0.2.10:14750";

/// The machines and the last byte of the address of each in 192.0.2.0/24.
const MACHINES: [(&str, u8); 5] = [
    ("control", 10),
    ("car", 1),
    ("pop", 2),
    ("desk", 3),
    ("yard", 4),
];

/// The number of the next test: tests run side by side.
static NEXT_TEST: AtomicU32 = AtomicU32::new(0);

/// Machines at a switch, and the folder in which all programs run.
struct Machines {
    switch: Namespace,
    machines: Vec<Namespace>,
    folder: TempDir,
}

impl Machines {
    fn new() -> Self {
        let (process, test) = (std::process::id(), NEXT_TEST.fetch_add(1, Relaxed));
        let namespace =
            |role: &str| Namespace::create(format!("hawser-track{test}-{role}-{process}"));
        let switch = namespace("switch").unwrap();
        switch
            .ip("link add name br0 type bridge\nlink set br0 up")
            .unwrap();
        let machines = MACHINES.map(|(name, host)| {
            let machine = namespace(name).unwrap();
            machine
                .ip(&format!(
                    "link add name eth0 type veth peer name to-{name} netns {}\n\
                     addr add 192.0.2.{host}/24 dev eth0\nlink set eth0 up\nlink set lo up",
                    switch.name()
                ))
                .unwrap();
            switch
                .ip(&format!(
                    "link set to-{name} master br0\nlink set to-{name} up"
                ))
                .unwrap();
            machine
        });
        Machines {
            switch,
            machines: machines.into(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn machine(&self, name: &str) -> &Namespace {
        let place = MACHINES.iter().position(|(known, _)| *known == name);
        &self.machines[place.unwrap()]
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn hawser(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
        command
            .args(line.split_whitespace())
            .current_dir(self.folder.path())
            .env("HAWSER_CTL_CONFIG", self.path("ctl.toml"));
        command
    }

    /// Starts a program on a machine, with its log in a file of the program's and the machine's name.
    fn start(&self, machine: &str, line: &str) -> Process {
        let mut command = self.hawser(line);
        let (name, _) = line.split_once(' ').unwrap();
        redirect(&mut command, &self.path(&format!("{name}-{machine}.log"))).unwrap();
        Process::spawn(self.machine(machine), command).unwrap()
    }

    /// Runs a program on a machine.
    fn run(&self, machine: &str, line: &str) -> Output {
        let mut command = self.hawser(line);
        self.machine(machine).confine(&mut command).unwrap();
        command.output().unwrap()
    }

    fn succeeds(&self, machine: &str, line: &str) {
        let output = self.run(machine, line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {errors}");
    }

    /// Waits until a program's log contains a text.
    fn wait_for_line(&self, program: &str, text: &str) {
        self.wait_until(program, |log| log.contains(text));
    }

    /// Waits until the log of a program satisfies a condition.
    fn wait_until(&self, program: &str, is_met: impl Fn(&str) -> bool) {
        let (log, began) = (self.path(&format!("{program}.log")), Instant::now());
        while !is_met(&fs::read_to_string(&log).unwrap_or_default()) {
            assert!(
                began.elapsed() < TIMEOUT,
                "{program}: {}",
                last_log_lines(&log, 20)
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts a controller with a track for the other machines, which are its nodes.
    fn control(&self, lease_s: u32) -> Process {
        self.write(
            "controller.toml",
            &format!(
                "listen = \"0.0.0.0:14750\"\nnames = [\"192.0.2.10\"]\nstate = \"state\"\n\n\
                 [nodes]\nreport_every_ms = 1000\nlease_s = {lease_s}\n"
            ),
        );
        self.write(
            "ctl.toml",
            &format!(
                "controllers = [\"{URL}\"]\nauthority = \"state/authority.pem\"\n\
                 token_file = \"state/admin.token\"\n"
            ),
        );
        let controller = self.start("control", "controller --config controller.toml");
        self.wait_for_line("controller-control", "controller ready");
        self.succeeds("control", "ctl tenant create acme");
        for node in ["car", "pop", "desk", "yard"] {
            self.succeeds(
                "control",
                &format!("ctl node enrol {node} --tenant acme --out {node}.token"),
            );
            self.succeeds(
                node,
                &format!("enrol {node}.token --node {node} --controller {URL}"),
            );
        }
        let create = "ctl track create stage --tenant acme --writer car --reader desk --relay pop --relay yard";
        self.succeeds("control", create);
        controller
    }

    fn publisher(&self, viewers: u32) -> Process {
        let line = format!(
            "publish --track stage --node car --controller {URL} --recording synthetic --level nfov --fps 10 \
             --viewers {viewers}"
        );
        self.start("car", &line)
    }

    /// Starts a relay on a machine. `broadcasts` are the addresses at which it serves the track, and those that others
    /// are told.
    fn relay(&self, machine: &str, broadcasts: &[(&str, &str)]) -> Process {
        let mut text = format!(
            "state = \"run-{machine}\"\n[controller]\nurls = [\"{URL}\"]\nnode = \"{machine}\"\n"
        );
        for (number, (listen, announce)) in broadcasts.iter().enumerate() {
            text += &format!(
                "[[broadcast]]\nname = \"stage-{number}\"\nlisten = \"{listen}\"\nannounce = \"{announce}\"\n\
                 track = \"stage\"\n"
            );
        }
        let file = format!("relay-{machine}.toml");
        self.write(&file, &text);
        self.start(machine, &format!("relay --config {file}"))
    }

    fn viewer(&self) -> Process {
        let line =
            format!("view --track stage --node desk --controller {URL} --timeline shown.csv");
        self.start("desk", &line)
    }

    /// Returns who serves the track, as the controller says.
    fn sources(&self) -> Vec<(String, String)> {
        let output = self.run("control", "ctl --json track describe stage");
        let sources: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |source: &Value, key: &str| source[key].as_str().unwrap().to_owned();
        let sources = sources.as_array().unwrap().iter();
        sources
            .map(|source| (text(source, "role"), text(source, "address")))
            .collect()
    }

    fn wait_for_sources(&self, expected: &[(&str, &str)]) {
        let began = Instant::now();
        loop {
            let sources = self.sources();
            let known = sources
                .iter()
                .map(|(role, at)| (role.as_str(), at.as_str()));
            if known.eq(expected.iter().copied()) {
                return;
            }
            assert!(began.elapsed() < TIMEOUT, "{sources:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a signal to a program.
    fn signal(&self, process: &Process, signal: &str) {
        let mut kill = Command::new("kill");
        kill.args(["-s", signal, &process.id().to_string()]);
        assert!(kill.status().unwrap().success());
    }

    /// Passes datagrams between an address of the machine of the controller and that of a relay, 60 ms later in each
    /// direction, until the test ends.
    fn delay(&self, near: &str, far: &str) {
        let far: SocketAddr = far.parse().unwrap();
        let sockets = self.machine("control").run(|| {
            let sockets = [near, "0.0.0.0:0"].map(|address| UdpSocket::bind(address).unwrap());
            sockets.map(Arc::new)
        });
        let [near, far_side] = sockets.unwrap();
        let viewer = Arc::new(Mutex::new(far));
        for (from, to, is_out) in [
            (near.clone(), far_side.clone(), true),
            (far_side, near, false),
        ] {
            let viewer = Arc::clone(&viewer);
            thread::spawn(move || {
                let mut bytes = [0; 2048];
                while let Ok((count, source)) = from.recv_from(&mut bytes) {
                    thread::sleep(Duration::from_millis(60));
                    if is_out {
                        *viewer.lock().unwrap() = source;
                    }
                    let to_address = if is_out { far } else { *viewer.lock().unwrap() };
                    let _ = to.send_to(&bytes[..count], to_address);
                }
            });
        }
    }

    /// Returns the groups of the frames that the viewer has shown.
    fn groups(&self) -> Vec<u64> {
        let rows = fs::read_to_string(self.path("shown.csv")).unwrap();
        let whole = rows.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let groups = whole
            .lines()
            .skip(1)
            .filter_map(|row| row.split(',').next());
        groups.map(|group| group.parse().unwrap()).collect()
    }

    /// Waits until the viewer has shown so many frames more than now.
    fn wait_for_frames(&self, more: usize) {
        let shown = || {
            let rows = fs::read_to_string(self.path("shown.csv")).unwrap_or_default();
            rows.lines().count()
        };
        let (before, began) = (shown(), Instant::now());
        while shown() < before + more {
            assert!(
                began.elapsed() < TIMEOUT,
                "{}",
                last_log_lines(&self.path("view-desk.log"), 20)
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for namespace in self.machines.iter().chain([&self.switch]) {
            let _ = namespace.delete();
        }
    }
}

const PUBLISHER: (&str, &str) = ("writer", "192.0.2.1:14748");
const RELAY: (&str, &str) = ("relay", "192.0.2.2:14755");
const SECOND: (&str, &str) = ("relay", "192.0.2.2:14756");

/// The longest time in which a program ends that was told to.
const GRACE: Duration = Duration::from_secs(30);

#[test]
fn a_viewer_finds_the_track_and_moves_when_its_relay_dies() {
    let machines = Machines::new();
    let _controller = machines.control(15);
    // The viewer waits until the track is served.
    let _viewer = machines.viewer();
    machines.wait_for_line("view-desk", "knows nobody who serves the track");
    let _publisher = machines.publisher(8);
    machines.wait_for_sources(&[PUBLISHER]);
    machines.wait_until("view-desk", |log| is_at(log, PUBLISHER));
    machines.wait_for_frames(5);
    // It leaves the publisher for a relay.
    let relay = machines.relay("pop", &[(RELAY.1, RELAY.1)]);
    machines.wait_for_sources(&[PUBLISHER, RELAY]);
    machines.wait_until("view-desk", |log| is_at(log, RELAY));
    machines.wait_for_frames(5);
    drop(relay);
    machines.wait_until("view-desk", |log| is_at(log, PUBLISHER));
    machines.wait_for_frames(5);
    machines.wait_for_sources(&[PUBLISHER]);
    // No frame is shown again after a move.
    let groups = machines.groups();
    assert!(groups.is_sorted_by(|one, next| one < next), "{groups:?}");
}

#[test]
fn those_who_end_or_have_no_media_are_listed_no_more() {
    let machines = Machines::new();
    // Nothing is forgotten by the time that has passed.
    let _controller = machines.control(3600);
    let publisher = machines.publisher(8);
    let relay = machines.relay("pop", &[RELAY, SECOND].map(|(_, at)| (at, at)));
    machines.wait_for_sources(&[PUBLISHER, RELAY, SECOND]);
    let _viewer = machines.viewer();
    machines.wait_until("view-desk", |log| is_at(log, RELAY) || is_at(log, SECOND));
    machines.wait_for_frames(5);
    machines.signal(&publisher, "STOP");
    machines.wait_for_sources(&[PUBLISHER]);
    machines.signal(&publisher, "CONT");
    machines.wait_for_sources(&[PUBLISHER, RELAY, SECOND]);
    relay.stop(GRACE).unwrap();
    machines.wait_for_sources(&[PUBLISHER]);
    machines.wait_until("view-desk", |log| is_at(log, PUBLISHER));
    machines.wait_for_frames(5);
    publisher.stop(GRACE).unwrap();
    machines.wait_for_sources(&[]);
}

#[test]
fn a_viewer_goes_to_the_nearest_relay() {
    let machines = Machines::new();
    let _controller = machines.control(15);
    let _publisher = machines.publisher(8);
    let (far, near) = ("192.0.2.10:14757", ("relay", "192.0.2.4:14755"));
    machines.delay(far, RELAY.1);
    // The first in the controller's order is far away.
    let _far = machines.relay("pop", &[(RELAY.1, far)]);
    let _near = machines.relay("yard", &[(near.1, near.1)]);
    machines.wait_for_sources(&[PUBLISHER, ("relay", far), near]);
    let _viewer = machines.viewer();
    machines.wait_until("view-desk", |log| is_at(log, near));
    machines.wait_for_frames(5);
}

#[test]
fn a_relay_takes_the_track_from_another_one_until_that_dies() {
    let machines = Machines::new();
    let _controller = machines.control(15);
    let _publisher = machines.publisher(1);
    let first = machines.relay("pop", &[(RELAY.1, RELAY.1)]);
    machines.wait_for_sources(&[PUBLISHER, RELAY]);
    // The publisher has no room for a second one.
    let yard = ("relay", "192.0.2.4:14755");
    let _second = machines.relay("yard", &[(yard.1, yard.1)]);
    let is_found_at = |log: &str, (_, address): (&str, &str)| {
        let found = log.lines().rfind(|line| line.contains("publisher found"));
        found.is_some_and(|line| line.contains(&format!("publisher={address} ")))
    };
    machines.wait_until("relay-yard", |log| is_found_at(log, RELAY));
    machines.wait_for_sources(&[PUBLISHER, RELAY, yard]);
    drop(first);
    machines.wait_until("relay-yard", |log| is_found_at(log, PUBLISHER));
    let _viewer = machines.viewer();
    machines.wait_until("view-desk", |log| is_at(log, yard));
    machines.wait_for_frames(5);
}

/// Returns whether a viewer has the stream from there, as its log says.
fn is_at(log: &str, (_, address): (&str, &str)) -> bool {
    let opened = log.lines().rfind(|line| line.contains("session opened"));
    opened.is_some_and(|line| line.contains(&format!("publisher={address} ")))
}
