//! The agents of a lab's two edges, and the flows between the source and the viewer.

use crate::control::Control;
use crate::logs::last_words;
use crate::topology::{End, Lab, Link};
use anyhow::{Context, Result, bail, ensure};
use hawser_agent::{Status, generate_key};
use hawser_io::netns::Namespace;
use hawser_io::process::Process;
use hawser_units::{PathId, PathSet};
use hawser_wire::Cover;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// The number of the IPv4 flow to the viewer at both edges. The IPv6 flow is the next, the flows of the way back follow.
pub const FLOW: u16 = 1;

/// The first of the flows of the way back: a number of its own, so that no copy can be sent back to its sender.
const FLOW_BACK: u16 = 3;

/// How long an agent may take to attach its programs, to take over a configuration, to notice a change, and to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the edges do with the traffic to the viewer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replication {
    /// The paths that copies take; none: the default route, past the programs.
    pub paths: PathSet,
    /// The IP version of the outer headers.
    pub outer: Outer,
    /// What of packets the tags of copies cover; none: copies carry no tags.
    pub authenticate: Option<Cover>,
    /// The paper's form for IPv4: nothing is added to packets. IPv6 has no such form and is encapsulated all the same.
    pub transparent: bool,
    /// Who sends to the viewer.
    pub sender: Sender,
    /// Whether the way back from the viewer is replicated too.
    pub both_ways: bool,
}

/// The IP version between the edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outer {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Where the traffic to the viewer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// At the source: it passes through the ingress edge, which replicates in XDP.
    Source,
    /// At the ingress edge itself, which replicates at TC.
    Ingress,
}

/// One of the two edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// At the source.
    Ingress,
    /// At the viewer.
    Egress,
}

impl Replication {
    /// Authenticated copies on `paths` over IPv4, from the source to the viewer only.
    pub fn on(paths: PathSet) -> Self {
        Replication {
            paths,
            outer: Outer::V4,
            authenticate: Some(Cover::Headers),
            transparent: false,
            sender: Sender::Source,
            both_ways: false,
        }
    }
}

/// Running agents. They end when this is dropped.
#[derive(Debug)]
pub struct Edges {
    /// Of the edge at the source.
    pub ingress_agent: Agent,
    /// Of the edge at the viewer.
    pub egress_agent: Agent,
}

/// The agent of one edge.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    edge: Edge,
    namespace: Namespace,
    binary: PathBuf,
    directory: PathBuf,
}

impl Edges {
    /// Starts both agents and waits until their programs are attached. `binary` is `hawser`; configurations and logs go
    /// to `directory`.
    pub fn start(
        lab: &Lab,
        binary: &Path,
        directory: &Path,
        replication: &Replication,
    ) -> Result<Self> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let key = directory.join("pair.key");
        if replication.authenticate.is_some() && !key.exists() {
            generate_key(&key).with_context(|| format!("cannot write {}", key.display()))?;
        }
        let start = |edge: Edge, namespace: &Namespace| {
            let config = directory.join(format!("{}.toml", edge.name()));
            fs::write(&config, configuration(lab, directory, replication, edge))
                .with_context(|| format!("cannot write {}", config.display()))?;
            Agent::start(edge, namespace, binary, directory)
        };
        // The egress first: a copy without an elimination is lost.
        let egress_agent = start(Edge::Egress, lab.egress())?;
        let ingress_agent = start(Edge::Ingress, lab.ingress())?;
        Ok(Edges {
            ingress_agent,
            egress_agent,
        })
    }

    /// Enrols both nodes with a controller and starts their agents, which take their flows from it. Besides
    /// configurations and logs `directory` then has what was judged and decided, `ingress.csv` and `egress.csv`.
    pub fn start_controlled(
        lab: &Lab,
        binary: &Path,
        directory: &Path,
        control: &Control,
    ) -> Result<Self> {
        let key = directory.join("pair.key");
        generate_key(&key).with_context(|| format!("cannot write {}", key.display()))?;
        let start = |edge: Edge, namespace: &Namespace| {
            let identity = directory.join("identity");
            control.enrol(edge.name(), &identity.join(edge.name()))?;
            let config = directory.join(format!("{}.toml", edge.name()));
            fs::write(
                &config,
                controlled_configuration(lab, directory, &identity, control, edge),
            )
            .with_context(|| format!("cannot write {}", config.display()))?;
            Agent::start(edge, namespace, binary, directory)
        };
        let egress_agent = start(Edge::Egress, lab.egress())?;
        let ingress_agent = start(Edge::Ingress, lab.ingress())?;
        Ok(Edges {
            ingress_agent,
            egress_agent,
        })
    }

    /// What the ingress edge says of itself, at most a second old.
    pub fn ingress(&self) -> Result<Status> {
        self.ingress_agent.status()
    }

    /// What the egress edge says of itself, at most a second old.
    pub fn egress(&self) -> Result<Status> {
        self.egress_agent.status()
    }

    /// Ends both agents and returns what they said last: first the ingress, then the egress.
    pub fn stop(self) -> Result<(Status, Status)> {
        Ok((self.ingress_agent.stop()?, self.egress_agent.stop()?))
    }
}

impl Agent {
    fn start(edge: Edge, namespace: &Namespace, binary: &Path, directory: &Path) -> Result<Self> {
        let mut agent = Agent {
            process: spawn(edge, namespace, binary, directory)?,
            edge,
            namespace: namespace.clone(),
            binary: binary.to_owned(),
            directory: directory.to_owned(),
        };
        agent.wait_until_ready()?;
        Ok(agent)
    }

    /// What the agent says of itself, at most a second old.
    pub fn status(&self) -> Result<Status> {
        Status::read(&self.directory.join(self.edge.name()).join("status.json"))
    }

    /// The agent's configuration.
    pub fn configuration_file(&self) -> PathBuf {
        self.directory.join(format!("{}.toml", self.edge.name()))
    }

    /// What the agent has logged since it was last started.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join(format!("{}.log", self.edge.name())))
            .unwrap_or_default()
    }

    /// Changes the configuration, has the agent read it and waits until it has; returns what it says then.
    pub fn reconfigure(&mut self, change: impl FnOnce(&str) -> String) -> Result<Status> {
        let file = self.configuration_file();
        let before = self.status()?.configuration.looked_at_unix_ms;
        fs::write(&file, change(&fs::read_to_string(&file)?))?;
        kill(self.pid(), Signal::SIGHUP)?;
        self.wait_until("read its configuration", |status| {
            status.configuration.looked_at_unix_ms > before
        })
    }

    /// Kills the agent on the spot.
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL).map(drop)
    }

    /// Has the agent end in order; returns how it ended.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.end(Signal::SIGTERM)
    }

    /// Starts the agent anew after it has ended.
    pub fn start_again(&mut self) -> Result<()> {
        self.process = spawn(self.edge, &self.namespace, &self.binary, &self.directory)?;
        self.wait_until_ready()
    }

    /// Waits until the agent's status is as hoped for.
    pub fn wait_until(&mut self, what: &str, hoped: impl Fn(&Status) -> bool) -> Result<Status> {
        self.wait_for(what, |agent| {
            agent.status().ok().filter(|status| hoped(status))
        })
    }

    /// Waits until the agent has logged `words`.
    pub fn wait_until_logged(&mut self, words: &str) -> Result<()> {
        self.wait_for(&format!("logged {words:?}"), |agent| {
            agent.log().contains(words).then_some(())
        })
    }

    fn wait_for<T>(&mut self, what: &str, look: impl Fn(&Self) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            let name = self.edge.name();
            if let Some(status) = self.process.ended()? {
                bail!(
                    "the agent of the {name} ended with {status}: {}",
                    self.last_words()
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "the agent of the {name} never {what} within {PATIENCE:?}: {}",
                    self.last_words()
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let own = self.process.id();
        self.wait_until("was ready", |status| status.pid == own)
            .map(drop)
    }

    fn stop(self) -> Result<Status> {
        let file = self.directory.join(self.edge.name()).join("status.json");
        self.process.stop(PATIENCE)?;
        Status::read(&file)
    }

    fn end(&mut self, signal: Signal) -> Result<ExitStatus> {
        kill(self.pid(), signal)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.ended()? {
                return Ok(status);
            }
            ensure!(
                Instant::now() < deadline,
                "the agent of the {} survives {signal}",
                self.edge.name()
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(
            i32::try_from(self.process.id()).expect("the kernel's process ids are positive i32"),
        )
    }

    fn last_words(&self) -> String {
        last_words(&self.directory.join(format!("{}.log", self.edge.name())))
    }
}

impl Edge {
    /// As nodes and files are called.
    pub fn name(self) -> &'static str {
        match self {
            Edge::Ingress => "ingress",
            Edge::Egress => "egress",
        }
    }
}

fn spawn(edge: Edge, namespace: &Namespace, binary: &Path, directory: &Path) -> Result<Process> {
    let log = directory.join(format!("{}.log", edge.name()));
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(binary);
    command
        .args(["agent", "--config"])
        .arg(directory.join(format!("{}.toml", edge.name())));
    command.stdout(output.try_clone()?).stderr(output);
    Ok(Process::spawn(namespace, command)?)
}

fn configuration(lab: &Lab, directory: &Path, replication: &Replication, edge: Edge) -> String {
    let secret = match replication.authenticate {
        Some(Cover::Headers) => "keys = { slot0 = \"pair.key\" }",
        Some(Cover::Whole) => {
            "keys = { slot0 = \"pair.key\" }\ncover = \"whole\"\ndemand = \"whole\""
        }
        None => "authenticate = false",
    };
    let peer = match edge {
        Edge::Ingress => Edge::Egress.name(),
        Edge::Egress => Edge::Ingress.name(),
    };
    let mut text = format!(
        "[node]\nname = {name:?}\nstate = {directory:?}\npins = {pins:?}\n{sources}\n\n\
         [[peer]]\nname = \"peer\"\nnode = {peer:?}\n{secret}\n",
        name = edge.name(),
        pins = lab.pins(edge.name()),
        sources = sources(lab, replication, edge),
    );
    text += &paths(lab, edge, replication.outer);
    for (direction, flow, prefix) in flows(lab, replication) {
        let transparent = replication.transparent && !prefix.contains(':');
        text += &if direction == edge {
            sending(replication.paths, flow, &prefix, transparent)
        } else {
            receiving(flow, &prefix, transparent)
        };
    }
    text
}

/// The configuration of an agent that takes its flows from the controller, and in-band signals too.
fn controlled_configuration(
    lab: &Lab,
    directory: &Path,
    identity: &Path,
    control: &Control,
    edge: Edge,
) -> String {
    let addressing = lab.addressing();
    let (peer, traffic, signals) = match edge {
        Edge::Ingress => (
            "egress",
            format!("transit = [{:?}]", addressing.source.far.device),
            true,
        ),
        Edge::Egress => (
            "ingress",
            format!("watch = [{:?}]", addressing.viewer.near.device),
            false,
        ),
    };
    let mut text = format!(
        "[node]\nname = {name:?}\nstate = {directory:?}\npins = {pins:?}\n{traffic}\ntrace = {trace:?}\narrival_deadline_ms = 200\n\n\
         [[peer]]\nname = {peer:?}\nkeys = {{ slot0 = \"pair.key\" }}\n\n\
         [controller]\nurls = [{url:?}]\nstate = {identity:?}\n",
        name = edge.name(),
        pins = lab.pins(edge.name()),
        trace = directory.join(format!("{}.csv", edge.name())),
        url = control.url(edge),
    );
    if signals {
        let End { device, v4, .. } = control.node(edge);
        let _ = write!(text, "interfaces = [{device:?}]\nsignals = \"{v4}\"\n");
    }
    text + &paths(lab, edge, Outer::V4)
}

/// The paths as an edge has them.
fn paths(lab: &Lab, edge: Edge, outer: Outer) -> String {
    let entry = |path| {
        let Link { near, far, .. } = lab.path(path);
        let (own, other) = match edge {
            Edge::Ingress => (near, far),
            Edge::Egress => (far, near),
        };
        let (local, remote) = match outer {
            Outer::V4 => (own.v4.to_string(), other.v4.to_string()),
            Outer::V6 => (own.v6.to_string(), other.v6.to_string()),
        };
        format!(
            "\n[[path]]\nnumber = {}\ninterface = {:?}\nlocal = {local:?}\nremote = {remote:?}\n",
            number(path),
            own.device,
        )
    };
    lab.paths().map(entry).collect()
}

/// Where the flows that this edge sends come from.
fn sources(lab: &Lab, replication: &Replication, edge: Edge) -> String {
    let addressing = lab.addressing();
    match (edge, replication.sender) {
        (Edge::Ingress, Sender::Source) => {
            format!("transit = [{:?}]", addressing.source.far.device)
        }
        (Edge::Ingress, Sender::Ingress) => {
            format!("local = [{:?}]", addressing.paths[0].near.device)
        }
        (Edge::Egress, _) if replication.both_ways => {
            format!("transit = [{:?}]", addressing.viewer.near.device)
        }
        (Edge::Egress, _) => String::new(),
    }
}

/// Every flow: the edge that sends it, its number, and where it goes.
fn flows(lab: &Lab, replication: &Replication) -> Vec<(Edge, u16, String)> {
    let viewer = &lab.addressing().viewer;
    let source = &lab.addressing().source;
    let host = |end: &End| [format!("{}/32", end.v4), format!("{}/128", end.v6)];
    let back = match replication.sender {
        Sender::Source => [source.v4_prefix(), source.v6_prefix()],
        // What the ingress edge sends has the address of its default path.
        Sender::Ingress => host(&lab.addressing().paths[0].near),
    };
    let forward = (FLOW..).zip([viewer.v4_prefix(), viewer.v6_prefix()]);
    let back = (FLOW_BACK..).zip(back).filter(|_| replication.both_ways);
    let forward = forward.map(|(flow, prefix)| (Edge::Ingress, flow, prefix));
    forward
        .chain(back.map(|(flow, prefix)| (Edge::Egress, flow, prefix)))
        .collect()
}

fn sending(paths: PathSet, flow: u16, prefix: &str, transparent: bool) -> String {
    let paths: Vec<u8> = paths.iter().map(number).collect();
    format!(
        "\n[[send]]\nflow = {flow}\npeer = \"peer\"\nselect = {{ destination = {prefix:?} }}\npaths = {paths:?}\n\
         transparent = {transparent}\n",
    )
}

fn receiving(flow: u16, prefix: &str, transparent: bool) -> String {
    let select = if transparent {
        format!("transparent = {{ destination = {prefix:?} }}\n")
    } else {
        String::new()
    };
    format!("\n[[receive]]\nflow = {flow}\npeer = \"peer\"\n{select}")
}

fn number(path: PathId) -> u8 {
    u8::from(path) + 1
}
