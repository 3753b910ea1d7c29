//! A controller on a lab's control network, for tests and experiments, and the enrolment of both edges with it.

use anyhow::{Context, Result, bail};
use hawser_client::{Controller, Identity, OperatorClient, enrol};
use hawser_model::Name;
use hawser_model::access::NewEnrolment;
use hawser_model::resource::{Event, Flow, Tenant};
use hawser_testbed::edges::{self, Controller as _};
use hawser_testbed::logs::{last_log_line, redirect, redirect_again};
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use hawser_testbed::topology::{Edge, End, Lab, Link};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const PORT: u16 = 14750;

/// The maximum time for a controller and its nodes to be ready, and for the controller to exit.
const TIMEOUT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running controller. It is stopped when this is dropped.
#[derive(Debug)]
pub struct Control {
    process: Process,
    namespace: Namespace,
    binary: PathBuf,
    configuration: PathBuf,
    /// The folder of its state: certificate authority, database, the first operator's token.
    state: PathBuf,
    log: PathBuf,
    /// The links to the ingress edge and to the egress edge.
    links: [Link; 2],
}

impl Control {
    /// Starts the controller, waits until it responds, and creates the tenant of
    /// [`Control::tenant`]. `binary` is `hawser`. Configuration, state and log go to `directory`.
    pub fn start(lab: &Lab, binary: &Path, directory: &Path) -> Result<Self> {
        const NO_NETWORK: &str = "the lab has no control network";
        let namespace = lab.control().context(NO_NETWORK)?.clone();
        let links = lab.addressing().control.clone().context(NO_NETWORK)?;
        let state = directory.join("controller");
        let log = directory.join("controller.log");
        let configuration = directory.join("controller.toml");
        write_configuration(&configuration, &links, &state)?;
        let mut command = command(binary, &configuration);
        redirect(&mut command, &log)?;
        let mut control = Control {
            process: Process::spawn(&namespace, command)?,
            namespace,
            binary: binary.to_owned(),
            configuration,
            state,
            log,
            links,
        };
        control.wait_until_responding()?;
        control.create_tenant()?;
        Ok(control)
    }

    /// Starts the controller again after it was killed, and waits until it responds. It appends to its log.
    pub fn start_again(&mut self) -> Result<()> {
        let mut command = command(&self.binary, &self.configuration);
        redirect_again(&mut command, &self.log)?;
        self.process = Process::spawn(&self.namespace, command)?;
        self.wait_until_responding()
    }

    fn wait_until_responding(&mut self) -> Result<()> {
        self.wait_until("responded", |control| {
            control.ask(async |client| client.me().await).is_ok()
        })
    }

    fn create_tenant(&self) -> Result<()> {
        let tenant = Tenant {
            name: Control::tenant(),
            description: String::new(),
        };
        self.ask(async |client| client.create_tenant(&tenant).await)?;
        Ok(())
    }

    /// The tenant of the lab's nodes and flows.
    pub fn tenant() -> Name {
        name("lab")
    }

    fn link(&self, edge: Edge) -> &Link {
        match edge {
            Edge::Ingress => &self.links[0],
            Edge::Egress => &self.links[1],
        }
    }

    /// Waits until both edges are alive, creates the flow, and waits until both edges report it.
    pub fn create_flow(&mut self, flow: &Flow) -> Result<()> {
        let edges = [flow.ingress.clone(), flow.egress.clone()];
        self.wait_until("saw both edges alive", |control| {
            let alive = |node: &Name| {
                control
                    .ask(async |client| client.node(node).await)
                    .is_ok_and(|node| node.alive && !node.paths.is_empty())
            };
            edges.iter().all(alive)
        })?;
        self.ask(async |client| client.create_flow(flow).await)?;
        self.wait_until("received reports of the flow from both edges", |control| {
            let has_it = |node: &Name| {
                let reported = control.ask(async |client| client.report(node).await);
                reported.is_ok_and(|reported| {
                    let sends = reported.report.sends.iter().map(|send| &send.flow);
                    let receives = reported.report.receives.iter().map(|receive| &receive.flow);
                    sends.chain(receives).any(|name| *name == flow.name)
                })
            };
            edges.iter().all(has_it)
        })
    }

    /// Returns all events of the controller.
    pub fn events(&self) -> Result<Vec<Event>> {
        self.ask(async |client| client.events(0).all().await)
    }

    /// Kills the controller with SIGKILL.
    pub fn kill(&self) -> Result<()> {
        let process = i32::try_from(self.process.id()).context("a process id is a positive i32")?;
        Ok(kill(Pid::from_raw(process), Signal::SIGKILL)?)
    }

    /// Stops the controller.
    pub fn stop(self) -> Result<()> {
        let status = self.process.stop(TIMEOUT)?;
        if !status.success() {
            bail!(
                "the controller exited with {status}: {}",
                last_log_line(&self.log)
            );
        }
        Ok(())
    }

    /// Sends a request as the operator that the controller created at its first start.
    pub fn ask<T: Send>(
        &self,
        request: impl AsyncFnOnce(&OperatorClient) -> Result<T, hawser_client::Error> + Send,
    ) -> Result<T> {
        let read = |file: &str| {
            let path = self.state.join(file);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let (authority, token) = (read("authority.pem")?, read("admin.token")?);
        let client = OperatorClient::new(&[self.controller()?], &authority, &token)?;
        Ok(self.run(async move || request(&client).await)??)
    }

    fn controller(&self) -> Result<Controller> {
        Ok(self.url(Edge::Ingress).parse()?)
    }

    /// Runs a future in the controller's namespace.
    fn run<T: Send>(&self, work: impl AsyncFnOnce() -> T + Send) -> Result<T> {
        let inside = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            Ok(runtime.block_on(work()))
        };
        self.namespace.run(inside)?
    }

    fn wait_until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !condition(self) {
            if let Some(status) = self.process.ended()? {
                bail!(
                    "the controller exited with {status}: {}",
                    last_log_line(&self.log)
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "the controller never {what} within {TIMEOUT:?}: {}",
                    last_log_line(&self.log)
                );
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

impl edges::Controller for Control {
    fn enrol(&self, node: &str, folder: &Path) -> Result<()> {
        let node = name(node);
        let enrolment = NewEnrolment {
            tenant: Control::tenant(),
            valid_s: 600,
        };
        let token = self
            .ask(async |client| client.enrol_node(&node, &enrolment).await)?
            .token;
        let controllers = [self.controller()?];
        let identity: Identity = self.run(async || enrol(&controllers, &token).await)??;
        identity
            .store(folder)
            .with_context(|| format!("cannot store the identity in {}", folder.display()))
    }

    fn url(&self, edge: Edge) -> String {
        format!("https://{}:{PORT}", self.link(edge).near.v4)
    }

    fn node(&self, edge: Edge) -> &End {
        &self.link(edge).far
    }
}

fn command(binary: &Path, configuration: &Path) -> Command {
    let mut command = Command::new(binary);
    command.args(["controller", "--config"]).arg(configuration);
    command
}

/// Writes a configuration of the controller, which listens on all of its links.
fn write_configuration(file: &Path, links: &[Link; 2], state: &Path) -> Result<()> {
    let names = links.each_ref().map(|link| link.near.v4.to_string());
    let text = format!(
        "listen = \"0.0.0.0:{PORT}\"\nnames = {names:?}\nstate = {state:?}\n\n[nodes]\nreport_every_ms = 1000\n"
    );
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn name(text: &str) -> Name {
    text.parse().expect("the lab's names are words of letters")
}
