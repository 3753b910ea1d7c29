//! The agents of a lab's two edges, and the flows between the source and the viewer.
//!
//! The format of an agent's status belongs to the agent. [`Edges`] and [`Agent`] therefore take it
//! as a type parameter, and know only the members that they need themselves.

use crate::logs::{last_log_line, redirect};
use crate::netns::Namespace;
use crate::process::Process;
use crate::topology::{Edge, End, Lab, Link};
use anyhow::{Context, Result, bail, ensure};
use hawser_units::{PathId, PathSet};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// The number of the IPv4 flow to the viewer at both edges. The IPv6 flow has the next number,
/// followed by the flows of the reverse direction.
pub const FLOW: u16 = 1;

/// The first flow of the reverse direction. The numbers of both directions differ, so that no copy
/// can be reflected to its sender.
const FLOW_BACK: u16 = 3;

/// The maximum time for an agent to attach its programs, to apply a configuration, to notice a
/// change, and to exit.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A controller on the lab's control network, as agents see it.
pub trait Controller {
    /// Enrols a node and stores its identity in `folder`.
    fn enrol(&self, node: &str, folder: &Path) -> Result<()>;

    /// Returns the URL by which an edge reaches the controller.
    fn url(&self, edge: Edge) -> String;

    /// Returns the address and the device of an edge on the control network.
    fn node(&self, edge: Edge) -> &End;
}

/// The treatment of the traffic to the viewer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replication {
    /// The paths that copies take. If empty, traffic takes the default route and bypasses the
    /// programs.
    pub paths: PathSet,
    /// The IP version of the outer headers.
    pub outer: Outer,
    /// The part of packets that the tags of copies cover. Without it, copies carry no tags.
    pub authenticate: Option<Cover>,
    /// Whether IPv4 packets are sent unchanged, which is the paper's form. IPv6 has no such form
    /// and is always encapsulated.
    pub transparent: bool,
    /// The sender of the traffic to the viewer.
    pub sender: Sender,
    /// Whether the reverse direction is replicated too.
    pub both_ways: bool,
}

/// The part of a packet that the tag of a copy covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// The headers.
    Headers,
    /// The whole packet.
    Whole,
}

/// The IP version of the outer headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outer {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The origin of the traffic to the viewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The source. Its traffic passes through the ingress edge, which replicates in XDP.
    Source,
    /// The ingress edge itself, which replicates at TC.
    Ingress,
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

/// Running agents with the status `S`. They are stopped when this is dropped.
#[derive(Debug)]
pub struct Edges<S> {
    /// The agent of the edge at the source.
    pub ingress_agent: Agent<S>,
    /// The agent of the edge at the viewer.
    pub egress_agent: Agent<S>,
}

/// The agent of one edge, with the status `S`.
#[derive(Debug)]
pub struct Agent<S> {
    process: Process,
    edge: Edge,
    namespace: Namespace,
    binary: PathBuf,
    directory: PathBuf,
    status: PhantomData<S>,
}

/// The members of an agent's status that show whether it is ready.
#[derive(Deserialize)]
struct Readiness {
    pid: u32,
    configuration: Configuration,
}

#[derive(Deserialize)]
struct Configuration {
    checked_unix_ms: u64,
}

impl<S: DeserializeOwned> Edges<S> {
    /// Starts both agents and waits until their programs are attached. `binary` is `hawser`.
    /// Configurations and logs go to `directory`.
    pub fn start(
        lab: &Lab,
        binary: &Path,
        directory: &Path,
        replication: &Replication,
    ) -> Result<Self> {
        Edges::start_changed(lab, binary, directory, replication, |_, file| file)
    }

    /// As [`Edges::start`], with the files that `change` makes of those of the edges.
    pub fn start_changed(
        lab: &Lab,
        binary: &Path,
        directory: &Path,
        replication: &Replication,
        change: impl Fn(Edge, String) -> String,
    ) -> Result<Self> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let key = directory.join("pair.key");
        if replication.authenticate.is_some() && !key.exists() {
            generate_key(binary, &key)?;
        }
        Edges::start_with(lab, binary, directory, |edge| {
            let file = configuration(lab, directory, replication, edge);
            Ok(change(edge, file))
        })
    }

    /// Enrols both nodes with a controller and starts their agents, which receive their flows from
    /// it. `directory` then contains configurations, logs, and a record of the judgements and
    /// decisions, `ingress.csv` and `egress.csv`.
    pub fn start_controlled(
        lab: &Lab,
        binary: &Path,
        directory: &Path,
        control: &impl Controller,
    ) -> Result<Self> {
        let paths = |edge| paths(lab, edge, Outer::V4);
        let settings = |_| String::new();
        Edges::start_enrolled(lab, binary, directory, control, (settings, paths))
    }

    /// As [`Edges::start_controlled`], where the egress may also replicate: the flows from the viewer to the source.
    /// `further` returns the sections of further paths in an edge's file.
    pub fn start_controlled_both_ways(
        lab: &Lab,
        binary: &Path,
        directory: &Path,
        control: &impl Controller,
        further: impl Fn(Edge) -> String,
    ) -> Result<Self> {
        let paths = |edge| paths(lab, edge, Outer::V4) + &further(edge);
        let viewers = &lab.addressing().viewer.near.device;
        let settings = |edge| match edge {
            Edge::Ingress => String::new(),
            Edge::Egress => format!("transit = [{viewers:?}]\n"),
        };
        Edges::start_enrolled(lab, binary, directory, control, (settings, paths))
    }

    /// As [`Edges::start_controlled`], with agents that have no paths: the controller makes them of
    /// the devices that the paths would have, and of those of a tunnel, if there is one.
    pub fn start_discovering(
        lab: &Lab,
        binary: &Path,
        directory: &Path,
        control: &impl Controller,
    ) -> Result<Self> {
        let uplinks = |_| "uplinks = [\"path*\", \"hawser-tun\"]\n".to_owned();
        Edges::start_enrolled(
            lab,
            binary,
            directory,
            control,
            (uplinks, |_| String::new()),
        )
    }

    /// Enrols both nodes and starts their agents, with these settings of the node and these paths, of each edge.
    fn start_enrolled(
        lab: &Lab,
        binary: &Path,
        directory: &Path,
        control: &impl Controller,
        (settings, paths): (impl Fn(Edge) -> String, impl Fn(Edge) -> String),
    ) -> Result<Self> {
        let identity = directory.join("identity");
        Edges::start_with(lab, binary, directory, |edge| {
            control.enrol(edge.name(), &identity.join(edge.name()))?;
            let configuration = controlled_configuration(lab, directory, &identity, control, edge);
            let node = format!("[node]\n{}", settings(edge));
            Ok(configuration.replacen("[node]\n", &node, 1) + &paths(edge))
        })
    }

    /// Writes the configuration of each agent and starts it. The egress is first: without it,
    /// copies are not decapsulated and are lost.
    fn start_with(
        lab: &Lab,
        binary: &Path,
        directory: &Path,
        configuration: impl Fn(Edge) -> Result<String>,
    ) -> Result<Self> {
        let start = |edge: Edge, namespace: &Namespace| {
            let file = directory.join(format!("{}.toml", edge.name()));
            fs::write(&file, configuration(edge)?)
                .with_context(|| format!("cannot write {}", file.display()))?;
            Agent::start(edge, namespace, binary, directory)
        };
        let egress_agent = start(Edge::Egress, lab.egress())?;
        let ingress_agent = start(Edge::Ingress, lab.ingress())?;
        Ok(Edges {
            ingress_agent,
            egress_agent,
        })
    }

    /// Returns the status of the ingress edge, at most a second old.
    pub fn ingress(&self) -> Result<S> {
        self.ingress_agent.status()
    }

    /// Returns the status of the egress edge, at most a second old.
    pub fn egress(&self) -> Result<S> {
        self.egress_agent.status()
    }

    /// Stops both agents and returns their last status: first the ingress, then the egress.
    pub fn stop(self) -> Result<(S, S)> {
        Ok((self.ingress_agent.stop()?, self.egress_agent.stop()?))
    }
}

impl<S: DeserializeOwned> Agent<S> {
    fn start(edge: Edge, namespace: &Namespace, binary: &Path, directory: &Path) -> Result<Self> {
        let mut agent = Agent {
            process: spawn(edge, namespace, binary, directory)?,
            edge,
            namespace: namespace.clone(),
            binary: binary.to_owned(),
            directory: directory.to_owned(),
            status: PhantomData,
        };
        agent.wait_until_ready()?;
        Ok(agent)
    }

    /// Returns the agent's status, at most a second old.
    pub fn status(&self) -> Result<S> {
        read_status(&self.status_file())
    }

    fn status_file(&self) -> PathBuf {
        self.directory.join(self.edge.name()).join("status.json")
    }

    /// Returns the path of the agent's configuration.
    pub fn configuration_file(&self) -> PathBuf {
        self.directory.join(format!("{}.toml", self.edge.name()))
    }

    /// Returns the agent's log since it was last started.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join(format!("{}.log", self.edge.name())))
            .unwrap_or_default()
    }

    /// Changes the configuration, makes the agent reload it and waits until it has. Returns the
    /// status after the reload.
    pub fn reconfigure(&mut self, change: impl FnOnce(&str) -> String) -> Result<S> {
        let file = self.configuration_file();
        let readiness = |agent: &Self| read_status::<Readiness>(&agent.status_file());
        let before = readiness(self)?.configuration.checked_unix_ms;
        fs::write(&file, change(&fs::read_to_string(&file)?))?;
        kill(self.pid(), Signal::SIGHUP)?;
        self.wait_for("reloaded its configuration", |agent| {
            let now = readiness(agent).ok()?.configuration.checked_unix_ms;
            (now > before).then_some(())
        })?;
        self.status()
    }

    /// Kills the agent with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL).map(drop)
    }

    /// Terminates the agent with SIGTERM and returns its exit status.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.end(Signal::SIGTERM)
    }

    /// Restarts the agent after it has exited.
    pub fn start_again(&mut self) -> Result<()> {
        self.process = spawn(self.edge, &self.namespace, &self.binary, &self.directory)?;
        self.wait_until_ready()
    }

    /// Waits until the agent's status meets a condition. `what` completes the error message "the
    /// agent never ...".
    pub fn wait_until(&mut self, what: &str, condition: impl Fn(&S) -> bool) -> Result<S> {
        self.wait_for(what, |agent| {
            agent.status().ok().filter(|status| condition(status))
        })
    }

    /// Waits until the agent's log contains `words`.
    pub fn wait_until_logged(&mut self, words: &str) -> Result<()> {
        self.wait_for(&format!("logged {words:?}"), |agent| {
            agent.log().contains(words).then_some(())
        })
    }

    fn wait_for<T>(&mut self, what: &str, look: impl Fn(&Self) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            let name = self.edge.name();
            if let Some(status) = self.process.ended()? {
                bail!(
                    "the agent of the {name} exited with {status}: {}",
                    self.last_log_line()
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "the agent of the {name} never {what} within {TIMEOUT:?}: {}",
                    self.last_log_line()
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let own = self.process.id();
        self.wait_for("was ready", |agent| {
            let status = read_status::<Readiness>(&agent.status_file()).ok()?;
            (status.pid == own).then_some(())
        })
    }

    fn stop(self) -> Result<S> {
        let file = self.status_file();
        self.process.stop(TIMEOUT)?;
        read_status(&file)
    }

    fn end(&mut self, signal: Signal) -> Result<ExitStatus> {
        kill(self.pid(), signal)?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.process.ended()? {
                return Ok(status);
            }
            ensure!(
                Instant::now() < deadline,
                "the agent of the {} did not exit within {TIMEOUT:?} after {signal}",
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

    fn last_log_line(&self) -> String {
        last_log_line(&self.directory.join(format!("{}.log", self.edge.name())))
    }
}

fn read_status<S: DeserializeOwned>(file: &Path) -> Result<S> {
    let text =
        fs::read(file).with_context(|| format!("cannot read the status {}", file.display()))?;
    serde_json::from_slice(&text)
        .with_context(|| format!("{} is not a status file", file.display()))
}

/// Makes `binary` write the secret that both edges share.
fn generate_key(binary: &Path, key: &Path) -> Result<()> {
    let output = Command::new(binary).arg("keygen").arg(key).output();
    let output = output.with_context(|| format!("cannot start {}", binary.display()))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", error.trim());
    Ok(())
}

fn spawn(edge: Edge, namespace: &Namespace, binary: &Path, directory: &Path) -> Result<Process> {
    let mut command = Command::new(binary);
    command
        .args(["agent", "--config"])
        .arg(directory.join(format!("{}.toml", edge.name())));
    redirect(
        &mut command,
        &directory.join(format!("{}.log", edge.name())),
    )?;
    Ok(Process::spawn(namespace, command)?)
}

fn configuration(lab: &Lab, directory: &Path, replication: &Replication, edge: Edge) -> String {
    let node = format!(
        "[node]\nname = {name:?}\nstate = {directory:?}\npins = {pins:?}\n{sources}\n\n\
         [[peer]]\nname = \"peer\"\nnode = {peer:?}\n{secret}\n",
        name = edge.name(),
        pins = lab.pins(edge.name()),
        sources = sources(lab, replication, edge),
        peer = edge.peer().name(),
        secret = secret(replication.authenticate),
    );
    let flows = flows(lab, replication).into_iter();
    let flows = flows.map(|(sender, flow, prefix)| {
        let transparent = replication.transparent && !prefix.contains(':');
        if sender == edge {
            sending(replication.paths, flow, &prefix, transparent)
        } else {
            receiving(flow, &prefix, transparent)
        }
    });
    node + &paths(lab, edge, replication.outer) + &flows.collect::<String>()
}

/// Returns the settings of the peer's keys.
fn secret(authenticate: Option<Cover>) -> &'static str {
    match authenticate {
        Some(Cover::Headers) => "keys = { slot0 = \"pair.key\" }",
        Some(Cover::Whole) => {
            "keys = { slot0 = \"pair.key\" }\ncover = \"whole\"\nrequired_cover = \"whole\""
        }
        None => "authenticate = false",
    }
}

/// Returns the configuration of an agent that receives its flows from the controller, and in-band
/// signals too, without paths.
fn controlled_configuration(
    lab: &Lab,
    directory: &Path,
    identity: &Path,
    control: &impl Controller,
    edge: Edge,
) -> String {
    let node = format!(
        "[node]\nname = {name:?}\nstate = {directory:?}\npins = {pins:?}\n{traffic}\ntrace = {trace:?}\narrival_deadline_ms = 200\n\n\
         [[peer]]\nname = {peer:?}\n\n\
         [controller]\nurls = [{url:?}]\nstate = {identity:?}\n",
        name = edge.name(),
        pins = lab.pins(edge.name()),
        traffic = controlled_traffic(lab, edge),
        trace = directory.join(format!("{}.csv", edge.name())),
        peer = edge.peer().name(),
        url = control.url(edge),
    );
    node + &signals(control, edge)
}

/// Returns the setting of the interfaces whose packets an edge replicates or watches.
fn controlled_traffic(lab: &Lab, edge: Edge) -> String {
    let addressing = lab.addressing();
    match edge {
        Edge::Ingress => format!("transit = [{:?}]", addressing.source.far.device),
        Edge::Egress => format!("watch = [{:?}]", addressing.viewer.near.device),
    }
}

/// Returns the settings of in-band signals, which only the ingress edge gets.
fn signals(control: &impl Controller, edge: Edge) -> String {
    match edge {
        Edge::Ingress => {
            let End { device, v4, .. } = control.node(edge);
            format!("interfaces = [{device:?}]\nsignals = \"{v4}\"\n")
        }
        Edge::Egress => String::new(),
    }
}

/// Returns the `[[path]]` sections of an edge.
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
            path.number(),
            own.device,
        )
    };
    lab.paths().map(entry).collect()
}

/// Returns the setting of the interfaces from which the edge takes the packets of its flows.
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

/// Returns each flow's sending edge, number and destination.
fn flows(lab: &Lab, replication: &Replication) -> Vec<(Edge, u16, String)> {
    let viewer = &lab.addressing().viewer;
    let source = &lab.addressing().source;
    let host = |end: &End| [format!("{}/32", end.v4), format!("{}/128", end.v6)];
    let back = match replication.sender {
        Sender::Source => [source.v4_prefix(), source.v6_prefix()],
        // The source address of packets that the ingress edge itself sends is that of its default
        // path.
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
    let paths: Vec<u8> = paths.iter().map(PathId::number).collect();
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
