//! Edges with two links between them. The tunnel uses both as uplinks; the agents use the first one, and
//! the tunnel's device as the interface of a further path.

use hawser_lab::programs::certificates;
use hawser_model::Name;
use hawser_model::resource::{Flow, Mode, Pruning, Selector};
use hawser_testbed::edges::{Edges, Outer, Replication, Sender};
use hawser_testbed::logs::{last_log_lines, redirect};
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use hawser_testbed::topology::{Edge, Lab, Stop, Topology};
use hawser_testbed::traffic::{self, Endpoints, Family, Kind, Stream, StreamReport};
use hawser_testing::Control;
use hawser_units::{PathId, PathSet};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(super) const HAWSER: &str = env!("CARGO_BIN_EXE_hawser");

/// The flow under the controller.
pub(crate) const FLOW_NAME: &str = "stage";

/// The path over the first link.
pub(crate) const PLAIN: u8 = 1;

/// The path over the tunnel.
pub(crate) const CODED: u8 = 3;

/// The time limit of every wait.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// The packets that are sent at once.
const PACKETS: u64 = 3_000;

/// The time that packets have to arrive after the sender has stopped: longer than the tunnel tries to
/// recover one.
const GRACE: Duration = Duration::from_secs(2);

/// The address of the tunnel's server, over both links.
const SERVER: &str = "203.0.113.1";

/// The tunnel's device, and the inner addresses of client and server.
const DEVICE: &str = "hawser-tun";
pub(super) const CLIENT_INSIDE: [&str; 2] = ["10.77.0.50", "fd77::50"];
pub(super) const SERVER_INSIDE: [&str; 2] = ["10.77.0.1", "fd77::1"];

/// The names of the tunnel's ends, and of their certificates and files.
const CLIENT: &str = "car";
const POP: &str = "pop";

pub(crate) struct Rig {
    pub(crate) edges: Edges<Value>,
    pub(crate) tunnel: Tunnel,
    pub(crate) lab: Lab,
    sender: Sender,
    _directory: TempDir,
}

/// Both ends of a tunnel: the client at the ingress edge, the server at the egress edge.
pub(crate) struct Tunnel {
    client: Option<Process>,
    server: Option<Process>,
    ends: [Namespace; 2],
    folder: PathBuf,
}

impl Rig {
    /// Starts a tunnel, and agents that send the flow on these paths with outer headers of this version.
    pub(crate) fn new(paths: &[u8], sender: Sender, outer: Outer) -> Self {
        let lab = lab(false);
        let directory = tempfile::tempdir().unwrap();
        let tunnel = Tunnel::start(&lab, directory.path());
        let paths = paths.iter().map(|path| PathId::from_number(*path).unwrap());
        let replication = Replication {
            sender,
            outer,
            ..Replication::on(paths.collect::<PathSet>())
        };
        let with_coded = |edge, file: String| file + &coded_path(edge, outer);
        let hawser = Path::new(HAWSER);
        let edges =
            Edges::start_changed(&lab, hawser, directory.path(), &replication, with_coded).unwrap();
        let mut rig = Rig {
            edges,
            tunnel,
            lab,
            sender,
            _directory: directory,
        };
        rig.await_path(true, "");
        rig
    }

    /// Starts a tunnel, a controller and agents without paths in their files, and creates a flow of all IPv4 packets
    /// to the viewer on all paths.
    pub(crate) fn controlled() -> (Self, Control) {
        let lab = lab(true);
        let directory = tempfile::tempdir().unwrap();
        let tunnel = Tunnel::start(&lab, directory.path());
        let hawser = Path::new(HAWSER);
        let control = Control::start(&lab, hawser, directory.path()).unwrap();
        let edges = Edges::start_discovering(&lab, hawser, directory.path(), &control).unwrap();
        let flow = replicated(&lab);
        let created = control.ask(async |client| client.create_flow(&flow).await);
        created.unwrap();
        let rig = Rig {
            edges,
            tunnel,
            lab,
            sender: Sender::Source,
            _directory: directory,
        };
        (rig, control)
    }

    /// Returns the status of both agents: first that of the ingress.
    pub(crate) fn status(&self) -> (Value, Value) {
        (self.edges.ingress().unwrap(), self.edges.egress().unwrap())
    }

    /// Sends packets to the viewer.
    pub(crate) fn send(&self, kind: Kind, family: Family, payload_bytes: usize) -> StreamReport {
        let stream = Stream {
            kind,
            family,
            packets: PACKETS,
            rate_pps: 1_000,
            payload_bytes,
        };
        let source = match self.sender {
            Sender::Source => self.lab.source(),
            Sender::Ingress => self.lab.ingress(),
        };
        let ends = Endpoints {
            source: source.clone(),
            ..Endpoints::from(&self.lab)
        };
        let mut reports = traffic::run(&ends, &[stream], GRACE, &Stop::default()).unwrap();
        reports.remove(0)
    }

    /// Sends packets to the viewer, all of which arrive once.
    pub(crate) fn loses_none(&self, kind: Kind, family: Family) {
        let report = self.send(kind, family, 800);
        assert!(report.is_complete(), "{report:?}\n{}", self.explain());
        assert_eq!(report.duplicates, 0, "{report:?}");
    }

    /// Returns how many copies have arrived on a path, as of the last second.
    pub(crate) fn copies(&self, path: u8) -> u64 {
        copies(&self.edges.egress().unwrap(), path)
    }

    /// Waits until so many copies more than `before` have arrived on a path as are sent at once.
    pub(crate) fn bring_copies_after(&mut self, path: u8, before: u64) {
        let agent = &mut self.edges.egress_agent;
        let what = format!("saw the copies on path {path}");
        agent
            .wait_until(&what, |status| copies(status, path) >= before + PACKETS)
            .unwrap();
    }

    /// Waits until as many copies have arrived on each of these paths as are sent at once.
    pub(crate) fn bring_copies(&mut self, paths: &[u8]) {
        paths
            .iter()
            .for_each(|path| self.bring_copies_after(*path, 0));
    }

    /// Waits until the ingress uses the path over the tunnel, or does not for a reason that contains `reason`.
    pub(crate) fn await_path(&mut self, is_up: bool, reason: &str) {
        let is_so = |status: &Value| {
            let path = &status["paths"][CODED.to_string()];
            let why = path["reason"].as_str().unwrap_or_default();
            path["up"] == is_up && why.contains(reason)
        };
        let what = format!("saw that up is {is_up} for the tunnel ({reason})");
        let agent = &mut self.edges.ingress_agent;
        agent.wait_until(&what, is_so).unwrap();
    }

    /// Waits until both agents use a path that the controller has made.
    pub(crate) fn await_assigned(&mut self, path: u8) {
        let uses = |status: &Value| status["paths"][path.to_string()]["up"] == true;
        let Edges {
            ingress_agent,
            egress_agent,
        } = &mut self.edges;
        for agent in [ingress_agent, egress_agent] {
            agent.wait_until("used the assigned path", uses).unwrap();
        }
    }

    /// Returns the MTU of the tunnel's device at the ingress.
    pub(crate) fn device_mtu(&self) -> u64 {
        let mtu = || hawser_io::interface::mtu_bytes(DEVICE).unwrap();
        self.lab.ingress().run(mtu).unwrap().into()
    }

    /// Lets packets of the links' size go to the viewer.
    pub(crate) fn widen_routes(&self) {
        let link = self
            .lab
            .paths()
            .next()
            .map(|path| self.lab.path(path))
            .unwrap();
        let viewer = self.lab.addressing().viewer.v4_prefix();
        let (router, device) = (link.far.v4, &link.near.device);
        let route = format!("route replace {viewer} via {router} dev {device}");
        self.lab.ingress().ip(&route).unwrap();
    }

    /// Returns what the programs say, for the message of a failed test.
    pub(crate) fn explain(&self) -> String {
        let (ingress, egress) = self.status();
        format!(
            "{ingress:#}\n{egress:#}\n{}\n{}\n{}",
            self.edges.ingress_agent.log(),
            self.edges.egress_agent.log(),
            self.tunnel.log()
        )
    }
}

pub(super) fn lab(control: bool) -> Lab {
    let topology = Topology {
        paths: 2,
        route_mtu: 1320,
        control,
        ..Topology::default()
    };
    let lab = topology.build().unwrap();
    lab.paths()
        .for_each(|path| lab.bridge_for_xdp(path).unwrap());
    route_to_server(&lab);
    lab
}

fn replicated(lab: &Lab) -> Flow {
    let word = |word: &str| word.parse::<Name>().unwrap();
    let viewer = lab.addressing().viewer.v4_prefix();
    Flow {
        name: word(FLOW_NAME),
        tenant: Control::tenant(),
        ingress: word("ingress"),
        egress: word("egress"),
        select: Selector {
            destination: viewer,
            protocol: None,
            source_ports: None,
            destination_ports: None,
        },
        paths: Vec::new(),
        mode: Mode::Replicate,
        trigger: None,
        pruning: Pruning::default(),
        transparent: false,
    }
}

impl Tunnel {
    pub(crate) fn start(lab: &Lab, folder: &Path) -> Self {
        certificates::write(folder, &[CLIENT, POP]).unwrap();
        write(folder, CLIENT, &client_file(folder));
        write(folder, POP, &server_file(folder));
        let mut tunnel = Tunnel {
            client: None,
            server: None,
            ends: [lab.ingress(), lab.egress()].map(Namespace::clone),
            folder: folder.to_owned(),
        };
        tunnel.start_server();
        tunnel.start_client();
        tunnel
    }

    pub(crate) fn start_server(&mut self) {
        self.server = Some(self.spawn(&self.ends[1], "server", POP));
    }

    pub(crate) fn kill_server(&mut self) {
        self.server = None;
    }

    /// Starts the client, and waits until it uses both uplinks.
    pub(crate) fn start_client(&mut self) {
        let status = self.folder.join(CLIENT).join("status.json");
        // That of an earlier process.
        let _ = fs::remove_file(&status);
        self.client = Some(self.spawn(&self.ends[0], "client", CLIENT));
        let uses_both = || {
            let status: Value = serde_json::from_slice(&fs::read(&status).ok()?).ok()?;
            let paths = status["sessions"][0]["paths"].as_array()?.len();
            (paths == 2).then_some(())
        };
        let deadline = Instant::now() + TIMEOUT;
        while uses_both().is_none() {
            assert!(Instant::now() < deadline, "no tunnel: {}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn kill_client(&mut self) {
        self.client = None;
    }

    /// Loses one in so many of the tunnel's packets on the links, in either direction.
    pub(crate) fn lose(&self, one_in: u32) {
        let rules = format!(
            "table inet loss {{ chain arrives {{ type filter hook prerouting priority raw; meta l4proto udp \
             th sport 14752 numgen random mod {one_in} 0 drop; udp dport 14752 numgen random mod {one_in} 0 drop; }}; }}"
        );
        for end in &self.ends {
            let output = end.command("nft").unwrap().arg(&rules).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{error}");
        }
    }

    fn spawn(&self, namespace: &Namespace, role: &str, name: &str) -> Process {
        let mut command = Command::new(HAWSER);
        let file = self.folder.join(format!("{name}.toml"));
        command.args(["tunnel", role, "--config"]).arg(file);
        redirect(&mut command, &self.log_file(name)).unwrap();
        Process::spawn(namespace, command).unwrap()
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    fn log(&self) -> String {
        [CLIENT, POP]
            .map(|name| last_log_lines(&self.log_file(name), 10))
            .join("\n")
    }
}

/// Returns how many copies of all flows have arrived on a path.
fn copies(status: &Value, path: u8) -> u64 {
    let flows = status["receive"].as_object().into_iter().flatten();
    flows
        .filter_map(|(_, paths)| paths[path.to_string()]["packets"].as_u64())
        .sum()
}

fn write(folder: &Path, name: &str, file: &str) {
    fs::write(folder.join(format!("{name}.toml")), file).unwrap();
}

fn client_file(folder: &Path) -> String {
    format!(
        "[tunnel]\nname = {CLIENT:?}\nstate = {folder:?}\n{}\n\
         [[server]]\nname = {POP:?}\naddresses = [\"{SERVER}:14752\"]\n\n[[uplink]]\ninterface = \"path*\"\n",
        certificates::section(CLIENT)
    )
}

/// Returns a file with which packets wait for a machine that is busy.
fn server_file(folder: &Path) -> String {
    format!(
        "[tunnel]\nname = {POP:?}\nstate = {folder:?}\naddresses = [\"10.77.0.0/16\", \"fd77::/64\"]\n\n{}\n\
         [coding]\nexpiry_ms = 1500\nmax_queue_delay_ms = 1500\n\n[[client]]\nname = {CLIENT:?}\naddresses = {CLIENT_INSIDE:?}\n",
        certificates::section(POP)
    )
}

/// Makes the server reachable over both links.
fn route_to_server(lab: &Lab) {
    let address = format!("address add {SERVER}/32 dev lo");
    lab.egress().ip(&address).unwrap();
    let route = |(path, metric)| {
        let link = lab.path(path);
        let (router, device) = (link.far.v4, &link.near.device);
        format!("route add default via {router} dev {device} metric {metric}\n")
    };
    let routes: String = lab.paths().zip(100..).map(route).collect();
    lab.ingress().ip(&routes).unwrap();
}

/// Returns the section of the path over the tunnel in an agent's file.
fn coded_path(edge: Edge, outer: Outer) -> String {
    let others = match edge {
        Edge::Ingress => SERVER_INSIDE,
        Edge::Egress => CLIENT_INSIDE,
    };
    let remote = match outer {
        Outer::V4 => others[0],
        Outer::V6 => others[1],
    };
    format!("\n[[path]]\nnumber = {CODED}\ninterface = {DEVICE:?}\nremote = {remote:?}\n")
}
