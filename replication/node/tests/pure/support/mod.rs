//! A model of the world around a node: a controller, its connection and the kernel.

use hawser_model::Name;
use hawser_model::discovery::Discovery;
use hawser_model::node::{Assignment, Observation, Receive, Send};
use hawser_model::pair::AssignedKeys;
use hawser_model::resource::{Cause, Mode, Policy, Pruning, Selector};
use hawser_node::{
    Command, Connection, ControlledNode, Equipment, Event, Flows, Message, Outcome, PolicyWord,
    ReportContent, Signal, SignalOutcome,
};
use hawser_units::{FlowId, Instant, PathSet, PolicyCode};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The paths of the node when it starts.
pub(crate) const PATHS: PathSet = PathSet::from_bits(0b11);

/// The peer whose key the node has.
pub(crate) const PEER: &str = "peer";

/// The observations about this flow are rejected by the controller.
pub(crate) const REJECTED: &str = "f2";

/// The name of a flow.
pub(crate) fn name(flow: u16) -> Name {
    format!("f{flow}").parse().unwrap()
}

/// A policy of a flow.
pub(crate) fn policy(flow: u16, epoch: u32, code: u8) -> Policy {
    Policy {
        flow: name(flow),
        epoch,
        code: PolicyCode(code),
        probes: PathSet::EMPTY,
        probe_every: 0,
        reason: Cause::Judged,
        decided_unix_ms: epoch.into(),
    }
}

/// A flow to send with the number `number`.
pub(crate) fn send(number: u16, policy: Policy) -> Send {
    Send {
        flow: policy.flow.clone(),
        number,
        peer: PEER.parse().unwrap(),
        select: Selector {
            destination: "203.0.113.0/24".to_owned(),
            protocol: None,
            source_ports: None,
            destination_ports: None,
        },
        policy,
        transparent: None,
    }
}

/// A flow to receive with the number `number`.
pub(crate) fn receive(number: u16, mode: Mode, policy: Policy) -> Receive {
    Receive {
        flow: policy.flow.clone(),
        number,
        peer: PEER.parse().unwrap(),
        mode,
        pruning: Pruning::default(),
        paths: PATHS,
        trigger: None,
        policy,
        transparent: None,
        select: None,
    }
}

/// An assignment.
pub(crate) fn assignment(revision: u64, sends: Vec<Send>, receives: Vec<Receive>) -> Assignment {
    Assignment {
        revision,
        incarnation: None,
        report_every_ms: 5_000,
        reconnect_within_ms: 0,
        signal_key: None,
        sends,
        receives,
        keys: AssignedKeys::default(),
        discovery: Discovery::default(),
    }
}

/// A node that has `paths`.
pub(crate) fn equipment(paths: PathSet) -> Equipment {
    Equipment {
        paths,
        adjacent: paths,
        discovers: false,
        replicates: true,
        watches: true,
        peers: [PEER.to_owned()].into(),
        max_rules: 16,
        arrival_deadline: Duration::from_millis(200),
    }
}

/// The kernel: it accepts a policy of a flow that it has if the epoch is greater.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    flows: BTreeMap<FlowId, (Name, PolicyWord)>,
    received: Vec<FlowId>,
    /// Signals whose records the node has not read.
    signals: VecDeque<(Instant, FlowId, PolicyWord, SignalOutcome)>,
    /// Whether setting flows fails.
    pub(crate) is_failing: bool,
    /// Whether setting flows failed since the last time it did not.
    pub(crate) is_outdated: bool,
    /// How often setting flows has failed.
    pub(crate) failures: u32,
}

impl Kernel {
    /// A kernel into which an agent that starts puts its flows.
    pub(crate) fn start(flows: &Flows) -> Self {
        let mut kernel = Kernel::default();
        kernel.set_flows(flows, true);
        kernel
    }

    /// The policy that the kernel holds.
    pub(crate) fn word(&self, flow: FlowId) -> Option<PolicyWord> {
        self.flows.get(&flow).map(|(_, word)| *word)
    }

    /// The numbers of the flows that are deduplicated.
    pub(crate) fn received(&self) -> &[FlowId] {
        &self.received
    }

    /// Handles an in-band signal.
    pub(crate) fn signal(&mut self, at: Instant, flow: FlowId, signal: PolicyWord) {
        let Some((_, word)) = self.flows.get_mut(&flow) else {
            return;
        };
        let outcome = if signal.epoch > word.epoch {
            *word = signal;
            SignalOutcome::Accepted
        } else {
            SignalOutcome::Outdated
        };
        self.signals.push_back((at, flow, signal, outcome));
    }

    fn set_flows(&mut self, flows: &Flows, replace_policies: bool) -> Vec<FlowId> {
        let mut in_force = Vec::new();
        self.flows.retain(|flow, _| flows.sends.contains_key(flow));
        for (flow, send) in &flows.sends {
            let new = PolicyWord::from(&send.policy);
            let known = self.flows.get(flow);
            let continues = known.filter(|(name, _)| *name == send.name && !replace_policies);
            if continues.is_none_or(|(_, word)| new.epoch > word.epoch) {
                self.flows.insert(*flow, (send.name.clone(), new));
                in_force.push(*flow);
            }
        }
        self.received = flows.receives.keys().copied().collect();
        self.is_outdated = false;
        in_force
    }

    fn set_policy(&mut self, flow: FlowId, policy: &Policy) -> bool {
        let (name, word) = (self.flows.get_mut(&flow)).expect("only set flows get policies");
        assert_eq!(*name, policy.flow, "the policy belongs to the flow");
        let is_newer = policy.epoch > word.epoch;
        if is_newer {
            *word = policy.into();
        }
        is_newer
    }
}

/// A process that drives a node, with everything that the node has made it do.
pub(crate) struct Agent {
    pub(crate) now: Instant,
    pub(crate) node: ControlledNode,
    pub(crate) kernel: Kernel,
    pub(crate) paths: PathSet,
    pub(crate) saved: Option<Assignment>,
    /// The report that the controller has not acknowledged.
    pub(crate) in_flight: Option<ReportContent>,
    /// The observations that were made since the process started.
    pub(crate) made: Vec<Observation>,
    /// The observations in acknowledged reports since then.
    pub(crate) acknowledged: Vec<Observation>,
    /// The revision of the last report.
    pub(crate) reported_revision: u64,
}

impl Agent {
    /// Starts a process with the saved assignment of an earlier one.
    pub(crate) fn start(now: Instant, saved: Option<Assignment>, paths: PathSet) -> Self {
        let node = ControlledNode::new(saved.clone(), equipment(paths), now);
        let mut agent = Agent {
            now,
            kernel: Kernel::start(&node.flows()),
            node,
            paths,
            saved,
            in_flight: None,
            made: Vec::new(),
            acknowledged: Vec::new(),
            reported_revision: 0,
        };
        agent.carry_out();
        agent
    }

    pub(crate) fn message(&mut self, message: Message) {
        self.node.handle_message(self.now, message);
        self.carry_out();
    }

    pub(crate) fn connect(&mut self) {
        self.message(Message::Connection(Connection::Connected));
        self.message(Message::Ready);
    }

    pub(crate) fn disconnect(&mut self) {
        self.message(Message::Connection(Connection::Unreachable(
            "gone".to_owned(),
        )));
        if self.in_flight.take().is_some() {
            self.message(Message::ReportLost);
        }
    }

    pub(crate) fn set_paths(&mut self, paths: PathSet) {
        self.paths = paths;
        self.node.handle_equipment(self.now, equipment(paths));
        self.carry_out();
    }

    /// Reads the kernel's records of signals.
    pub(crate) fn read_signals(&mut self) {
        while let Some((at, flow, word, outcome)) = self.kernel.signals.pop_front() {
            let signal = Signal {
                at,
                flow,
                epoch: word.epoch,
                code: word.code,
                outcome,
                in_force: self.kernel.word(flow).unwrap_or_default(),
            };
            self.node.handle_signal(self.now, signal);
            self.carry_out();
        }
    }

    /// Lets time pass in steps, as a process does that wakes up when something is due.
    pub(crate) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        let mut passes = 0;
        loop {
            let due = self.node.poll_timeout().unwrap_or(end);
            self.now = due.clamp(self.now, end);
            let copies = self.now.as_nanos();
            self.node.handle_copies(self.now, |_, _| copies);
            self.node.handle_timeout(self.now);
            self.carry_out();
            let next = self.node.poll_timeout();
            // The command that was just carried out may have to be reported at once.
            let is_due = next.is_some_and(|next| next <= self.now);
            passes = if is_due { passes + 1 } else { 0 };
            assert!(
                passes < 3,
                "nothing is due without end: {next:?} at {:?}",
                self.now
            );
            if self.now == end && !is_due {
                return;
            }
        }
    }

    /// Acknowledges the report, or rejects it if it is about a flow whose observations are.
    pub(crate) fn acknowledge(&mut self) {
        let Some(report) = self.in_flight.take() else {
            return;
        };
        if report.observations.iter().any(is_rejected) {
            self.message(Message::ReportRejected);
        } else {
            self.acknowledged.extend(report.observations);
            self.reported_revision = report.revision;
        }
        self.message(Message::Ready);
    }

    /// Carries out all commands.
    fn carry_out(&mut self) {
        loop {
            while let Some(event) = self.node.poll_event() {
                self.made.extend(observation(event));
            }
            let Some(command) = self.node.poll_command() else {
                return;
            };
            if let Some(outcome) = self.execute(command) {
                self.node.handle_outcome(self.now, outcome);
            }
        }
    }

    fn execute(&mut self, command: Command) -> Option<Outcome> {
        match command {
            Command::SetFlows { .. } if self.kernel.is_failing => {
                self.kernel.is_outdated = true;
                self.kernel.failures += 1;
                Some(Outcome::NotApplied)
            }
            Command::SetFlows {
                flows,
                replace_policies,
            } => {
                let in_force = self.kernel.set_flows(&flows, replace_policies);
                Some(Outcome::FlowsSet(in_force))
            }
            Command::Configure { .. } => Some(Outcome::Configured),
            // The model does not say which policies a kernel has whose flows could not be set.
            Command::SetPolicy { policy, .. } if self.kernel.is_outdated => {
                Some(Outcome::PolicyFailed {
                    flow: policy.flow,
                    reason: "failing".to_owned(),
                })
            }
            Command::SetPolicy { flow, policy } => Some(Outcome::PolicySet {
                took_effect: self.kernel.set_policy(flow, &policy),
                policy,
            }),
            Command::Report(report) => {
                assert!(self.in_flight.is_none(), "one report at a time");
                self.in_flight = Some(report);
                None
            }
            Command::Persist(assignment) => {
                self.saved = Some(assignment);
                None
            }
            // The agents of these tests have key files; `key_changes.rs` is about keys.
            Command::MakeKey { .. } | Command::SaveKeys(_) | Command::StateKeys(_) => {
                panic!("{command:?}")
            }
        }
    }
}

/// Returns whether the controller rejects an observation.
pub(crate) fn is_rejected(observation: &Observation) -> bool {
    matches!(observation, Observation::Applied { flow, .. } if flow.as_str() == REJECTED)
}

/// Returns the observation that an event stands for.
fn observation(event: Event) -> Option<Observation> {
    match event {
        Event::PolicyApplied {
            flow,
            policy,
            by_signal,
            ..
        } => Some(Observation::Applied {
            flow,
            epoch: policy.epoch,
            code: policy.code,
            by_signal,
        }),
        Event::NotApplied { flow, reason } => Some(Observation::NotApplied { flow, reason }),
        Event::Observed { observation, .. } => Some(observation),
        _ => None,
    }
}
