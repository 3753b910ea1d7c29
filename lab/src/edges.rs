//! The agents of a lab's two edges, with one flow from the source to the viewer.

use crate::topology::Lab;
use anyhow::{Context, Result, bail};
use hawser_agent::{Status, generate_key};
use hawser_io::process::Process;
use hawser_units::{PathId, PathSet};
use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// The flow's number at both edges.
pub const FLOW: u16 = 1;

/// How long an agent may take to attach its programs, and to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the edges do with the traffic to the viewer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replication {
    /// The paths that copies take; none: the default route, past the programs.
    pub paths: PathSet,
    /// The IP version of the outer headers.
    pub outer: Outer,
    /// Whether copies carry tags.
    pub authenticate: bool,
    /// The paper's form: nothing is added to packets.
    pub transparent: bool,
}

/// The IP version between the edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outer {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Replication {
    /// Authenticated copies on `paths` over IPv4.
    pub fn on(paths: PathSet) -> Self {
        Replication { paths, outer: Outer::V4, authenticate: true, transparent: false }
    }
}

/// Running agents. They end when this is dropped.
#[derive(Debug)]
pub struct Edges {
    ingress: Agent,
    egress: Agent,
}

#[derive(Debug)]
struct Agent {
    process: Process,
    role: &'static str,
    status: PathBuf,
    log: PathBuf,
}

impl Edges {
    /// Starts both agents and waits until their programs are attached. `binary` is `hawser`; configurations and logs go
    /// to `directory`.
    pub fn start(lab: &Lab, binary: &Path, directory: &Path, replication: &Replication) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let key = directory.join("pair.key");
        if replication.authenticate && !key.exists() {
            generate_key(&key).with_context(|| format!("cannot write {}", key.display()))?;
        }
        let start = |role: &'static str, namespace, flow: &str| -> Result<Agent> {
            let config = directory.join(format!("{role}.toml"));
            fs::write(&config, configuration(lab, directory, replication, role, flow))
                .with_context(|| format!("cannot write {}", config.display()))?;
            let log = directory.join(format!("{role}.log"));
            let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
            let mut command = Command::new(binary);
            command.args(["agent", "--config"]).arg(&config).stdout(output.try_clone()?).stderr(output);
            let process = Process::spawn(namespace, command)?;
            Ok(Agent { process, role, status: directory.join(role).join("status.json"), log })
        };
        // The egress first: a copy without an elimination is lost.
        let mut egress = start("egress", lab.egress(), &receiving(lab, replication))?;
        egress.wait_until_ready()?;
        let mut ingress = start("ingress", lab.ingress(), &sending(lab, replication))?;
        ingress.wait_until_ready()?;
        Ok(Edges { ingress, egress })
    }

    /// What the ingress edge says of itself, at most a second old.
    pub fn ingress(&self) -> Result<Status> {
        Status::read(&self.ingress.status)
    }

    /// What the egress edge says of itself, at most a second old.
    pub fn egress(&self) -> Result<Status> {
        Status::read(&self.egress.status)
    }

    /// Ends both agents and returns what they said last: first the ingress, then the egress.
    pub fn stop(self) -> Result<(Status, Status)> {
        Ok((self.ingress.stop()?, self.egress.stop()?))
    }
}

impl Agent {
    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while Status::read(&self.status).map(|status| status.pid).ok() != Some(self.process.id()) {
            if let Some(status) = self.process.ended()? {
                bail!("the agent of the {} ended with {status}: {}", self.role, self.last_words());
            }
            if Instant::now() > deadline {
                bail!(
                    "the agent of the {} is not ready after {PATIENCE:?}: {}",
                    self.role,
                    self.last_words()
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn stop(self) -> Result<Status> {
        self.process.stop(PATIENCE)?;
        Status::read(&self.status)
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().last().unwrap_or("it said nothing").to_owned()
    }
}

fn configuration(lab: &Lab, directory: &Path, replication: &Replication, role: &str, flow: &str) -> String {
    let transit = if role == "ingress" {
        format!("transit = [{:?}]", lab.addressing().source.far.device)
    } else {
        String::new()
    };
    let secret =
        if replication.authenticate { "keys = { slot0 = \"pair.key\" }" } else { "authenticate = false" };
    let mut text = format!(
        "[node]\nname = {role:?}\nstate = {directory:?}\npins = {:?}\n{transit}\n\n[[peer]]\nname = \"peer\"\n{secret}\n",
        lab.pins(role),
    );
    for path in lab.paths() {
        let link = lab.path(path);
        let (own, other) = if role == "ingress" { (&link.near, &link.far) } else { (&link.far, &link.near) };
        let (local, remote) = match replication.outer {
            Outer::V4 => (own.v4.to_string(), other.v4.to_string()),
            Outer::V6 => (own.v6.to_string(), other.v6.to_string()),
        };
        let _ = write!(
            text,
            "\n[[path]]\nnumber = {}\ninterface = {:?}\nlocal = {local:?}\nremote = {remote:?}\n",
            number(path),
            own.device,
        );
    }
    text + flow
}

fn sending(lab: &Lab, replication: &Replication) -> String {
    let paths: Vec<u8> = replication.paths.iter().map(number).collect();
    prefixes(lab)
        .iter()
        .zip(FLOW..)
        .map(|(prefix, flow)| {
            format!(
                "\n[[send]]\nflow = {flow}\npeer = \"peer\"\nselect = {{ destination = {prefix:?} }}\npaths = {paths:?}\n\
                 transparent = {}\n",
                replication.transparent,
            )
        })
        .collect()
}

fn receiving(lab: &Lab, replication: &Replication) -> String {
    prefixes(lab)
        .iter()
        .zip(FLOW..)
        .map(|(prefix, flow)| {
            let transparent = format!("transparent = {{ destination = {prefix:?} }}\n");
            let transparent = if replication.transparent { transparent } else { String::new() };
            format!("\n[[receive]]\nflow = {flow}\npeer = \"peer\"\n{transparent}")
        })
        .collect()
}

/// The viewer's networks: IPv4 is [`FLOW`], IPv6 the one after it.
fn prefixes(lab: &Lab) -> [String; 2] {
    let viewer = &lab.addressing().viewer;
    [viewer.v4_prefix(), viewer.v6_prefix()]
}

fn number(path: PathId) -> u8 {
    u8::from(path) + 1
}
