//! A controller on a lab's control network, both edges enrolled with it.

use crate::edges::Edge;
use crate::logs::last_words;
use crate::topology::{End, Lab, Link};
use anyhow::{Context, Result, bail};
use hawser_client::{Controller, Identity, OperatorClient, enrol};
use hawser_control::Name;
use hawser_control::access::NewEnrolment;
use hawser_control::resource::{Event, Flow, Tenant};
use hawser_io::netns::Namespace;
use hawser_io::process::Process;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const PORT: u16 = 14750;

/// How long a controller and its nodes may take to be ready, and to end.
const PATIENCE: Duration = Duration::from_secs(30);

const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A running controller. It ends when this is dropped.
#[derive(Debug)]
pub struct Control {
    process: Process,
    namespace: Namespace,
    /// Its state: authority, database, the first operator's token.
    state: PathBuf,
    log: PathBuf,
    /// To the ingress and to the egress.
    links: [Link; 2],
}

impl Control {
    /// Starts the controller and waits until it answers; it makes the tenant of [`Control::tenant`]. `binary` is
    /// `hawser`; configuration, state and log go to `directory`.
    pub fn start(lab: &Lab, binary: &Path, directory: &Path) -> Result<Self> {
        let namespace = lab
            .control()
            .context("the lab has no control network")?
            .clone();
        let links = lab
            .addressing()
            .control
            .as_ref()
            .context("the lab has no control network")?;
        let (state, log) = (
            directory.join("controller"),
            directory.join("controller.log"),
        );
        let configuration = directory.join("controller.toml");
        let names = links.each_ref().map(|link| link.near.v4.to_string());
        fs::write(
            &configuration,
            format!(
                "listen = \"0.0.0.0:{PORT}\"\nnames = {names:?}\nstate = {state:?}\n\n[nodes]\nreport_every_ms = 1000\n"
            ),
        )
        .with_context(|| format!("cannot write {}", configuration.display()))?;
        let output =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(binary);
        command.args(["controller", "--config"]).arg(&configuration);
        command.stdout(output.try_clone()?).stderr(output);
        let process = Process::spawn(&namespace, command)?;
        let mut control = Control {
            process,
            namespace,
            state,
            log,
            links: links.clone(),
        };
        control.wait_until("answers", |control| {
            control.ask(async |client| client.me().await).is_ok()
        })?;
        let tenant = Tenant {
            name: Control::tenant(),
            description: String::new(),
        };
        control.ask(async |client| client.create_tenant(&tenant).await)?;
        Ok(control)
    }

    /// Whose nodes and flows they are.
    pub fn tenant() -> Name {
        name("lab")
    }

    /// The URL by which an edge reaches the controller.
    pub fn url(&self, edge: Edge) -> String {
        format!("https://{}:{PORT}", self.link(edge).near.v4)
    }

    /// An edge's end of the control network.
    pub fn node(&self, edge: Edge) -> &End {
        &self.link(edge).far
    }

    fn link(&self, edge: Edge) -> &Link {
        match edge {
            Edge::Ingress => &self.links[0],
            Edge::Egress => &self.links[1],
        }
    }

    /// Gives a node its identity, into `folder`.
    pub fn enrol(&self, node: &str, folder: &Path) -> Result<()> {
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
            .with_context(|| format!("cannot keep the identity in {}", folder.display()))
    }

    /// Waits until both edges live, makes the flow, and waits until both say that they have it.
    pub fn create_flow(&mut self, flow: &Flow) -> Result<()> {
        let edges = [flow.ingress.clone(), flow.egress.clone()];
        self.wait_until("knows both edges to live", |control| {
            let alive = |node: &Name| {
                control
                    .ask(async |client| client.node(node).await)
                    .is_ok_and(|node| node.alive && !node.paths.is_empty())
            };
            edges.iter().all(alive)
        })?;
        self.ask(async |client| client.create_flow(flow).await)?;
        self.wait_until("was told that both edges have the flow", |control| {
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

    /// Everything that the controller found worth telling.
    pub fn events(&self) -> Result<Vec<Event>> {
        self.ask(async |client| client.events(0).all().await)
    }

    /// Ends the controller.
    pub fn stop(self) -> Result<()> {
        let status = self.process.stop(PATIENCE)?;
        if !status.success() {
            bail!(
                "the controller ended with {status}: {}",
                last_words(&self.log)
            );
        }
        Ok(())
    }

    /// Asks the controller as the operator whom it made when it first started.
    pub fn ask<T: Send>(
        &self,
        question: impl AsyncFnOnce(&OperatorClient) -> Result<T, hawser_client::Error> + Send,
    ) -> Result<T> {
        let read = |file: &str| {
            let path = self.state.join(file);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let (authority, token) = (read("authority.pem")?, read("admin.token")?);
        let client = OperatorClient::new(&[self.controller()?], &authority, &token)?;
        Ok(self.run(async move || question(&client).await)??)
    }

    fn controller(&self) -> Result<Controller> {
        Ok(self.url(Edge::Ingress).parse()?)
    }

    /// Runs something in the controller's own namespace.
    fn run<T: Send>(&self, work: impl AsyncFnOnce() -> T + Send) -> Result<T> {
        let inside = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            Ok(runtime.block_on(work()))
        };
        self.namespace.run(inside)?
    }

    fn wait_until(&mut self, what: &str, hoped: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !hoped(self) {
            if let Some(status) = self.process.ended()? {
                bail!(
                    "the controller ended with {status}: {}",
                    last_words(&self.log)
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "the controller never {what} within {PATIENCE:?}: {}",
                    last_words(&self.log)
                );
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }
}

fn name(text: &str) -> Name {
    text.parse().expect("the lab's names are words of letters")
}
