use crate::first_copy::FirstCopies;
use crate::message::{
    Command, Connection, Event, Flows, Message, Outcome, PathState, PolicyWord, SendFlow, Signal,
    SignalOutcome, WatchedRequests,
};
use crate::pairs::{Due, OwnKeys, PairStatus, Pairs};
use crate::plan::{Equipment, Plan, missing_paths};
use crate::received::ReceivedFlow;
use crate::reports::Reports;
use crate::selection::{Selectors, flow_of, rule};
use crate::sent::{PathChange, SentFlow};
use hawser_experience::{Experience, Packet};
use hawser_model::Name;
use hawser_model::discovery::{Discovery, Ends};
use hawser_model::node::{Assignment, Observation, Receive, Send};
use hawser_model::pair::{AssignedKeys, NodeKeys};
use hawser_model::resource::Policy;
use hawser_pathset::JudgedPacket;
use hawser_units::{FlowId, Instant, MAX_PATHS, PathId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Report interval until the controller has sent one, milliseconds.
const DEFAULT_REPORT_EVERY_MS: u32 = 5_000;

/// The time after a change within which it is saved. Several changes are saved together.
const PERSIST_WITHIN: Duration = Duration::from_secs(1);

/// How long copies of a removed flow may still be in flight.
const LINGER: Duration = Duration::from_secs(5);

/// The time after which an assignment that could not be applied is tried again. It doubles with
/// every failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The longest time between two attempts.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The interval at which the copies on paths that are not in use are counted.
const COUNT_COPIES_EVERY: Duration = Duration::from_secs(1);

/// The interval at which counters are read while a first copy is awaited. The time of the first copy
/// is reported with this precision.
const AWAIT_COPY_EVERY: Duration = Duration::from_millis(1);

/// A node whose flows are assigned by a controller.
///
/// After every input, carry out the commands until there are none. Then wait for the next input, at
/// most until [`ControlledNode::poll_timeout`].
#[derive(Debug)]
pub struct ControlledNode {
    equipment: Equipment,
    connection: Connection,
    revision: u64,
    /// The incarnation of the controllers' store that `revision` belongs to.
    incarnation: Option<String>,
    /// The revision of the last assignment that was applied.
    applied_revision: u64,
    report_every_ms: u32,
    signal_key: Option<String>,
    /// The assigned flows, in the order of the assignment.
    sends: Vec<SentFlow>,
    receives: Vec<ReceivedFlow>,
    pairs: Pairs,
    /// The paths that the controller has made, and the candidates for others; `None` before the
    /// first assignment.
    discovery: Option<Discovery>,
    /// The last statement about the node's keys.
    stated: Option<NodeKeys>,
    plan: Plan,
    /// Removed flows whose copies are still deduplicated.
    lingering: BTreeMap<FlowId, Lingering>,
    /// The work on the current assignment that is left after the next [`Command::SetFlows`].
    unapplied: Unapplied,
    first_copies: FirstCopies,
    count_copies_at: Instant,
    await_copies_at: Instant,
    /// The numbers of rejected signals at the last report.
    rejected_signals: BTreeMap<&'static str, u64>,
    /// The number of replayed signals that are not reported. Counted separately because repetitions
    /// of a signal are rejected for their epoch too.
    replayed_signals: u64,
    reports: Reports,
    /// The time at which the assignment is saved, if it differs from the saved one.
    persist_at: Option<Instant>,
    commands: VecDeque<Command>,
    events: VecDeque<Event>,
}

/// A flow that is no longer assigned.
#[derive(Debug)]
struct Lingering {
    peer: Name,
    until: Instant,
}

/// Steps that follow when the flows are set. They wait if setting the flows fails.
#[derive(Debug)]
struct Unapplied {
    /// The time of the next attempt, if the last one has failed.
    retry_at: Option<Instant>,
    retry_after: Duration,
    /// Whether the policies replace those in the kernel regardless of their epochs.
    replaces_policies: bool,
    /// Whether signals and the watch are configured afterwards.
    configures: bool,
}

impl Unapplied {
    fn nothing() -> Unapplied {
        Unapplied {
            retry_at: None,
            retry_after: RETRY_AFTER,
            replaces_policies: false,
            configures: false,
        }
    }

    fn handle_failure(&mut self, now: Instant) {
        self.configures = true;
        self.retry_at = Some(now + self.retry_after);
        self.retry_after = (2 * self.retry_after).min(MAX_RETRY_AFTER);
    }
}

impl ControlledNode {
    /// Creates a node with the assignment that an earlier process saved, or with none. Its flows
    /// have to be set in the kernel, see [`ControlledNode::flows`], before the first command is
    /// carried out.
    pub fn new(saved: Option<Assignment>, equipment: Equipment, now: Instant) -> Self {
        ControlledNode::with_keys(saved, None, equipment, now)
    }

    /// As [`ControlledNode::new`], for a node that makes keys, of which it has `keys`. Where its
    /// configuration has no key for a peer, a key is derived from those of both nodes.
    pub fn with_keys(
        saved: Option<Assignment>,
        keys: Option<OwnKeys>,
        equipment: Equipment,
        now: Instant,
    ) -> Self {
        let (assigned_keys, discovery) = saved
            .as_ref()
            .map(|saved| (saved.keys.clone(), saved.discovery.clone()))
            .unzip();
        let saved = saved.unwrap_or_else(unassigned);
        let pairs = Pairs::new(keys, equipment.peers.clone(), assigned_keys, now);
        let plan = Plan::of(&saved, &equipment, &pairs);
        let mut node = ControlledNode {
            equipment,
            connection: Connection::Connecting,
            revision: saved.revision,
            incarnation: saved.incarnation,
            applied_revision: saved.revision,
            report_every_ms: saved.report_every_ms,
            signal_key: saved.signal_key,
            sends: saved.sends.into_iter().map(SentFlow::restored).collect(),
            receives: Vec::new(),
            pairs,
            discovery,
            stated: None,
            plan,
            lingering: BTreeMap::new(),
            unapplied: Unapplied::nothing(),
            first_copies: FirstCopies::default(),
            count_copies_at: now,
            await_copies_at: now,
            rejected_signals: BTreeMap::new(),
            replayed_signals: 0,
            reports: Reports::new(now),
            persist_at: None,
            commands: VecDeque::new(),
            events: VecDeque::new(),
        };
        node.set_receives(saved.receives, false, now);
        node.configure();
        node
    }

    /// Handles a message about the controller or from it.
    pub fn handle_message(&mut self, now: Instant, message: Message) {
        match message {
            Message::Connection(connection) => self.handle_connection(now, connection),
            Message::Assignment(assignment) => {
                let revision = assignment.revision;
                self.events.push_back(Event::Assigned { revision });
                self.apply(now, assignment);
            }
            Message::Policy(policy) => self.handle_policy(now, policy),
            Message::Ready => {
                self.reports.outbox.handle_delivered();
                self.reports.is_ready = true;
            }
            Message::ReportLost => self.reports.outbox.put_back(),
            Message::ReportRejected => self.reports.outbox.handle_rejected(),
        }
    }

    /// Handles a change of the node's configuration.
    pub fn handle_equipment(&mut self, now: Instant, equipment: Equipment) {
        self.pairs.set_by_hand(equipment.peers.clone());
        self.equipment = equipment;
        self.apply(now, self.assignment());
    }

    /// Handles the outcome of a command.
    pub fn handle_outcome(&mut self, now: Instant, outcome: Outcome) {
        match outcome {
            Outcome::FlowsSet(in_force) => self.handle_flows_set(now, &in_force),
            Outcome::Configured => self.handle_configured(now),
            Outcome::NotApplied => self.unapplied.handle_failure(now),
            Outcome::PolicySet {
                policy,
                took_effect,
            } => self.handle_policy_set(now, &policy, took_effect),
            Outcome::PolicyFailed { flow, reason } => self.refuse(now, &flow, reason),
            Outcome::KeyMade(secret) => {
                self.pairs.add(secret, now);
                self.handle_keys_changed(now);
            }
            Outcome::KeyNotMade => self.pairs.handle_not_made(now),
        }
    }

    /// Handles an in-band signal that the kernel has handled.
    pub fn handle_signal(&mut self, now: Instant, signal: Signal) {
        match signal.outcome {
            SignalOutcome::Accepted => self.handle_accepted(now, &signal),
            SignalOutcome::Outdated => {
                self.replayed_signals += u64::from(signal.epoch < signal.in_force.epoch);
            }
        }
    }

    /// Handles the numbers of signals that were rejected since the programs were loaded, by reason.
    /// Signals that were rejected for their epoch are left out, because each policy is sent several
    /// times: [`ControlledNode::handle_signal`] tells the replayed ones.
    pub fn handle_rejected_signals(
        &mut self,
        now: Instant,
        totals: impl IntoIterator<Item = (&'static str, u64)>,
    ) {
        let mut rejected = Vec::new();
        for (reason, total) in totals {
            let before = self.rejected_signals.insert(reason, total);
            rejected.push((reason, total.saturating_sub(before.unwrap_or_default())));
        }
        rejected.push(("epoch", std::mem::take(&mut self.replayed_signals)));
        for (reason, count) in rejected.into_iter().filter(|(_, count)| *count > 0) {
            let reason = reason.to_owned();
            let refused = Observation::SignalRefused { reason, count };
            self.reports.outbox.push(now, refused);
        }
    }

    /// Handles the numbers of copies that were sent since the programs were loaded, by flow and
    /// path. Reads them only if they are needed.
    pub fn handle_copies(&mut self, now: Instant, copies: impl Fn(FlowId, PathId) -> u64) {
        if self.first_copies.is_waiting() && now >= self.await_copies_at {
            self.await_copies_at = now + AWAIT_COPY_EVERY;
            self.find_first_copies(now, &copies);
        }
        if now >= self.count_copies_at {
            self.count_copies_at = now + COUNT_COPIES_EVERY;
            self.count_copies(copies);
        }
    }

    /// Handles the fate of a packet of a received flow.
    pub fn handle_packet(&mut self, packet: &JudgedPacket) {
        let Some(index) = self.plan.receives.get(&packet.flow) else {
            return;
        };
        let received = &mut self.receives[*index];
        if let Some(window) = received.handle_packet(packet).cloned() {
            let policy = received.policy();
            self.events.push_back(Event::Window {
                at: packet.at,
                flow: policy.flow.clone(),
                epoch: policy.epoch,
                window,
            });
        }
    }

    /// Handles the arrival times of the newest copies of each received flow, by path index.
    pub fn handle_arrivals<'a>(
        &mut self,
        newest: impl Fn(FlowId) -> Option<&'a [Option<Instant>; MAX_PATHS]>,
    ) {
        for (flow, index) in &self.plan.receives {
            if let Some(newest) = newest(*flow) {
                self.receives[*index].handle_arrivals(newest);
            }
        }
    }

    /// Handles a request of a flow's viewer.
    pub fn handle_request(&mut self, flow: FlowId, at: Instant) {
        if let Some(received) = self.received_mut(flow) {
            received.handle_request(at);
        }
    }

    /// Handles the experience of an application with a received flow.
    pub fn handle_experience(&mut self, now: Instant, flow: FlowId, experience: &Experience) {
        if let Some(received) = self.received_mut(flow) {
            received.handle_experience(now, experience);
        }
    }

    /// Handles the end of a connection of a flow's viewer.
    pub fn handle_connection_end(&mut self, flow: FlowId, at: Instant) {
        if let Some(received) = self.received_mut(flow) {
            received.handle_end(at);
        }
    }

    /// Handles the total number of requests of a flow's viewer, from which the size of a frame
    /// follows.
    pub fn handle_request_count(&mut self, flow: FlowId, requests: u64) {
        if let Some(received) = self.received_mut(flow) {
            received.handle_request_count(requests);
        }
    }

    /// Handles the states of all paths.
    pub fn handle_paths(&mut self, paths: Vec<PathState>) {
        self.reports.paths = paths;
    }

    /// Handles the candidates for paths on which the other node answers.
    pub fn handle_reached(&mut self, reached: Vec<Ends>) {
        self.reports.reached = reached;
    }

    /// Lets time pass. Signals, copies, packets, requests and states of paths from before `now` have
    /// to be handled first.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.judge(now);
        self.expire_lingering(now);
        if self.unapplied.retry_at.is_some_and(|at| at <= now) {
            self.set_flows();
        }
        if self.persist_at.take_if(|at| *at <= now).is_some() {
            self.commands.push_back(Command::Persist(self.assignment()));
        }
        self.replace_key(now);
        let interval = Duration::from_millis(self.report_every_ms.into());
        let report = self.reports.poll(now, self.applied_revision, interval);
        self.commands.extend(report.map(Command::Report));
    }

    /// Returns the time at which [`ControlledNode::handle_timeout`] is due, or
    /// [`ControlledNode::handle_copies`] while a first copy is awaited.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let awaited = Some(self.await_copies_at).filter(|_| self.first_copies.is_waiting());
        let judged = self
            .received()
            .filter_map(|(_, received)| received.poll_timeout(self.equipment.arrival_deadline));
        let lingering = self.lingering.values().map(|lingering| lingering.until);
        let due = [
            awaited,
            self.unapplied.retry_at,
            self.persist_at,
            self.pairs.poll_timeout(),
            self.reports.poll_timeout(),
        ];
        due.into_iter()
            .flatten()
            .chain(judged)
            .chain(lingering)
            .min()
    }

    /// Returns the next command to carry out.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// Returns the next event for the log or the trace.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the flows that the kernel should handle now.
    pub fn flows(&self) -> Flows {
        let sends = self.plan.sends.iter().map(|(flow, index)| {
            let Send {
                flow: name,
                peer,
                policy,
                transparent,
                ..
            } = self.sends[*index].assigned.clone();
            let transparent = transparent.is_some();
            let send = SendFlow {
                name,
                peer,
                policy,
                transparent,
            };
            (*flow, send)
        });
        let receives = self.received();
        let receives = receives.map(|(flow, received)| (flow, received.assigned.peer.clone()));
        let lingering = self.lingering.iter();
        let lingering = lingering.map(|(flow, lingering)| (*flow, lingering.peer.clone()));
        Flows {
            sends: sends.collect(),
            send_selectors: self.plan.send_selectors.clone(),
            receives: receives.chain(lingering).collect(),
            receive_selectors: self.plan.receive_selectors.clone(),
            rings: self.pairs.rings(),
        }
    }

    /// Returns the assignment with the newest policies.
    pub fn assignment(&self) -> Assignment {
        let sends = self.sends.iter().map(|sent| sent.assigned.clone());
        let receives = self.receives.iter();
        Assignment {
            revision: self.revision,
            incarnation: self.incarnation.clone(),
            report_every_ms: self.report_every_ms,
            // It belongs to a connection.
            reconnect_within_ms: 0,
            signal_key: self.signal_key.clone(),
            sends: sends.collect(),
            receives: receives.map(|received| received.assigned.clone()).collect(),
            keys: self.pairs.assigned().cloned().unwrap_or_default(),
            discovery: self.discovery.clone().unwrap_or_default(),
        }
    }

    /// Returns the paths that the controller has made, and the candidates for others; `None` before the
    /// first assignment.
    pub fn discovery(&self) -> Option<&Discovery> {
        self.discovery.as_ref()
    }

    /// Returns the revision of the assignment.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the state of the connection to the controller.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns the flows that the node cannot carry out or carries out in part, with the reason.
    pub fn refused(&self) -> &[(Name, String)] {
        &self.plan.refused
    }

    /// Returns the flows that wait for the other node, with the reason.
    pub fn waiting(&self) -> &[(Name, String)] {
        &self.plan.waiting
    }

    /// Returns the state of the keys that are shared with the peers of the assignment, except those
    /// of the node's configuration.
    pub fn pairs(&self) -> impl Iterator<Item = (&Name, PairStatus)> {
        self.pairs.statuses()
    }

    /// Returns the number of observations that were dropped because too many were queued or the
    /// controller rejected them.
    pub fn observations_dropped(&self) -> u64 {
        self.reports.outbox.dropped()
    }

    /// Returns the assigned flows to be sent, with the newest policies, including those that the
    /// node cannot carry out.
    pub fn assigned_sends(&self) -> impl Iterator<Item = &Send> {
        self.sends.iter().map(|sent| &sent.assigned)
    }

    /// Returns the flows that the node replicates.
    pub fn sent(&self) -> impl Iterator<Item = (FlowId, &Send)> {
        let sends = self.plan.sends.iter();
        sends.map(|(flow, index)| (*flow, &self.sends[*index].assigned))
    }

    /// Returns the flows whose copies the node deduplicates, without those that are no longer
    /// assigned.
    pub fn received(&self) -> impl Iterator<Item = (FlowId, &ReceivedFlow)> {
        let receives = self.plan.receives.iter();
        receives.map(|(flow, index)| (*flow, &self.receives[*index]))
    }

    /// Returns a received flow, unless it is no longer assigned.
    pub fn received_flow(&self, flow: FlowId) -> Option<&ReceivedFlow> {
        self.receives.get(*self.plan.receives.get(&flow)?)
    }

    /// Returns the received flows that may carry such packets, one of each node that replicates.
    pub fn receiving(&self, packet: &Packet) -> Vec<FlowId> {
        let mut by_peer: BTreeMap<&Name, Selectors> = BTreeMap::new();
        for (flow, received) in self.received() {
            let select = received.select().map(|select| rule(flow, select));
            if let Some(Ok((prefix, rule))) = select {
                let selectors = by_peer.entry(received.peer()).or_default();
                selectors.entry(prefix).or_default().push(rule);
            }
        }
        let flows = by_peer.values();
        flows
            .filter_map(|selectors| flow_of(selectors, packet))
            .collect()
    }

    fn handle_connection(&mut self, now: Instant, connection: Connection) {
        if connection == self.connection {
            return;
        }
        if connection == Connection::Connected {
            self.reports.next_at = now;
        }
        self.reports.is_ready = false;
        self.events.push_back(Event::Connection(connection.clone()));
        self.connection = connection;
    }

    /// Replaces the assignment. A policy that is newer than the one in the assignment stays, unless
    /// the controller restarted counting, or its store was restored from a backup: then policies
    /// that were made after the backup have greater epochs and are void.
    fn apply(&mut self, now: Instant, mut assignment: Assignment) {
        let is_restored = (self.incarnation.as_ref())
            .zip(assignment.incarnation.as_ref())
            .is_some_and(|(known, new)| known != new);
        let has_restarted = is_restored || assignment.revision < self.revision;
        if has_restarted {
            self.events.push_back(Event::CountingRestarted);
        } else {
            self.keep_newer_policies(&mut assignment);
        }
        self.pairs.assign(std::mem::take(&mut assignment.keys));
        let plan = Plan::of(&assignment, &self.equipment, &self.pairs);
        self.set_plan(plan, now);
        self.revision = assignment.revision;
        self.incarnation = assignment.incarnation;
        self.report_every_ms = assignment.report_every_ms;
        self.discovery = Some(assignment.discovery);
        self.signal_key = assignment.signal_key;
        self.set_sends(assignment.sends);
        self.set_receives(assignment.receives, has_restarted, now);
        self.persist_soon(now);
        self.unapplied.configures = true;
        self.unapplied.replaces_policies |= has_restarted;
        self.set_flows();
    }

    /// Replaces the plan, and reports the flows that are refused for the first time.
    fn set_plan(&mut self, plan: Plan, now: Instant) {
        self.linger(&plan, now);
        let before = std::mem::replace(&mut self.plan, plan);
        let refused = self.plan.refused.clone();
        for (flow, reason) in refused {
            let is_known = before.refused.contains(&(flow.clone(), reason.clone()));
            if !is_known {
                self.refuse(now, &flow, reason);
            }
        }
    }

    /// Keeps policies that are newer than those of the assignment. A signal or an event may have
    /// brought them while the assignment was in flight. A flow that was deleted and created again
    /// has another number.
    fn keep_newer_policies(&self, assignment: &mut Assignment) {
        for send in &mut assignment.sends {
            let known = self.sends.iter().find(|sent| is_same_send(sent, send));
            keep_newer(&mut send.policy, known.map(|sent| &sent.assigned.policy));
        }
        for receive in &mut assignment.receives {
            let mut known = self.receives.iter();
            let known = known.find(|received| is_same_receive(received, receive));
            keep_newer(&mut receive.policy, known.map(ReceivedFlow::policy));
        }
    }

    /// Keeps deduplicating the flows that are no longer in the plan.
    fn linger(&mut self, plan: &Plan, now: Instant) {
        for (flow, index) in &self.plan.receives {
            let peer = self.receives[*index].assigned.peer.clone();
            let until = now + LINGER;
            self.lingering.insert(*flow, Lingering { peer, until });
        }
        // Copies of a peer that was revoked are not accepted any longer.
        let pairs = &self.pairs;
        self.lingering.retain(|flow, lingering| {
            !plan.receives.contains_key(flow) && pairs.still_receives(&lingering.peer)
        });
        self.forget_peers();
    }

    /// Forgets the keys of peers without a flow.
    fn forget_peers(&mut self) {
        let lingering = self.lingering.values();
        let received: BTreeSet<_> = lingering.map(|lingering| &lingering.peer).collect();
        self.pairs.forget_except(&received);
    }

    /// Makes the node's next key when it is due, and forgets the previous one when no peer uses it
    /// any more.
    fn replace_key(&mut self, now: Instant) {
        let is_connected = self.connection == Connection::Connected;
        match self.pairs.poll(now, is_connected) {
            Some(Due::Make(after)) => {
                let kept = self.pairs.secrets().to_vec();
                self.commands.push_back(Command::MakeKey { after, kept });
            }
            Some(Due::Retired) => {
                let kept = self.pairs.secrets().to_vec();
                self.commands.push_back(Command::SaveKeys(kept));
                self.handle_keys_changed(now);
            }
            None => {}
        }
    }

    /// Uses the keys of the node in the kernel, and then states them.
    fn handle_keys_changed(&mut self, now: Instant) {
        let secrets = self.pairs.secrets().iter();
        let generations = secrets.map(|secret| secret.generation).collect();
        self.events.push_back(Event::KeysChanged { generations });
        self.apply(now, self.assignment());
    }

    /// States the keys that the kernel has now.
    fn state_keys(&mut self) {
        let statement = self.pairs.statement();
        if statement.is_some() && statement != self.stated {
            self.stated.clone_from(&statement);
            self.commands.extend(statement.map(Command::StateKeys));
        }
    }

    fn set_sends(&mut self, sends: Vec<Send>) {
        let before = std::mem::take(&mut self.sends);
        for (index, send) in sends.into_iter().enumerate() {
            let known = before.iter().find(|sent| is_same_send(sent, &send));
            let is_sent = self.plan.sends.values().any(|sent| *sent == index);
            let sent = match known.filter(|_| is_sent) {
                Some(known) => known.reassigned(send),
                None => SentFlow::new(send),
            };
            self.sends.push(sent);
        }
        let sends = &self.plan.sends;
        self.first_copies.retain(|flow| sends.contains_key(&flow));
    }

    /// Judges and watches the received flows. Flows whose assignment has not changed keep their
    /// state, unless the controller restarted counting. Viewers are watched in any case.
    fn set_receives(&mut self, receives: Vec<Receive>, has_restarted: bool, now: Instant) {
        let mut before = std::mem::take(&mut self.receives);
        for (index, receive) in receives.into_iter().enumerate() {
            let known = before
                .iter()
                .position(|received| is_same_receive(received, &receive))
                .map(|index| before.swap_remove(index));
            let flow = self.plan.receives.iter().find(|(_, at)| **at == index);
            let known = known.filter(|_| flow.is_some());
            let is_watched = flow.is_some_and(|(flow, _)| self.plan.watched.contains(flow));
            let received = self.reassigned(known, receive, is_watched, has_restarted, now);
            self.receives.push(received);
        }
    }

    fn reassigned(
        &mut self,
        known: Option<ReceivedFlow>,
        receive: Receive,
        is_watched: bool,
        has_restarted: bool,
        now: Instant,
    ) -> ReceivedFlow {
        let viewer = known.as_ref().and_then(|known| known.viewer_for(&receive));
        let known = known.filter(|known| !has_restarted && known.has_same_assignment(&receive));
        let mut received = match known {
            Some(mut known) => {
                if known.reassign(receive.policy, now) {
                    self.trace_received(known.policy(), now);
                }
                known
            }
            None => ReceivedFlow::new(receive, now),
        };
        received.set_viewer(viewer, is_watched, now);
        received
    }

    fn set_flows(&mut self) {
        self.unapplied.retry_at = None;
        self.commands.push_back(Command::SetFlows {
            flows: self.flows(),
            replace_policies: self.unapplied.replaces_policies,
        });
    }

    fn handle_flows_set(&mut self, now: Instant, in_force: &[FlowId]) {
        for flow in in_force {
            if let Some(index) = self.plan.sends.get(flow) {
                let policy = self.sends[*index].assigned.policy.clone();
                self.handle_effect(now, *flow, *index, &policy);
            }
        }
        self.unapplied.replaces_policies = false;
        if std::mem::take(&mut self.unapplied.configures) {
            self.configure();
        }
    }

    fn handle_configured(&mut self, now: Instant) {
        self.unapplied.retry_after = RETRY_AFTER;
        self.applied_revision = self.revision;
        self.state_keys();
        // The controller may wait for the report that copies are deduplicated here before it
        // replicates flows.
        self.reports.next_at = now;
    }

    fn configure(&mut self) {
        let watched = self.received().filter_map(|(flow, received)| {
            let Receive {
                flow: name,
                trigger,
                ..
            } = &received.assigned;
            received.viewer()?;
            Some((flow, (name.clone(), trigger.clone()?)))
        });
        let watched = WatchedRequests {
            flows: watched.collect(),
            selectors: self.plan.watch_selectors.clone(),
        };
        self.commands.push_back(Command::Configure {
            signal_key: self.signal_key.clone(),
            watched,
        });
    }

    fn handle_policy(&mut self, now: Instant, policy: Policy) {
        if let Some((flow, _)) = self.sent_by_name(&policy.flow) {
            self.offer_policy(now, flow, &policy);
        }
        let mut received = self.plan.receives.values();
        let receives = &self.receives;
        let named = |index: &&usize| receives[**index].assigned.flow == policy.flow;
        if let Some(index) = received.find(named).copied()
            && self.receives[index].handle_policy(&policy, now)
        {
            self.trace_received(&policy, now);
            self.persist_soon(now);
        }
    }

    /// Offers a policy of a sent flow to the kernel, unless a newer one took effect before.
    fn offer_policy(&mut self, now: Instant, flow: FlowId, policy: &Policy) {
        let known = &mut self.sends[self.plan.sends[&flow]].assigned.policy;
        if policy.epoch < known.epoch {
            return;
        }
        if self.unapplied.retry_at.is_some() {
            // The kernel may not have the flow yet; it gets it with this policy.
            *known = policy.clone();
            self.persist_at.get_or_insert(now + PERSIST_WITHIN);
        }
        if let Err(reason) = missing_paths(policy, self.equipment.paths) {
            self.refuse(now, &policy.flow, reason);
        }
        // The kernel sends on those of its paths that the node has.
        let policy = policy.clone();
        self.commands.push_back(Command::SetPolicy { flow, policy });
    }

    fn handle_policy_set(&mut self, now: Instant, policy: &Policy, took_effect: bool) {
        let Some((flow, index)) = self.sent_by_name(&policy.flow) else {
            return;
        };
        if took_effect {
            self.handle_effect(now, flow, index, policy);
        } else if self.sends[index].confirmed(policy) {
            self.persist_soon(now);
        }
    }

    /// Handles that the kernel has put a policy into force as told.
    fn handle_effect(&mut self, now: Instant, flow: FlowId, index: usize, policy: &Policy) {
        let PathChange { before, after } = self.sends[index].applied(policy);
        self.first_copies
            .start(flow, policy.epoch, before, after, now);
        self.report_effect(now, policy.flow.clone(), policy.into(), false);
        self.persist_soon(now);
    }

    fn handle_accepted(&mut self, now: Instant, signal: &Signal) {
        let Signal { at, flow, .. } = *signal;
        let Some(index) = self.plan.sends.get(&flow) else {
            return;
        };
        let sent = &mut self.sends[*index];
        let (name, policy) = (sent.assigned.flow.clone(), signal.policy());
        // A policy that the kernel no longer holds, or is about to replace, is from before the
        // controller restarted counting.
        let is_replaced = self.unapplied.replaces_policies || policy.epoch > signal.in_force.epoch;
        let change = (!is_replaced).then(|| sent.signalled(policy)).flatten();
        if let Some(PathChange { before, after }) = change {
            self.first_copies
                .start(flow, policy.epoch, before, after, at);
            self.persist_soon(now);
        }
        self.report_effect(at, name, policy, true);
    }

    fn report_effect(&mut self, at: Instant, flow: Name, policy: PolicyWord, by_signal: bool) {
        let applied = Observation::Applied {
            flow: flow.clone(),
            epoch: policy.epoch,
            code: policy.code,
            by_signal,
        };
        self.reports.outbox.push(at, applied);
        self.events.push_back(Event::PolicyApplied {
            at,
            flow,
            policy,
            by_signal,
        });
    }

    fn trace_received(&mut self, policy: &Policy, now: Instant) {
        self.events.push_back(Event::PolicyReceived {
            at: now,
            policy: policy.clone(),
        });
    }

    fn refuse(&mut self, now: Instant, flow: &Name, reason: String) {
        self.events.push_back(Event::NotApplied {
            flow: flow.clone(),
            reason: reason.clone(),
        });
        let flow = flow.clone();
        let refused = Observation::NotApplied { flow, reason };
        self.reports.outbox.push(now, refused);
    }

    fn observe(&mut self, at: Instant, observation: Observation) {
        self.events.push_back(Event::Observed {
            at,
            observation: observation.clone(),
        });
        self.reports.outbox.push(at, observation);
    }

    fn judge(&mut self, now: Instant) {
        let mut observed = Vec::new();
        for index in self.plan.receives.values() {
            let received = &mut self.receives[*index];
            received.handle_timeout(now, self.equipment.arrival_deadline, |at, observation| {
                observed.push((at, observation));
            });
        }
        for (at, observation) in observed {
            self.observe(at, observation);
        }
    }

    fn find_first_copies(&mut self, now: Instant, copies: impl Fn(FlowId, PathId) -> u64) {
        for first in self.first_copies.poll(now, copies) {
            let Some(index) = self.plan.sends.get(&first.flow) else {
                continue;
            };
            let first_replica = Observation::FirstReplica {
                flow: self.sends[*index].assigned.flow.clone(),
                epoch: first.epoch,
                after_us: u64::try_from(first.after.as_micros()).unwrap_or(u64::MAX),
            };
            self.observe(now, first_replica);
        }
    }

    /// Counts the copies on paths that are not in use.
    fn count_copies(&mut self, copies: impl Fn(FlowId, PathId) -> u64) {
        for (flow, index) in &self.plan.sends {
            let unused = (self.equipment.paths).difference(self.sends[*index].paths_in_use());
            for path in unused.iter() {
                self.first_copies.record(*flow, path, copies(*flow, path));
            }
        }
    }

    /// Removes the flows whose copies are no longer in flight.
    fn expire_lingering(&mut self, now: Instant) {
        let before = self.lingering.len();
        self.lingering.retain(|_, lingering| now < lingering.until);
        if self.lingering.len() < before {
            self.forget_peers();
            self.set_flows();
        }
    }

    fn persist_soon(&mut self, now: Instant) {
        self.persist_at.get_or_insert(now + PERSIST_WITHIN);
    }

    /// Returns the number and the index of a flow that the node replicates.
    fn sent_by_name(&self, name: &Name) -> Option<(FlowId, usize)> {
        let sends = self.plan.sends.iter();
        let mut sends = sends.map(|(flow, index)| (*flow, *index));
        sends.find(|(_, index)| self.sends[*index].assigned.flow == *name)
    }

    fn received_mut(&mut self, flow: FlowId) -> Option<&mut ReceivedFlow> {
        let index = self.plan.receives.get(&flow)?;
        self.receives.get_mut(*index)
    }
}

/// Returns the assignment of a node that has not received one.
fn unassigned() -> Assignment {
    Assignment {
        revision: 0,
        incarnation: None,
        report_every_ms: DEFAULT_REPORT_EVERY_MS,
        reconnect_within_ms: 0,
        signal_key: None,
        sends: Vec::new(),
        receives: Vec::new(),
        keys: AssignedKeys::default(),
        discovery: Discovery::default(),
    }
}

fn is_same_send(sent: &SentFlow, send: &Send) -> bool {
    (sent.assigned.number, &sent.assigned.flow) == (send.number, &send.flow)
}

fn is_same_receive(received: &ReceivedFlow, receive: &Receive) -> bool {
    (received.assigned.number, &received.assigned.flow) == (receive.number, &receive.flow)
}

fn keep_newer(policy: &mut Policy, known: Option<&Policy>) {
    if let Some(known) = known.filter(|known| known.epoch > policy.epoch) {
        *policy = known.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::{PathSet, PolicyCode};

    fn assignment(revision: u64, flow: u64) -> Assignment {
        let number = flow % 1_100;
        let policy = format!(
            r#"{{ "flow": "f{flow}", "epoch": 1, "code": 1, "probes": 0, "probe_every": 0,
                  "reason": "configured", "decided_unix_ms": 0 }}"#
        );
        let text = format!(
            r#"{{ "revision": {revision}, "report_every_ms": 5000, "reconnect_within_ms": 0, "signal_key": null,
                "keys": {{}}, "discovery": {{}},
                  "sends": [{{ "flow": "f{flow}", "number": {number}, "peer": "peer",
                               "select": {{ "destination": "10.0.0.0/8" }}, "policy": {policy} }}],
                  "receives": [{{ "flow": "f{flow}", "number": {number}, "peer": "peer",
                                  "mode": "replicate", "pruning": {{}}, "paths": 3,
                                  "trigger": null, "policy": {policy} }}] }}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn drain(node: &mut ControlledNode, now: Instant) {
        while let Some(command) = node.poll_command() {
            match command {
                Command::SetFlows { flows, .. } => {
                    let set = flows.sends.into_keys().collect();
                    node.handle_outcome(now, Outcome::FlowsSet(set));
                }
                Command::Configure { .. } => node.handle_outcome(now, Outcome::Configured),
                _ => {}
            }
        }
        while node.poll_event().is_some() {}
    }

    #[test]
    fn state_is_bounded_while_no_controller_takes_reports() {
        let equipment = Equipment {
            paths: PathSet::from_bits(0b11),
            adjacent: PathSet::from_bits(0b11),
            discovers: false,
            replicates: true,
            watches: false,
            peers: ["peer".to_owned()].into(),
            max_rules: 16,
            arrival_deadline: Duration::from_millis(200),
        };
        let now = Instant::ZERO;
        let mut node = ControlledNode::new(None, equipment, now);
        for round in 1..2_000 {
            node.handle_message(now, Message::Assignment(assignment(round, round)));
            let signal = Signal {
                at: now,
                flow: FlowId::try_from((round % 1_024) as u16).unwrap(),
                epoch: 2,
                code: PolicyCode(0b11),
                outcome: SignalOutcome::Accepted,
                in_force: PolicyWord::default(),
            };
            node.handle_signal(now, signal);
            node.handle_rejected_signals(now, [("tag", round)]);
            node.handle_copies(now, |_, _| round);
            node.handle_timeout(now);
            drain(&mut node, now);
        }
        assert_eq!((node.sends.len(), node.receives.len()), (1, 1));
        assert!(node.lingering.len() <= 1_024);
        assert!(node.reports.outbox.len() <= 1_024);
        assert!(node.observations_dropped() > 0);
        assert!(node.first_copies.len() <= 1_024 * 8 + 1_024);
        assert_eq!(node.rejected_signals.len(), 1);
        node.handle_timeout(now + LINGER);
        assert!(node.lingering.is_empty());
    }
}
