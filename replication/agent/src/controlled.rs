//! A node under a controller: feeds the decisions of [`ControlledNode`] and carries them out.

mod health;
mod record;
mod report;
mod signals;

use crate::config::{Config, ControllerConfig, PathConfig, Peer};
use crate::echo::Echoes;
use crate::flows::{Flows, send_policy};
use crate::link::{Link, LinkMessage};
use crate::node::{Node, next_hop};
use crate::observer::Observer;
use crate::own_keys::{self, KeyFile};
use crate::peers::peers;
use crate::persisted::PersistedAssignment;
use crate::status::{ControllerStatus, JudgedStatus, PeerStatus};
use crate::trace::Trace;
use crate::uplinks;
use crate::watch::Watch;
use anyhow::{Context, Result, ensure};
use hawser_client::Identity;
use hawser_experience::{Experience, Packet};
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::resource::Policy;
use hawser_node::{
    Command, Connection, ControlledNode, Equipment, Event, Message, Outcome, OwnKeys, ReceivedFlow,
    ReportContent, SecretKey,
};
use hawser_pathset::JudgedPacket;
use hawser_replication_bpf::MAX_RULES;
use hawser_units::{FlowId, Instant, PathSet};
use health::Health;
use signals::Signals;
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::{error, info, warn};

/// The longest time that the loop waits for the controller before it polls the kernel again.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// The shortest time between two polls of the kernel while there is no message.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Interval at which the states of interfaces and the counters of the watch and of signals are read.
const READ_COUNTERS_EVERY: Duration = Duration::from_secs(1);

/// The state of an earlier agent, which stays in force until the controller changes it.
pub(crate) struct Restored {
    settings: ControllerConfig,
    persisted: PersistedAssignment,
    key_file: KeyFile,
    decisions: ControlledNode,
}

/// A node whose flows are assigned by a controller.
pub(crate) struct Controlled {
    settings: ControllerConfig,
    decisions: ControlledNode,
    link: Link,
    /// The time of the last change of the connection, milliseconds since 1970.
    since_unix_ms: u64,
    next_counters: Instant,
    persisted: PersistedAssignment,
    key_file: KeyFile,
    /// The keys that are shared with each peer now.
    peers: BTreeMap<String, Peer>,
    health: Health,
    echoes: Echoes,
    signals: Signals,
    watch: Option<Watch>,
    trace: Trace,
}

impl Restored {
    /// Reads the persisted assignment. Returns `None` if the node has no controller.
    /// Adds the paths in it to the configuration.
    pub(crate) fn read(config: &mut Config) -> Result<Option<Self>> {
        let Some(settings) = config.controller.clone() else {
            return Ok(None);
        };
        ensure!(
            Identity::is_in(&settings.state),
            "this node is not enrolled: get a token with `hawser ctl node enrol {} --tenant TENANT`, then run \
             `hawser agent --config FILE --enrol TOKENFILE`",
            config.name
        );
        let persisted = PersistedAssignment::at(&settings.state);
        let key_file = KeyFile::at(&settings.state);
        let (saved, now) = (persisted.read(), crate::monotonic_now());
        let keys = own_keys(config, &settings, &key_file)?;
        let discovery = saved.as_ref().map(|saved| &saved.discovery);
        if let Some(discovery) = discovery.filter(|_| !config.uplinks.is_empty()) {
            config.set_discovered(uplinks::paths(discovery));
        }
        Ok(Some(Restored {
            settings,
            persisted,
            key_file,
            decisions: ControlledNode::with_keys(saved, Some(keys), equipment(config), now),
        }))
    }

    /// Returns the flows to start with.
    pub(crate) fn flows(&self, config: &Config) -> Flows {
        let flows = self.decisions.flows();
        Flows::assigned(&flows, &peers(config, &flows.rings))
    }

    /// Starts to talk to the controller. Call this when the programs run.
    pub(crate) fn start(self, node: &mut Node, observer: Option<&Observer>) -> Result<Controlled> {
        log_restored(&self.decisions);
        let config = node.config();
        let watches = !config.watch.is_empty();
        let registration = report::registration(node, &self.settings, uplinks::current(config)?);
        let now = crate::monotonic_now();
        let mut controlled = Controlled {
            link: Link::start(self.settings.clone(), registration)?,
            since_unix_ms: unix_ms(),
            next_counters: now,
            persisted: self.persisted,
            key_file: self.key_file,
            peers: BTreeMap::new(),
            health: Health::default(),
            echoes: Echoes::new(config),
            signals: Signals::start(node)?,
            watch: watches.then(Watch::start).transpose()?,
            trace: Trace::to(config.trace.as_deref())?,
            settings: self.settings,
            decisions: self.decisions,
        };
        let rings = controlled.decisions.flows().rings;
        controlled.set_peers(peers(node.config(), &rings));
        controlled.follow(node);
        controlled.carry_out(node, observer, now)?;
        Ok(controlled)
    }
}

impl Controlled {
    /// Passes on the fate of a packet of a received flow.
    pub(crate) fn handle_packet(&mut self, packet: &JudgedPacket) {
        self.decisions.handle_packet(packet);
    }

    /// Handles the experience of an application with a received flow.
    pub(crate) fn handle_experience(
        &mut self,
        now: Instant,
        flow: FlowId,
        experience: &Experience,
    ) {
        self.decisions.handle_experience(now, flow, experience);
    }

    /// Returns the name of a received flow.
    pub(crate) fn received_name(&self, flow: FlowId) -> Option<&Name> {
        let received = self.decisions.received_flow(flow)?;
        Some(&received.policy().flow)
    }

    /// Returns the received flows that may carry such packets.
    pub(crate) fn receiving(&self, packet: &Packet) -> Vec<FlowId> {
        self.decisions.receiving(packet)
    }

    /// Uses the current interfaces.
    pub(crate) fn follow(&mut self, node: &mut Node) {
        self.set_discovered(node)
            .unwrap_or_else(|error| warn!("{error:#}"));
        let number_of = |name: &str| node.interface_number(name);
        self.echoes.follow(number_of, |path| node.local(path));
        if let Some(watch) = &mut self.watch {
            watch.follow(&node.config().watch, number_of);
        }
        self.signals
            .follow(node, &self.settings)
            .unwrap_or_else(|error| warn!("in-band signals cannot be configured: {error:#}"));
    }

    /// Returns the measurements of the paths.
    pub(crate) fn echoes(&self) -> &Echoes {
        &self.echoes
    }

    /// Applies reloaded keys.
    pub(crate) fn reload(
        &mut self,
        node: &mut Node,
        observer: Option<&Observer>,
        now: Instant,
    ) -> Result<()> {
        self.decisions
            .handle_equipment(now, equipment(node.config()));
        self.carry_out(node, observer, now)
    }

    /// Polls the kernel, and carries out what follows from it.
    pub(crate) fn poll(&mut self, node: &mut Node, observer: Option<&Observer>, now: Instant) {
        (self.echoes).handle(
            now,
            |count| node.seen_echoes(count),
            |path| Some(node.mtu(path)?.0),
        );
        for signal in self.signals.poll(node) {
            self.decisions.handle_signal(now, signal);
        }
        self.decisions
            .handle_copies(now, |flow, path| node.copies(flow, path));
        self.poll_requests();
        if now >= self.next_counters {
            self.next_counters = now + READ_COUNTERS_EVERY;
            self.read_counters(node, now);
        }
        self.decisions
            .handle_paths(self.health.states(node, &self.echoes, now));
        self.decisions.handle_reached(self.echoes.reached(now));
        if let Some(observer) = observer {
            self.decisions.handle_arrivals(|flow| observer.newest(flow));
        }
        self.decisions.handle_timeout(now);
        self.carry_out(node, observer, now)
            .unwrap_or_else(|error| error!("{error:#}"));
    }

    /// Waits for messages of the controller, at most until the next poll of the kernel is due, and
    /// handles them.
    pub(crate) fn wait(&mut self, node: &mut Node, observer: Option<&Observer>) {
        let due = self.decisions.poll_timeout();
        let left = due.map(|due| due.saturating_since(crate::monotonic_now()));
        let mut timeout = left
            .unwrap_or(POLL_EVERY)
            .clamp(MIN_POLL_INTERVAL, POLL_EVERY);
        while let Some(message) = self.link.wait(timeout) {
            if let Err(error) = self.handle_message(node, observer, message) {
                error!("cannot apply a message of the controller: {error:#}");
            }
            timeout = Duration::ZERO;
        }
    }

    /// Returns the status of the connection, the flows and the paths.
    pub(crate) fn status(&self, node: &Node, now: Instant) -> ControllerStatus {
        let decisions = &self.decisions;
        let (state, reason) = state_and_reason(decisions.connection());
        let paths = self.health.states(node, &self.echoes, now);
        let sends = decisions.assigned_sends();
        ControllerStatus {
            urls: self.settings.urls.iter().map(ToString::to_string).collect(),
            state: state.to_owned(),
            since_unix_ms: self.since_unix_ms,
            reason: reason.map(str::to_owned),
            revision: decisions.revision(),
            observations_dropped: decisions.observations_dropped(),
            not_applied: (decisions.waiting().iter())
                .chain(decisions.refused())
                .cloned()
                .collect(),
            peers: self.peers_status(),
            paths: paths
                .iter()
                .map(|state| (state.path.number(), state.into()))
                .collect(),
            candidates: self.echoes.candidates(now),
            send: sends
                .map(|send| (send.number, (&send.policy).into()))
                .collect(),
            receive: decisions
                .received()
                .map(|(flow, received)| (flow.into(), self.judged_status(flow, received)))
                .collect(),
            signals: self.signals.counts(node),
        }
    }

    /// Returns the state of the keys of each peer.
    fn peers_status(&self) -> BTreeMap<String, PeerStatus> {
        let by_hand = self.peers.iter().filter(|(_, peer)| peer.by_hand);
        let by_hand = by_hand.map(|(name, peer)| (name.clone(), PeerStatus::by_hand(peer)));
        let derived = self.decisions.pairs();
        let derived = derived.map(|(name, pair)| (name.to_string(), PeerStatus::derived(&pair)));
        derived.chain(by_hand).collect()
    }

    fn judged_status(&self, flow: FlowId, received: &ReceivedFlow) -> JudgedStatus {
        let stats = || self.watch.as_ref().map(|watch| watch.stats(flow));
        JudgedStatus::of(received, || stats().unwrap_or_default())
    }

    fn handle_message(
        &mut self,
        node: &mut Node,
        observer: Option<&Observer>,
        message: LinkMessage,
    ) -> Result<()> {
        let now = crate::monotonic_now();
        match message {
            LinkMessage::Controllers(addresses) => node.set_controllers(addresses),
            LinkMessage::Node(message) => {
                let is_assignment = matches!(*message, Message::Assignment(_));
                self.decisions.handle_message(now, *message);
                if is_assignment {
                    self.set_discovered(node)?;
                }
                self.carry_out(node, observer, now)
            }
        }
    }

    /// Uses the paths that the controller has made, probes the candidates for others, and tells the
    /// controller which paths the node has now.
    fn set_discovered(&mut self, node: &mut Node) -> Result<()> {
        let discovery = self.decisions.discovery();
        let Some(discovery) = discovery.filter(|_| !node.config().uplinks.is_empty()) else {
            return Ok(());
        };
        let candidates = discovery.candidates.clone();
        let has_changed = node
            .set_discovered(uplinks::paths(discovery))
            .context("cannot use the discovered paths")?;
        if has_changed {
            let equipment = equipment(node.config());
            self.decisions
                .handle_equipment(crate::monotonic_now(), equipment);
        }
        node.set_probed(candidates.iter().map(|way| way.ends.remote))?;
        self.echoes
            .set_candidates(&candidates, &node.config().paths);
        self.echoes.set_peers(&self.peers);
        let number_of = |name: &str| node.interface_number(name);
        self.echoes.follow(number_of, |path| node.local(path));
        self.register(node)
    }

    /// Registers the node again if its paths or its uplinks have changed.
    fn register(&self, node: &Node) -> Result<()> {
        let uplinks = uplinks::current(node.config())?;
        self.link
            .register(report::registration(node, &self.settings, uplinks));
        Ok(())
    }

    fn poll_requests(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        for request in watch.drain() {
            if request.is_end() {
                self.decisions
                    .handle_connection_end(request.flow, request.at);
            } else {
                self.decisions.handle_request(request.flow, request.at);
            }
        }
    }

    /// Reads what need not be read with every poll.
    fn read_counters(&mut self, node: &Node, now: Instant) {
        self.health.update();
        self.register(node)
            .unwrap_or_else(|error| warn!("cannot register the paths: {error:#}"));
        let rejected = self.signals.rejected(node);
        self.decisions.handle_rejected_signals(now, rejected);
        for (flow, requests) in self.watch.iter().flat_map(Watch::request_counts) {
            self.decisions.handle_request_count(flow, requests);
        }
        self.trace.flush();
    }

    /// Records the events and carries out the commands, until there are none. After an error, those
    /// that are left are carried out with the next ones.
    fn carry_out(
        &mut self,
        node: &mut Node,
        observer: Option<&Observer>,
        now: Instant,
    ) -> Result<()> {
        loop {
            while let Some(event) = self.decisions.poll_event() {
                if matches!(event, Event::Connection(_)) {
                    self.since_unix_ms = unix_ms();
                }
                record::record(&mut self.trace, &event);
            }
            let Some(command) = self.decisions.poll_command() else {
                return Ok(());
            };
            match self.execute(node, observer, command) {
                Ok(outcome) => {
                    if let Some(outcome) = outcome {
                        self.decisions.handle_outcome(now, outcome);
                    }
                }
                Err(error) => {
                    self.decisions.handle_outcome(now, Outcome::NotApplied);
                    return Err(error);
                }
            }
        }
    }

    fn execute(
        &mut self,
        node: &mut Node,
        observer: Option<&Observer>,
        command: Command,
    ) -> Result<Option<Outcome>> {
        match command {
            Command::SetFlows {
                flows,
                replace_policies,
            } => {
                let peers = peers(node.config(), &flows.rings);
                let flows = Flows::assigned(&flows, &peers);
                let in_force = node.set_flows(flows, replace_policies)?;
                self.set_peers(peers);
                return Ok(Some(Outcome::FlowsSet(in_force)));
            }
            Command::Configure {
                signal_key,
                watched,
            } => {
                self.signals.set_key(node, &self.settings, signal_key)?;
                if let Some(watch) = &mut self.watch {
                    watch.set_requests(watched)?;
                }
                return Ok(Some(Outcome::Configured));
            }
            Command::SetPolicy { flow, policy } => return Ok(Some(set_policy(node, flow, policy))),
            Command::Report(content) => self.report(node, observer, content),
            Command::Persist(assignment) => self.persisted.write(&assignment),
            Command::MakeKey { after, kept } => return Ok(Some(self.make_key(after, &kept))),
            Command::SaveKeys(keys) => self.key_file.write(&keys).unwrap_or_else(|error| {
                // It is dropped again after the next start.
                warn!("cannot remove the node's previous key from its file: {error:#}");
            }),
            Command::StateKeys(keys) => self.link.state_keys(keys),
        }
        Ok(None)
    }

    fn set_peers(&mut self, peers: BTreeMap<String, Peer>) {
        self.echoes.set_peers(&peers);
        self.peers = peers;
    }

    fn make_key(&self, after: Option<u64>, kept: &[SecretKey]) -> Outcome {
        match self.key_file.make(after, kept) {
            Ok(key) => Outcome::KeyMade(key),
            Err(error) => {
                error!("cannot make a key, retrying later: {error:#}");
                Outcome::KeyNotMade
            }
        }
    }

    fn report(&self, node: &Node, observer: Option<&Observer>, content: ReportContent) {
        let decisions = &self.decisions;
        let source = report::Source {
            node,
            observer,
            decisions,
        };
        self.link.report(source.complete(content));
    }
}

fn log_restored(decisions: &ControlledNode) {
    let revision = decisions.revision();
    if revision > 0 {
        let (sent, received) = (decisions.sent().count(), decisions.received().count());
        info!(
            revision,
            "restored the last assignment: {sent} flows sent, {received} received"
        );
    }
}

/// Returns the state of the connection for the status, with the reason.
fn state_and_reason(connection: &Connection) -> (&'static str, Option<&str>) {
    match connection {
        Connection::Connecting => ("connecting", None),
        Connection::Connected => ("connected", None),
        Connection::Unreachable(reason) => ("unreachable", Some(reason)),
        Connection::Refused(reason) => ("refused", Some(reason)),
    }
}

/// Returns the keys that the node has made.
fn own_keys(config: &Config, settings: &ControllerConfig, file: &KeyFile) -> Result<OwnKeys> {
    let secrets = file.read();
    Ok(OwnKeys {
        name: config.name.parse().context("the node's name")?,
        age: own_keys::age(secrets.last()),
        secrets,
        lifetime: settings.key_lifetime,
    })
}

/// Returns the parts of the configuration that the decisions depend on.
fn equipment(config: &Config) -> Equipment {
    Equipment {
        paths: config.paths.keys().copied().collect(),
        adjacent: adjacent(config),
        discovers: !config.uplinks.is_empty(),
        replicates: config.replicates(),
        watches: !config.watch.is_empty(),
        peers: (config.peers.iter())
            .filter(|(_, peer)| peer.by_hand)
            .map(|(name, _)| name.clone())
            .collect(),
        max_rules: MAX_RULES,
        arrival_deadline: config.arrival_deadline,
    }
}

/// Returns the paths on which packets can be sent as they are: of IPv4, with the other node on the
/// link as far as the routing table is known.
fn adjacent(config: &Config) -> PathSet {
    let is_adjacent = |path: &PathConfig| {
        let next_hop = next_hop(path, path.local).ok();
        path.remote.is_ipv4() && next_hop.is_none_or(|next_hop| next_hop == path.remote)
    };
    let paths = config.paths.iter().filter(|(_, path)| is_adjacent(path));
    paths.map(|(path, _)| *path).collect()
}

fn set_policy(node: &Node, flow: FlowId, policy: Policy) -> Outcome {
    match node.set_policy(flow, send_policy(&policy)) {
        Ok(took_effect) => Outcome::PolicySet {
            policy,
            took_effect,
        },
        Err(error) => Outcome::PolicyFailed {
            flow: policy.flow,
            reason: format!("{error:#}"),
        },
    }
}
