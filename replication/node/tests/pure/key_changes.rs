//! Nodes replace their keys while all of them send: whatever the order in which their statements and
//! assignments arrive, no packet meets a receiver without its key.

use hawser_model::Name;
use hawser_model::discovery::Discovery;
use hawser_model::node::Assignment;
use hawser_model::pair::{AssignedKeys, NodeKeys, Peer};
use hawser_node::{
    Command, Connection, ControlledNode, Equipment, Message, Outcome, OwnKeys, PairRing, SecretKey,
};
use hawser_units::{Instant, PathSet};
use hawser_wire::Key;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use zeroize::Zeroizing;

const NODES: usize = 3;

/// The longest time that a packet is in flight, milliseconds: below the time for which the previous
/// key of a node is still accepted.
const IN_FLIGHT_MS: u64 = 1_000;

fn name(index: usize) -> Name {
    format!("edge-{index}").parse().unwrap()
}

/// The agent of a node, and what its controller knows of it.
struct Agent {
    node: ControlledNode,
    /// The keys in the kernel.
    rings: BTreeMap<Name, PairRing>,
    stated: Option<NodeKeys>,
    published: Option<NodeKeys>,
    least_generation: u64,
    incarnation: String,
    saved: Vec<SecretKey>,
    /// Whether no key can be saved.
    is_disk_full: bool,
    seed: u8,
}

struct Lab {
    now: Instant,
    agents: Vec<Agent>,
    revision: u64,
    /// Packets in flight: when they arrive at the latest, sender, receiver, key.
    in_flight: Vec<(Instant, usize, usize, Key)>,
}

impl Lab {
    fn start(names: usize) -> Lab {
        let agents = (0..names).map(|index| {
            let keys = OwnKeys {
                name: name(index),
                secrets: vec![],
                age: Duration::ZERO,
                lifetime: Duration::from_secs(3600),
            };
            let equipment = Equipment {
                paths: PathSet::from_bits(0b1),
                adjacent: PathSet::EMPTY,
                discovers: false,
                replicates: true,
                watches: false,
                peers: BTreeSet::new(),
                max_rules: 16,
                arrival_deadline: Duration::from_millis(200),
            };
            Agent {
                node: ControlledNode::with_keys(None, Some(keys), equipment, Instant::ZERO),
                rings: BTreeMap::new(),
                stated: None,
                published: None,
                least_generation: 0,
                incarnation: format!("first {index}"),
                saved: vec![],
                is_disk_full: false,
                seed: index as u8,
            }
        });
        let mut lab = Lab {
            now: Instant::ZERO,
            agents: agents.collect(),
            revision: 0,
            in_flight: vec![],
        };
        for index in 0..names {
            let connected = Message::Connection(Connection::Connected);
            lab.agents[index].node.handle_message(lab.now, connected);
            lab.step(index);
        }
        lab
    }

    /// Starts, and lets everything arrive until all nodes send.
    fn settled(names: usize) -> Lab {
        let mut lab = Lab::start(names);
        lab.settle();
        for index in 0..names {
            assert_eq!(lab.keys_to_send(index).len(), names - 1);
        }
        lab
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            self.advance(100);
            for index in 0..self.agents.len() {
                self.publish(index);
                self.deliver(index);
            }
        }
    }

    /// Lets a node's timers run and carries out its commands.
    fn step(&mut self, index: usize) {
        let now = self.now;
        let agent = &mut self.agents[index];
        agent.node.handle_timeout(now);
        while let Some(command) = agent.node.poll_command() {
            match command {
                Command::SetFlows { flows, .. } => {
                    agent.rings = flows.rings;
                    let set = flows.sends.into_keys().collect();
                    agent.node.handle_outcome(now, Outcome::FlowsSet(set));
                }
                Command::Configure { .. } => {
                    agent.node.handle_outcome(now, Outcome::Configured);
                }
                Command::MakeKey { .. } if agent.is_disk_full => {
                    agent.node.handle_outcome(now, Outcome::KeyNotMade);
                }
                Command::MakeKey { after, mut kept } => {
                    agent.seed = agent.seed.wrapping_mul(29).wrapping_add(101);
                    let generation =
                        SecretKey::next_generation(after, now.as_nanos() / 1_000_000_000);
                    let made = SecretKey::new(generation, &Zeroizing::new([agent.seed; 32]));
                    kept.push(made.clone());
                    agent.saved = kept;
                    agent.node.handle_outcome(now, Outcome::KeyMade(made));
                }
                Command::SaveKeys(keys) => agent.saved = keys,
                Command::StateKeys(keys) => agent.stated = Some(keys),
                _ => {}
            }
        }
        while agent.node.poll_event().is_some() {}
    }

    fn keys_to_send(&self, index: usize) -> BTreeMap<Name, Key> {
        let rings = self.agents[index].rings.iter();
        let sending = rings.filter_map(|(peer, ring)| {
            let slot = ring.send?;
            Some((peer.clone(), ring.ring.slots[slot.index()].clone()?))
        });
        sending.collect()
    }

    /// Every node sends a packet to every other one, which arrives at any time until
    /// [`IN_FLIGHT_MS`] later.
    fn send(&mut self) {
        let until = self.now + Duration::from_millis(IN_FLIGHT_MS);
        for from in 0..self.agents.len() {
            for (peer, key) in self.keys_to_send(from) {
                let to = (0..self.agents.len()).find(|to| name(*to) == peer).unwrap();
                self.in_flight.push((until, from, to, key));
            }
        }
        self.in_flight
            .dedup_by(|one, other| (one.1, one.2, &one.3) == (other.1, other.2, &other.3));
    }

    fn check(&mut self) {
        self.in_flight.retain(|(until, ..)| *until >= self.now);
        for (_, from, to, key) in &self.in_flight {
            let ring = &self.agents[*to].rings[&name(*from)].ring;
            let is_accepted = ring.slots.iter().flatten().any(|known| known == key);
            assert!(
                is_accepted,
                "a packet from {from} to {to} has a key that was forgotten"
            );
        }
    }

    fn advance(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        for index in 0..self.agents.len() {
            self.step(index);
        }
        self.send();
        self.check();
    }

    /// The statement of a node reaches the controller.
    fn publish(&mut self, index: usize) {
        let agent = &mut self.agents[index];
        agent.published.clone_from(&agent.stated);
    }

    /// An assignment reaches a node.
    fn deliver(&mut self, index: usize) {
        self.hand_over(index);
        self.send();
        self.check();
    }

    fn hand_over(&mut self, index: usize) {
        self.revision += 1;
        let peers = (0..self.agents.len()).filter(|peer| *peer != index);
        let peers = peers.map(|peer| {
            let Agent {
                published,
                incarnation,
                ..
            } = &self.agents[peer];
            let published = published.clone().unwrap_or_default();
            let mut pairs = published.pairs.into_iter();
            Peer {
                node: name(peer),
                incarnation: incarnation.clone(),
                keys: published.keys,
                pair: pairs.find(|pair| pair.node == name(index)),
            }
        });
        let keys = AssignedKeys {
            incarnation: self.agents[index].incarnation.clone(),
            least_generation: self.agents[index].least_generation,
            peers: peers.collect(),
        };
        let message = Message::Assignment(self.assignment(keys));
        self.agents[index].node.handle_message(self.now, message);
        self.step(index);
    }

    fn assignment(&self, keys: AssignedKeys) -> Assignment {
        Assignment {
            revision: self.revision,
            incarnation: None,
            report_every_ms: 5_000,
            reconnect_within_ms: 0,
            signal_key: None,
            sends: vec![],
            receives: vec![],
            keys,
            discovery: Discovery::default(),
        }
    }

    fn newest(&self, index: usize) -> u64 {
        self.agents[index].saved.last().unwrap().generation
    }

    /// An operator demands another key.
    fn demand(&mut self, index: usize) {
        let newest = self.agents[index]
            .published
            .as_ref()
            .map(|keys| keys.keys.last().unwrap().generation);
        let agent = &mut self.agents[index];
        agent.least_generation = newest
            .map_or(0, |newest| newest + 1)
            .max(agent.least_generation);
    }
}

#[test]
fn a_replaced_key_is_forgotten() {
    let mut lab = Lab::settled(NODES);
    let (before, sent) = (lab.newest(1), lab.keys_to_send(1));
    lab.demand(1);
    lab.settle();
    assert!(lab.newest(1) > before);
    let generations = |agent: &Agent| agent.saved.len();
    assert_eq!(
        lab.agents.iter().map(generations).collect::<Vec<_>>(),
        [1; NODES]
    );
    for (peer, key) in lab.keys_to_send(1) {
        assert_ne!(sent[&peer], key);
    }
    for agent in &lab.agents {
        for ring in agent.rings.values() {
            assert_eq!(ring.ring.slots.iter().flatten().count(), 1);
        }
    }
}

#[test]
fn a_key_is_replaced_at_the_end_of_its_lifetime() {
    let mut lab = Lab::settled(2);
    let before = lab.newest(0);
    lab.advance(3_500_000 - lab.now.as_nanos() / 1_000_000);
    lab.settle();
    assert_eq!(lab.newest(0), before);
    lab.advance(100_000);
    lab.settle();
    lab.settle();
    assert!(lab.newest(0) > before && lab.newest(1) > before);
    assert_eq!(lab.keys_to_send(0)[&name(1)], lab.keys_to_send(1)[&name(0)]);
}

#[test]
fn a_node_that_is_away_keeps_the_previous_key_until_it_is_back() {
    let mut lab = Lab::settled(NODES);
    lab.demand(0);
    for _ in 0..100 {
        lab.advance(100);
        for index in 0..NODES - 1 {
            lab.publish(index);
            lab.deliver(index);
        }
    }
    assert_eq!(lab.agents[0].saved.len(), 2);
    lab.settle();
    assert_eq!(lab.agents[0].saved.len(), 1);
}

#[test]
fn a_revoked_peer_loses_keys_and_a_new_one_has_others() {
    let mut lab = Lab::settled(2);
    let before = lab.keys_to_send(0)[&name(1)].clone();
    let stated = lab.agents[1].published.take();
    lab.hand_over(0);
    let ring = &lab.agents[0].rings[&name(1)];
    assert_eq!((ring, ring.send), (&PairRing::default(), None));
    lab.agents[1].incarnation = "second".to_owned();
    lab.agents[1].published = stated;
    lab.hand_over(0);
    let after = lab.agents[0].rings[&name(1)]
        .ring
        .slots
        .iter()
        .flatten()
        .next()
        .cloned();
    assert!(after.is_some_and(|after| after != before));
}

#[test]
fn a_key_that_cannot_be_saved_is_not_used_and_is_made_later() {
    let mut lab = Lab::settled(2);
    let before = lab.newest(0);
    lab.agents[0].is_disk_full = true;
    lab.demand(0);
    lab.settle();
    let stated = lab.agents[0].stated.as_ref().unwrap();
    assert_eq!((lab.newest(0), stated.keys.len()), (before, 1));
    lab.agents[0].is_disk_full = false;
    lab.advance(60_000);
    lab.settle();
    assert!(lab.newest(0) > before);
}

#[test]
fn a_stale_controller_does_not_bring_a_key_back() {
    let mut lab = Lab::settled(2);
    let stale = lab.agents[1].published.clone();
    lab.demand(1);
    lab.settle();
    let sent = lab.keys_to_send(0);
    lab.agents[1].published = stale;
    lab.deliver(0);
    assert_eq!(lab.keys_to_send(0), sent);
}

#[derive(Debug, Clone)]
enum Operation {
    Advance(u64),
    Publish(usize),
    Deliver(usize),
    Demand(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (1..3_000u64).prop_map(Operation::Advance),
        6 => (0..NODES).prop_map(Operation::Publish),
        6 => (0..NODES).prop_map(Operation::Deliver),
        1 => (0..NODES).prop_map(Operation::Demand),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_packet_meets_a_receiver_without_its_key(operations in vec(operation(), 0..200)) {
        let mut lab = Lab::settled(NODES);
        for operation in operations {
            match operation {
                Operation::Advance(millis) => lab.advance(millis),
                Operation::Publish(node) => lab.publish(node),
                Operation::Deliver(node) => lab.deliver(node),
                Operation::Demand(node) => lab.demand(node),
            }
        }
        // All changes come to an end.
        for _ in 0..8 {
            lab.settle();
        }
        for agent in &lab.agents {
            prop_assert_eq!(agent.saved.len(), 1);
        }
    }
}
