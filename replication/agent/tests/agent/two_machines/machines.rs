//! The guide's two machines: its files unchanged, two uplinks, and a stream that the viewer pulls.

use crate::support::{hawser, wait};
use hawser_agent::{Status, generate_key};
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use hawser_testbed::topology::{Lab, Topology, name_uplinks, network_ingress};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::str::FromStr;
use tempfile::TempDir;

/// The uplinks, with the prefixes of their addresses.
const UPLINKS: [(&str, &str); 2] = [("eth0", "192.0.2"), ("wlan0", "198.51.100")];

/// Both machines and the network between them.
pub(super) struct Machines {
    pub(super) publisher: Machine,
    pub(super) viewer: Machine,
    pub(super) lab: Lab,
    _directory: TempDir,
}

/// A machine with an agent, which may not be running.
pub(super) struct Machine {
    pub(super) namespace: Namespace,
    agent: Option<Process>,
    name: &'static str,
    directory: PathBuf,
}

impl Machines {
    /// Starts both agents. `generic_xdp` is added to their files if given.
    pub(super) fn start(generic_xdp: Option<bool>) -> Self {
        Self::start_changed(generic_xdp, |_, text| text)
    }

    /// Like [`Machines::start`], with the file of each machine changed by `change`, which gets the
    /// name of the machine.
    pub(super) fn start_changed(
        generic_xdp: Option<bool>,
        change: impl Fn(&str, String) -> String,
    ) -> Self {
        let lab = Topology {
            paths: 2,
            ..Topology::default()
        }
        .build()
        .unwrap();
        let directory = tempfile::tempdir().unwrap();
        generate_key(&directory.path().join("pair.key")).unwrap();
        let machine = |name, namespace: &Namespace, host| {
            name_uplinks(namespace, &UPLINKS, host).unwrap();
            let text = configuration(name, directory.path(), &lab.pins(name), generic_xdp);
            fs::write(
                directory.path().join(format!("{name}.toml")),
                change(name, text),
            )
            .unwrap();
            Machine {
                namespace: namespace.clone(),
                agent: None,
                name,
                directory: directory.path().to_owned(),
            }
        };
        let publisher = machine("publisher", lab.ingress(), 1);
        let viewer = machine("viewer", lab.egress(), 2);
        lab.paths()
            .for_each(|path| lab.bridge_for_xdp(path).unwrap());
        let mut machines = Machines {
            publisher,
            viewer,
            lab,
            _directory: directory,
        };
        machines.viewer.start();
        machines.publisher.start();
        machines
    }

    pub(super) fn both(&mut self) -> [&mut Machine; 2] {
        [&mut self.publisher, &mut self.viewer]
    }

    /// Cuts an uplink inside the network, so that both machines still have a carrier.
    pub(super) fn cut(&self, uplink: usize) {
        self.lab
            .network()
            .ip(&format!("link set bridge{uplink} down"))
            .unwrap();
    }

    pub(super) fn mend(&self, uplink: usize) {
        self.lab
            .network()
            .ip(&format!("link set bridge{uplink} up"))
            .unwrap();
    }

    /// Unplugs one of the publisher's uplinks, which then has no carrier.
    pub(super) fn unplug(&self, uplink: usize) {
        let path = self.lab.paths().nth(uplink).unwrap();
        self.lab
            .network()
            .ip(&format!("link set {} down", network_ingress(path)))
            .unwrap();
    }
}

impl Machine {
    /// Starts the agent and waits until it runs.
    pub(super) fn start(&mut self) {
        let log = File::create(self.file("log")).unwrap();
        let mut command = Command::new(hawser());
        command.args(["agent", "--config"]).arg(self.file("toml"));
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let agent = Process::spawn(&self.namespace, command).unwrap();
        let own = agent.id();
        let agent = self.agent.insert(agent);
        let status_file = self.directory.join(self.name).join("status.json");
        let log = self.directory.join(format!("{}.log", self.name));
        wait("a running agent", || {
            assert_eq!(
                agent.ended().unwrap(),
                None,
                "{}",
                fs::read_to_string(&log).unwrap()
            );
            Status::read(&status_file)
                .ok()
                .filter(|status| status.pid == own)
                .map(drop)
        });
    }

    /// Starts the agent and waits until it replicates.
    pub(super) fn start_again(&mut self) {
        self.start();
        self.await_copies();
    }

    /// Stops the agent with a signal, and waits until it has exited.
    pub(super) fn end(&mut self, signal: Signal) {
        let mut agent = self.agent.take().expect("the agent runs");
        kill(Pid::from_raw(agent.id().try_into().unwrap()), signal).unwrap();
        wait("the end of the agent", || agent.ended().unwrap());
    }

    pub(super) fn status(&self) -> Status {
        Status::read(&self.directory.join(self.name).join("status.json")).unwrap()
    }

    /// Runs `hawser agent --detach`.
    pub(super) fn detach(&self) -> Output {
        let mut detach = self.namespace.command(hawser().to_str().unwrap()).unwrap();
        detach
            .args(["agent", "--detach", "--config"])
            .arg(self.file("toml"))
            .output()
            .unwrap()
    }

    /// Waits until the agent has replicated another packet.
    pub(super) fn await_copies(&self) {
        let copies = || self.status().send[&1].packets;
        let before = copies();
        wait("copies", || (copies() > before).then_some(()));
    }

    /// Returns the output of `ip`.
    pub(super) fn ip(&self, arguments: &str) -> String {
        let mut ip = self.namespace.command("ip").unwrap();
        let output = ip.args(arguments.split(' ')).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the MTU of the agent's interface, bytes.
    pub(super) fn mtu(&self) -> Option<u16> {
        let described = self.ip("link show dev hawser0");
        after(&described, "mtu")?.parse().ok()
    }

    /// Makes the link-layer addresses of the next hops permanent.
    pub(super) fn hold_next_hops(&self) {
        for (device, _) in UPLINKS {
            let known = self.ip(&format!("-4 neigh show dev {device}"));
            let (address, mac) = (
                known.split(' ').next().unwrap(),
                after(&known, "lladdr").unwrap(),
            );
            let hold = format!("neigh replace {address} lladdr {mac} dev {device} nud permanent");
            self.namespace.ip(&hold).unwrap();
        }
    }

    /// Returns the uplink that the stream takes while no agent runs.
    pub(super) fn first_fallback(&self) -> Option<String> {
        let routes = self.ip("route show proto 72");
        let metric = |route: &str| Some(u32::from_str(after(route, "metric")?).unwrap());
        let uplinks = routes
            .lines()
            .filter(|route| !route.contains("dev hawser0"));
        let first = uplinks.min_by_key(|route| metric(route))?;
        after(first, "dev").map(str::to_owned)
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.directory.join(format!("{}.{kind}", self.name))
    }
}

/// Returns the word after `word`.
fn after<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    text.split_whitespace()
        .skip_while(|found| *found != word)
        .nth(1)
}

/// Returns the guide's file, with directories of the lab.
fn configuration(name: &str, directory: &Path, pins: &Path, generic_xdp: Option<bool>) -> String {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/two-machines")
        .join(format!("{name}.toml"));
    let text = fs::read_to_string(guide).unwrap();
    assert!(text.contains("[node]\n"), "{text}");
    let mode = generic_xdp.map(|value| format!("generic_xdp = {value}\n"));
    let node = format!(
        "[node]\n{}state = {directory:?}\npins = {pins:?}\n",
        mode.unwrap_or_default()
    );
    text.replace("[node]\n", &node)
}
