//! Messages, signals, failures and restarts in any order: node, kernel and controller agree when
//! everything has arrived, and no observation is lost or reported twice.

use crate::support;

use hawser_model::node::{Assignment, Observation};
use hawser_model::resource::{Mode, Policy};
use hawser_node::{Message, PolicyWord};
use hawser_units::{FlowId, Instant, PathSet};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use support::{Agent, PATHS, assignment, policy, receive, send};

/// The numbers of flows and the names that they get.
const FLOWS: u16 = 4;

/// The number of reports that the observations of one run need at most.
const MAX_REPORTS: usize = 1_000;

/// The revisions between two times that the controller restarts counting.
const GENERATION: u64 = 1_000_000;

#[derive(Debug, Clone)]
enum Operation {
    /// Time passes, milliseconds.
    Advance(u64),
    /// An operator creates a flow.
    Create {
        name: u16,
        number: u16,
        kind: Kind,
    },
    /// An operator deletes the flow of a number.
    Delete(u16),
    /// The controller decides, and sends so many signals of the new policy.
    Decide {
        number: u16,
        code: u8,
        signals: u8,
    },
    /// A signal of an earlier policy arrives.
    Replay(usize),
    /// So many messages arrive from the controller.
    Deliver(usize),
    /// The last message arrives again.
    Repeat,
    /// The node reads the kernel's records of signals.
    ReadSignals,
    /// The controller acknowledges or rejects a report.
    Acknowledge,
    Connect,
    Disconnect,
    /// The controller loses its store.
    RestartCounting,
    /// The process restarts with the saved state and sets the flows in the kernel again.
    RestartNode,
    /// The configuration has other paths from now on.
    SetPaths(u8),
    /// Flows cannot be set, or can be again.
    Fail(bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sent,
    Received,
    /// A flow to send to a node whose keys are missing.
    Refused,
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let number = 0..FLOWS;
    let kind = prop_oneof![
        3 => Just(Kind::Sent),
        1 => Just(Kind::Received),
        1 => Just(Kind::Refused)
    ];
    prop_oneof![
        4 => (0..3_000u64).prop_map(Advance),
        4 => (number.clone(), number.clone(), kind)
            .prop_map(|(name, number, kind)| Create { name, number, kind }),
        1 => number.clone().prop_map(Delete),
        6 => (number, 0..8u8, 0..3u8)
            .prop_map(|(number, code, signals)| Decide { number, code, signals }),
        2 => any::<usize>().prop_map(Replay),
        4 => (1..6usize).prop_map(Deliver),
        1 => Just(Repeat),
        3 => Just(ReadSignals),
        3 => Just(Acknowledge),
        3 => Just(Connect),
        1 => Just(Disconnect),
        1 => Just(RestartCounting),
        1 => Just(RestartNode),
        1 => (1..8u8).prop_map(SetPaths),
        1 => any::<bool>().prop_map(Fail),
    ]
}

/// A flow as the controller knows it.
#[derive(Debug, Clone)]
struct Flow {
    kind: Kind,
    policy: Policy,
}

/// The controller. It gives a freed number to another flow with epochs that continue.
#[derive(Debug, Default)]
struct Controller {
    revision: u64,
    flows: BTreeMap<u16, Flow>,
    epochs: BTreeMap<u16, u32>,
    /// The messages that have not arrived.
    stream: VecDeque<Message>,
    is_connected: bool,
    /// All policies since the counting restarted.
    history: Vec<(FlowId, PolicyWord)>,
}

impl Controller {
    fn assignment(&self) -> Assignment {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for (number, Flow { kind, policy }) in &self.flows {
            let mut flow = send(*number, policy.clone());
            match kind {
                Kind::Sent => sends.push(flow),
                Kind::Refused => {
                    flow.peer = "stranger".parse().unwrap();
                    sends.push(flow);
                }
                Kind::Received => {
                    receives.push(receive(*number, Mode::Replicate, policy.clone()));
                }
            }
        }
        assignment(self.revision, sends, receives)
    }

    fn decide(&mut self, number: u16, name: u16, code: u8) -> Policy {
        let epoch = self.epochs.entry(number).or_default();
        *epoch += 1;
        let policy = policy(name, *epoch, code);
        let flow = number.try_into().unwrap();
        self.history.push((flow, (&policy).into()));
        policy
    }

    fn publish_assignment(&mut self) {
        self.revision += 1;
        let assignment = self.assignment();
        self.publish(Message::Assignment(assignment));
    }

    fn publish(&mut self, message: Message) {
        if self.is_connected {
            self.stream.push_back(message);
        }
    }
}

struct World {
    agent: Agent,
    controller: Controller,
    last_message: Option<Message>,
    /// The greatest epoch of each flow at the node and in the kernel, since the process started or
    /// the counting restarted.
    epochs: BTreeMap<(u64, FlowId), [u32; 2]>,
    /// The number of times that the controller restarted counting.
    restarts: u64,
}

impl World {
    fn new() -> Self {
        let controller = Controller {
            revision: 1_000 * GENERATION,
            ..Controller::default()
        };
        World {
            agent: Agent::start(Instant::ZERO, None, PATHS),
            controller,
            last_message: None,
            epochs: BTreeMap::new(),
            restarts: 0,
        }
    }

    fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Advance(millis) => self.agent.advance(Duration::from_millis(millis)),
            Operation::Create { name, number, kind } => self.create(name, number, kind),
            Operation::Delete(number) => {
                if self.controller.flows.remove(&number).is_some() {
                    self.controller.publish_assignment();
                }
            }
            Operation::Decide {
                number,
                code,
                signals,
            } => self.decide(number, code, signals),
            Operation::Replay(index) => {
                let history = &self.controller.history;
                if let Some(index) = index.checked_rem(history.len()) {
                    let (flow, word) = history[index];
                    self.agent.kernel.signal(self.agent.now, flow, word);
                }
            }
            Operation::Deliver(count) => self.deliver(count),
            Operation::Repeat => {
                let repeated = self.last_message.clone();
                repeated
                    .into_iter()
                    .for_each(|again| self.agent.message(again));
            }
            Operation::ReadSignals => self.agent.read_signals(),
            Operation::Acknowledge => {
                if self.controller.is_connected {
                    self.agent.acknowledge();
                }
            }
            Operation::Connect => self.connect(),
            Operation::Disconnect => self.disconnect(),
            Operation::RestartCounting => self.restart_counting(),
            Operation::RestartNode => self.restart_node(),
            Operation::SetPaths(paths) => self.agent.set_paths(PathSet::from_bits(paths)),
            Operation::Fail(fails) => self.agent.kernel.is_failing = fails,
        }
    }

    fn create(&mut self, name: u16, number: u16, kind: Kind) {
        let flows = &self.controller.flows;
        let is_known = |flow: &Flow| flow.policy.flow == support::name(name);
        if flows.contains_key(&number) || flows.values().any(is_known) {
            return;
        }
        let policy = self.controller.decide(number, name, 0);
        self.controller.flows.insert(number, Flow { kind, policy });
        self.controller.publish_assignment();
    }

    fn decide(&mut self, number: u16, code: u8, signals: u8) {
        let Some(flow) = self.controller.flows.get(&number) else {
            return;
        };
        let name = flow.policy.flow.as_str()[1..].parse().unwrap();
        let policy = self.controller.decide(number, name, code);
        self.controller.flows.get_mut(&number).unwrap().policy = policy.clone();
        let word = PolicyWord::from(&policy);
        for _ in 0..signals {
            let flow = number.try_into().unwrap();
            self.agent.kernel.signal(self.agent.now, flow, word);
        }
        self.controller.publish(Message::Policy(policy));
    }

    fn deliver(&mut self, count: usize) {
        for _ in 0..count {
            let Some(message) = self.controller.stream.pop_front() else {
                return;
            };
            self.last_message = Some(message.clone());
            self.agent.message(message);
        }
    }

    fn connect(&mut self) {
        if self.controller.is_connected {
            return;
        }
        self.controller.is_connected = true;
        let assignment = self.controller.assignment();
        self.controller.publish(Message::Assignment(assignment));
        self.agent.connect();
    }

    fn disconnect(&mut self) {
        self.controller.is_connected = false;
        self.controller.stream.clear();
        self.last_message = None;
        self.agent.disconnect();
    }

    /// The controller loses its store, and operators create the same flows again.
    fn restart_counting(&mut self) {
        self.disconnect();
        self.restarts += 1;
        let flows = std::mem::take(&mut self.controller.flows);
        self.controller = Controller {
            revision: (1_000 - self.restarts) * GENERATION,
            ..Controller::default()
        };
        for (number, flow) in flows {
            let name = flow.policy.flow.as_str()[1..].parse().unwrap();
            self.create(name, number, flow.kind);
        }
    }

    fn restart_node(&mut self) {
        self.disconnect();
        let Agent {
            now, saved, paths, ..
        } = &self.agent;
        self.agent = Agent::start(*now, saved.clone(), *paths);
        self.epochs.clear();
        if let Some(saved) = &self.agent.saved {
            assert_eq!(self.agent.node.assignment(), *saved);
        }
    }

    /// Checks what holds at any time.
    fn check(&mut self) {
        let Agent { node, kernel, .. } = &self.agent;
        let generation = node.revision() / GENERATION;
        for (flow, send) in node.sent() {
            let known = self.epochs.entry((generation, flow)).or_default();
            let epoch = send.policy.epoch;
            // Without its flows, the kernel holds policies that count as before.
            let word = kernel.word(flow).filter(|_| !kernel.is_outdated);
            let in_force = word.map_or(known[1], |word| word.epoch);
            let now = [epoch, in_force];
            assert!(
                now[0] >= known[0] && now[1] >= known[1],
                "{flow} goes from {known:?} back to {now:?}"
            );
            assert!(
                epoch <= in_force || kernel.is_outdated,
                "{flow} is said to have policy {epoch}, and has {in_force}"
            );
            *known = now;
        }
    }

    /// Lets everything arrive that is under way, over the same connection if there is one.
    fn settle(&mut self) {
        self.agent.kernel.is_failing = false;
        if self.agent.kernel.is_outdated {
            self.disconnect();
        }
        self.connect();
        self.deliver(usize::MAX);
        self.agent.read_signals();
        self.agent.acknowledge();
        for _ in 0..MAX_REPORTS {
            self.agent.advance(Duration::from_secs(6));
            let report = self.agent.in_flight.as_ref();
            let is_last = report.is_none_or(|report| report.observations.is_empty());
            self.agent.acknowledge();
            if is_last {
                return;
            }
        }
        panic!("the node does not stop to report: {:?}", self.agent.made);
    }

    fn check_agreement(&self) {
        let Agent { node, kernel, .. } = &self.agent;
        let flows = self.controller.flows.iter();
        let of_kind = |kind| {
            let flows = flows.clone().filter(move |(_, flow)| flow.kind == kind);
            flows.map(|(number, flow)| (FlowId::try_from(*number).unwrap(), &flow.policy))
        };
        let sent: Vec<_> = node
            .sent()
            .map(|(flow, send)| (flow, &send.policy))
            .collect();
        assert_eq!(sent, of_kind(Kind::Sent).collect::<Vec<_>>());
        for (flow, policy) in sent {
            assert_eq!(kernel.word(flow), Some(policy.into()));
        }
        let received = node.received();
        let received: Vec<_> = received
            .map(|(flow, receive)| (flow, receive.policy()))
            .collect();
        assert_eq!(received, of_kind(Kind::Received).collect::<Vec<_>>());
        let numbers: Vec<_> = received.iter().map(|(flow, _)| *flow).collect();
        assert_eq!(kernel.received(), numbers);
        assert_eq!(self.agent.reported_revision, self.controller.revision);
    }

    fn check_persisted(&self) {
        let Agent {
            node, saved, paths, ..
        } = &self.agent;
        assert_eq!(saved.as_ref(), Some(&node.assignment()));
        let restarted = Agent::start(self.agent.now, saved.clone(), *paths);
        assert_eq!(restarted.node.flows(), node.flows());
    }

    fn check_observations(&self) {
        let Agent {
            node,
            made,
            acknowledged,
            ..
        } = &self.agent;
        let is_counted =
            |observation: &&Observation| !matches!(observation, Observation::SignalRefused { .. });
        let texts = |observations: &[Observation]| {
            let counted = observations.iter().filter(is_counted);
            let mut texts: Vec<_> = counted.map(|made| format!("{made:?}")).collect();
            texts.sort();
            texts
        };
        let mut left = texts(made);
        for reported in texts(acknowledged) {
            let index = left.iter().position(|made| *made == reported);
            left.remove(index.unwrap_or_else(|| panic!("{reported} is reported twice")));
        }
        assert_eq!(left.len() as u64, node.observations_dropped(), "{left:?}");
        let rejected = made.iter().filter(|made| support::is_rejected(made));
        assert_eq!(rejected.count(), left.len());
    }
}

proptest! {
    #[test]
    fn all_agree_when_everything_has_arrived(operations in vec(operation(), 1..60)) {
        let mut world = World::new();
        for operation in operations {
            world.perform(operation);
            world.check();
        }
        world.settle();
        world.check_agreement();
        world.check_persisted();
        world.check_observations();
    }
}
