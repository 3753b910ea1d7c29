//! A lab of two paths whose edges are under a controller in a network of its own.

use crate::rig::{Edges, Rig};
use crate::support::{hawser, wait};
use hawser_model::Name;
use hawser_model::node::Assignment;
use hawser_model::resource::{Flow, Mode, Override, Pruning, Selector, Trigger};
use hawser_testbed::process::Process;
use hawser_testbed::topology::{Lab, Topology};
use hawser_testing::Control;
use hawser_units::PolicyCode;
use std::fs;
use std::path::Path;
use std::process::Command;

pub(super) struct Controlled {
    pub(super) rig: Rig,
    pub(super) control: Control,
    /// A controller that replaced one that was killed.
    restarted: Option<Process>,
}

impl Controlled {
    /// Starts the controller and both edges.
    pub(super) fn new() -> Self {
        Controlled::starting(lab(2), Edges::start_controlled)
    }

    /// Starts the controller and both edges, which have uplinks and no paths.
    pub(super) fn discovering(lab: Lab) -> Self {
        Controlled::starting(lab, Edges::start_discovering)
    }

    fn starting(
        lab: Lab,
        start: fn(&Lab, &Path, &Path, &Control) -> anyhow::Result<Edges>,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let control = Control::start(&lab, &hawser(), directory.path()).unwrap();
        let edges = start(&lab, &hawser(), directory.path(), &control).unwrap();
        Controlled {
            rig: Rig {
                edges,
                lab,
                directory,
            },
            control,
            restarted: None,
        }
    }

    /// Waits until both agents are connected.
    pub(super) fn await_connection(&mut self) {
        for agent in [
            &mut self.rig.edges.ingress_agent,
            &mut self.rig.edges.egress_agent,
        ] {
            agent
                .wait_until("connected", |status| state(status) == "connected")
                .unwrap();
        }
    }

    /// Starts with a flow of all IPv4 packets to the viewer, in force at both edges with the
    /// initial code of the mode.
    pub(super) fn with_flow(mode: Mode, trigger: Option<Trigger>) -> Self {
        let mut controlled = Controlled::new();
        let flow = controlled.flow(mode, trigger);
        let code = if flow.trigger.is_none() { 0b11 } else { 0 };
        controlled.control.create_flow(&flow).unwrap();
        controlled.await_code(code);
        controlled
    }

    pub(super) fn flow(&self, mode: Mode, trigger: Option<Trigger>) -> Flow {
        let word = |word: &str| word.parse::<Name>().unwrap();
        Flow {
            name: stage(),
            tenant: Control::tenant(),
            ingress: word("ingress"),
            egress: word("egress"),
            select: to(self.rig.lab.addressing().viewer.v4_prefix()),
            paths: Vec::new(),
            mode,
            trigger,
            pruning: Pruning::default(),
            transparent: false,
        }
    }

    /// Overrides the policy, so that the flow uses the paths of `code`.
    pub(super) fn fix(&self, code: u8) {
        let fixed = self.control.ask(async |client| {
            client
                .override_policy(
                    &stage(),
                    Override {
                        code: PolicyCode(code),
                    },
                )
                .await
        });
        fixed.unwrap();
    }

    /// Waits until both edges report that the flow uses the paths of `code`.
    pub(super) fn await_code(&mut self, code: u8) {
        let edges = &mut self.rig.edges;
        edges
            .ingress_agent
            .wait_until("took the policy", |status| sent_code(status) == Some(code))
            .unwrap();
        edges
            .egress_agent
            .wait_until("received the policy", |status| {
                received_code(status) == Some(code)
            })
            .unwrap();
    }

    /// Waits until the ingress has saved an assignment as wanted, with which its agent starts without a
    /// controller.
    pub(super) fn await_saved(&self, is_wanted: impl Fn(&Assignment) -> bool) {
        let file = self.rig.file("identity/ingress/assignment.json");
        wait("the saved assignment", || {
            let saved: Assignment = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
            is_wanted(&saved).then_some(())
        });
    }

    /// Kills the controller with SIGKILL.
    pub(super) fn kill_controller(&mut self) {
        match self.restarted.take() {
            Some(process) => drop(process),
            None => self.control.kill().unwrap(),
        }
        for agent in [
            &mut self.rig.edges.ingress_agent,
            &mut self.rig.edges.egress_agent,
        ] {
            agent
                .wait_until("noticed the loss of the controller", |status| {
                    state(status) == "unreachable"
                })
                .unwrap();
        }
    }

    /// Starts the controller again and waits until both agents are connected.
    pub(super) fn start_controller_again(&mut self) {
        let directory = self.rig.directory.path();
        let log = fs::File::create(directory.join("controller-again.log")).unwrap();
        let mut command = Command::new(hawser());
        command
            .args(["controller", "--config"])
            .arg(directory.join("controller.toml"));
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.restarted = Some(Process::spawn(self.rig.lab.control().unwrap(), command).unwrap());
        self.await_connection();
    }
}

/// Returns a lab with a control network, whose paths have neither delay nor loss.
pub(super) fn lab(paths: usize) -> Lab {
    let topology = Topology {
        paths,
        control: true,
        ..Topology::default()
    };
    let lab = topology.build().unwrap();
    lab.paths()
        .for_each(|path| lab.bridge_for_xdp(path).unwrap());
    lab
}

pub(super) fn stage() -> Name {
    "stage".parse().unwrap()
}

pub(super) fn to(destination: String) -> Selector {
    Selector {
        destination,
        protocol: None,
        source_ports: None,
        destination_ports: None,
    }
}

/// Returns the change of a configuration that names a key file for the peer.
pub(super) fn with_key_file(peer: &str, key: &str) -> impl FnOnce(&str) -> String {
    let name = format!("[[peer]]\nname = {peer:?}\n");
    let keys = format!("{name}keys = {{ slot0 = {key:?} }}\n");
    move |text| text.replace(&name, &keys)
}

/// Returns the state of the node's connection to the controller.
pub(super) fn state(status: &hawser_agent::Status) -> &str {
    status
        .controller
        .as_ref()
        .map_or("none", |controller| &controller.state)
}

pub(super) fn sent_code(status: &hawser_agent::Status) -> Option<u8> {
    let policies = &status.controller.as_ref()?.send;
    policies
        .values()
        .find(|policy| policy.flow == stage())
        .map(|policy| policy.code)
}

pub(super) fn received_code(status: &hawser_agent::Status) -> Option<u8> {
    let judged = &status.controller.as_ref()?.receive;
    judged
        .values()
        .find(|judged| judged.policy.flow == stage())
        .map(|judged| judged.policy.code)
}
