//! A node under a controller: applies assignments and policies, and reports observations.

mod egress;
mod ingress;
mod report;

use crate::assignment::{Plan, missing_paths, send_policy};
use crate::config::{Config, ControllerConfig};
use crate::echo::Echoes;
use crate::flows::Flows;
use crate::link::{Connection, Link, Message};
use crate::node::Node;
use crate::observer::Observer;
use crate::outbox::Outbox;
use crate::persisted::PersistedAssignment;
use crate::status::{ControllerStatus, PathStatus, unix_now_ms};
use crate::trace::{Change, Trace};
use anyhow::{Result, ensure};
use egress::Egress;
use hawser_client::Identity;
use hawser_control::Name;
use hawser_control::node::{Assignment, Observation};
use hawser_control::resource::Policy;
use hawser_pathset::JudgedPacket;
use hawser_units::{FlowId, Instant};
use ingress::{Effect, Ingress};
use report::Health;
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::{error, info, warn};

/// The longest time that the loop waits for the controller before it polls the kernel again.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// The same while a first copy is awaited. The time of the first copy is reported with this
/// precision.
const POLL_FIRST_COPY_EVERY: Duration = Duration::from_millis(1);

/// Interval of the tasks that need not be done at once.
const SLOW_TASKS_EVERY: Duration = Duration::from_secs(1);

/// Report interval until the controller has sent one, milliseconds.
const DEFAULT_REPORT_EVERY_MS: u32 = 5_000;

/// The state of an earlier agent, which stays in force until the controller changes it.
pub(crate) struct Restored {
    settings: ControllerConfig,
    persisted: PersistedAssignment,
    assignment: Assignment,
    plan: Plan,
}

/// A node whose flows are assigned by a controller.
pub(crate) struct Controlled {
    settings: ControllerConfig,
    link: Link,
    connection: Connection,
    since_unix_ms: u64,
    /// Whether the link accepts a report.
    ready: bool,
    next_report: Instant,
    next_slow_tasks: Instant,
    persisted: PersistedAssignment,
    /// Whether the assignment differs from the persisted one.
    is_unsaved: bool,
    assignment: Assignment,
    /// The revision of the last assignment that was applied.
    applied_revision: u64,
    plan: Plan,
    outbox: Outbox,
    health: Health,
    echoes: Echoes,
    ingress: Ingress,
    egress: Egress,
    trace: Trace,
}

impl Restored {
    /// Reads the persisted assignment. Returns `None` if the node has no controller.
    pub(crate) fn read(config: &Config) -> Result<Option<Self>> {
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
        let assignment = persisted.read().unwrap_or(Assignment {
            revision: 0,
            report_every_ms: DEFAULT_REPORT_EVERY_MS,
            signal_key: None,
            sends: Vec::new(),
            receives: Vec::new(),
        });
        let plan = Plan::of(&assignment, config);
        Ok(Some(Restored {
            settings,
            persisted,
            assignment,
            plan,
        }))
    }

    /// Returns the flows to start with.
    pub(crate) fn flows(&self) -> Flows {
        self.plan.flows.clone()
    }

    /// Starts to talk to the controller. Call this when the programs run.
    pub(crate) fn start(self, node: &mut Node, now: Instant) -> Result<Controlled> {
        let Restored {
            settings,
            persisted,
            assignment,
            plan,
        } = self;
        let config = node.config();
        if assignment.revision > 0 {
            let (sent, received) = (plan.flows.send.len(), plan.receives.len());
            info!(
                revision = assignment.revision,
                "restored the last assignment: {sent} flows sent, {received} received"
            );
        }
        let mut controlled = Controlled {
            link: Link::start(settings.clone(), report::registration(config, &settings))?,
            connection: Connection::Connecting,
            since_unix_ms: unix_now_ms(),
            ready: false,
            next_report: now,
            next_slow_tasks: now,
            persisted,
            is_unsaved: false,
            outbox: Outbox::default(),
            health: Health::default(),
            echoes: Echoes::new(config),
            ingress: Ingress::start(node)?,
            egress: Egress::start(config)?,
            trace: Trace::to(config.trace.as_deref())?,
            settings,
            applied_revision: assignment.revision,
            assignment,
            plan,
        };
        controlled.follow(node);
        controlled.configure(node, now)?;
        Ok(controlled)
    }
}

impl Controlled {
    /// Passes the fate of a packet of a received flow to its judge.
    pub(crate) fn handle_packet(&mut self, packet: &JudgedPacket) {
        self.egress.handle_packet(packet, &mut self.trace);
    }

    /// Uses the current interfaces.
    pub(crate) fn follow(&mut self, node: &mut Node) {
        let number_of = |name: &str| node.interface_number(name);
        self.echoes.follow(number_of);
        self.egress.follow(&node.config().watch, number_of);
        self.configure_signals(node)
            .unwrap_or_else(|error| warn!("in-band signals cannot be configured: {error:#}"));
    }

    /// Applies reloaded keys.
    pub(crate) fn reload(&mut self, node: &mut Node, now: Instant) -> Result<()> {
        self.echoes.reload(node.config());
        self.apply_assignment(node, self.assignment.clone(), now)
    }

    /// Polls the kernel, and reports to the controller.
    pub(crate) fn poll(&mut self, node: &mut Node, observer: Option<&Observer>, now: Instant) {
        self.echoes.handle(now);
        for effect in self.ingress.poll(node) {
            self.took_effect(&effect);
        }
        for (at, observation) in self.ingress.first_copies(node, &self.plan, now) {
            self.observed(at, observation);
        }
        for (at, observation) in self.egress.poll(now) {
            self.observed(at, observation);
        }
        if now >= self.next_slow_tasks {
            self.next_slow_tasks = now + SLOW_TASKS_EVERY;
            self.run_slow_tasks(node, now);
        }
        self.report(node, observer, now);
    }

    /// Waits for messages of the controller, at most until the next poll of the kernel is due, and
    /// handles them.
    pub(crate) fn wait(&mut self, node: &mut Node) {
        let mut timeout = if self.ingress.is_waiting() {
            POLL_FIRST_COPY_EVERY
        } else {
            POLL_EVERY
        };
        while let Some(message) = self.link.wait(timeout) {
            if let Err(error) = self.handle(node, message, crate::monotonic_now()) {
                error!("cannot apply a message of the controller: {error:#}");
            }
            timeout = Duration::ZERO;
        }
    }

    /// Returns the status of the connection, the flows and the paths.
    pub(crate) fn status(&self, node: &Node, now: Instant) -> ControllerStatus {
        let (state, reason) = match &self.connection {
            Connection::Connecting => ("connecting", None),
            Connection::Connected => ("connected", None),
            Connection::Unreachable(reason) => ("unreachable", Some(reason.clone())),
            Connection::Refused(reason) => ("refused", Some(reason.clone())),
        };
        let round_trip_us = |path| report::round_trip_us(&self.echoes, path, now);
        let paths = node.config().paths.keys().map(|path| {
            let status = PathStatus {
                up: self.health.is_up(node, *path),
                rtt_us: round_trip_us(*path),
            };
            (u8::from(*path) + 1, status)
        });
        ControllerStatus {
            urls: self.settings.urls.iter().map(ToString::to_string).collect(),
            state: state.to_owned(),
            since_unix_ms: self.since_unix_ms,
            reason,
            revision: self.assignment.revision,
            observations_dropped: self.outbox.dropped(),
            not_applied: self.plan.refused.iter().cloned().collect(),
            paths: paths.collect(),
            send: self
                .assignment
                .sends
                .iter()
                .map(|send| (send.number, (&send.policy).into()))
                .collect(),
            receive: self.egress.status(),
            signals: self.ingress.signal_counts(node),
        }
    }

    fn handle(&mut self, node: &mut Node, message: Message, now: Instant) -> Result<()> {
        match message {
            Message::Controllers(addresses) => node.set_controllers(addresses)?,
            Message::Connection(connection) => self.connection_changed(connection, now),
            Message::Ready => {
                self.outbox.handle_delivered();
                self.ready = true;
            }
            Message::ReportLost => self.outbox.put_back(),
            Message::ReportRejected => self.outbox.handle_rejected(),
            Message::Policy(policy) => self.handle_policy(node, &policy, now)?,
            Message::Assignment(assignment) => {
                info!(revision = assignment.revision, "received an assignment");
                self.apply_assignment(node, assignment, now)?;
            }
        }
        Ok(())
    }

    fn connection_changed(&mut self, connection: Connection, now: Instant) {
        if connection == self.connection {
            return;
        }
        match &connection {
            Connection::Connecting => {}
            Connection::Connected => {
                info!("connected to the controller");
                self.next_report = now;
            }
            Connection::Unreachable(why) => {
                warn!("controller unreachable; the last policies stay in force: {why}")
            }
            Connection::Refused(why) => error!(
                "THE CONTROLLER REFUSES THIS NODE; the last policies stay in force until the node is enrolled again: {why}"
            ),
        }
        self.ready = false;
        self.connection = connection;
        self.since_unix_ms = unix_now_ms();
    }

    fn handle_policy(&mut self, node: &mut Node, policy: &Policy, now: Instant) -> Result<()> {
        if let Some(flow) = self.plan.sent(&policy.flow) {
            if let Err(reason) = missing_paths(policy, node.config()) {
                self.not_applied(&policy.flow, reason, now);
            }
            match self
                .ingress
                .set_policy(node, flow, send_policy(policy), now)
            {
                Ok(effect) => effect.iter().for_each(|effect| self.took_effect(effect)),
                Err(error) => self.not_applied(&policy.flow, format!("{error:#}"), now),
            }
            // A signal does not carry the reason of its policy.
            let stored = self
                .assignment
                .sends
                .iter_mut()
                .find(|send| send.flow == policy.flow);
            if let Some(send) = stored.filter(|send| send.policy.epoch <= policy.epoch) {
                send.policy = policy.clone();
                self.is_unsaved = true;
            }
        }
        if self
            .egress
            .set_policy(&self.plan, policy, now, &mut self.trace)
        {
            let stored = self
                .assignment
                .receives
                .iter_mut()
                .find(|receive| receive.flow == policy.flow);
            stored
                .into_iter()
                .for_each(|receive| receive.policy = policy.clone());
            self.is_unsaved = true;
        }
        Ok(())
    }

    /// Replaces the assignment. A policy that is newer than the one in the assignment stays, unless
    /// the controller restarted counting.
    fn apply_assignment(
        &mut self,
        node: &mut Node,
        mut assignment: Assignment,
        now: Instant,
    ) -> Result<()> {
        let has_restarted = assignment.revision < self.assignment.revision;
        if has_restarted {
            warn!(
                "the controller restarted counting assignments: its policies replace those in force"
            );
            self.egress.reset();
        } else {
            keep_newer_policies(&mut assignment, &self.assignment);
        }
        let plan = Plan::of(&assignment, node.config());
        let known = std::mem::take(&mut self.plan.refused);
        for (flow, reason) in plan
            .refused
            .iter()
            .filter(|refused| !known.contains(refused))
        {
            self.not_applied(flow, reason.clone(), now);
        }
        let before = std::mem::replace(&mut self.plan, plan);
        self.assignment = assignment;
        self.is_unsaved = true;
        self.egress.linger(&before, &self.plan, now);
        let mut flows = self.plan.flows.clone();
        self.egress.add_lingering(&mut flows);
        for effect in self.ingress.set_flows(node, flows, has_restarted, now)? {
            self.took_effect(&effect);
        }
        self.configure(node, now)?;
        self.applied_revision = self.assignment.revision;
        // The controller may wait for the report that copies are deduplicated here before it
        // replicates flows.
        self.next_report = now;
        Ok(())
    }

    /// Configures watching, judging and in-band signals according to the assignment.
    fn configure(&mut self, node: &mut Node, now: Instant) -> Result<()> {
        self.configure_signals(node)?;
        self.egress.set_flows(&self.plan, now, &mut self.trace)
    }

    fn configure_signals(&mut self, node: &mut Node) -> Result<()> {
        self.ingress
            .configure_signals(node, &self.settings, self.assignment.signal_key.as_deref())
    }

    /// Records and reports that a policy took effect.
    fn took_effect(&mut self, effect: &Effect) {
        let Effect {
            flow,
            policy,
            by_signal,
            at,
        } = *effect;
        let Some(name) = self
            .plan
            .flows
            .send
            .get(&flow)
            .and_then(|sent| sent.name.clone())
        else {
            return;
        };
        let detail = if by_signal {
            "by signal"
        } else {
            "by the controller"
        };
        let (code, probes) = (policy.code, policy.probes);
        info!(flow = %name, epoch = policy.epoch, "paths {:#010b}, probes {:#010b}, {detail}", code.0, probes.bits());
        let change = Change {
            event: "policy",
            epoch: policy.epoch,
            code,
            probes,
            probe_every: policy.probe_every,
            detail,
        };
        self.trace.change(at, &name, change);
        if let Some(send) = self
            .assignment
            .sends
            .iter_mut()
            .find(|send| send.flow == name)
        {
            let stored = &mut send.policy;
            (stored.epoch, stored.code) = (policy.epoch, code);
            (stored.probes, stored.probe_every) = (probes, policy.probe_every);
            self.is_unsaved = true;
        }
        let applied = Observation::Applied {
            flow: name,
            epoch: policy.epoch,
            code,
            by_signal,
        };
        self.outbox.push(at, applied);
    }

    fn not_applied(&mut self, flow: &Name, reason: String, now: Instant) {
        warn!(%flow, "{reason}");
        self.outbox.push(
            now,
            Observation::NotApplied {
                flow: flow.clone(),
                reason,
            },
        );
    }

    fn observed(&mut self, at: Instant, observation: Observation) {
        report::trace(&mut self.trace, at, &observation);
        self.outbox.push(at, observation);
    }

    /// Runs the tasks that are due once a second.
    fn run_slow_tasks(&mut self, node: &mut Node, now: Instant) {
        self.health.update();
        self.ingress.record_copies(node, &self.plan);
        for observation in self.ingress.refused_signals(node) {
            self.outbox.push(now, observation);
        }
        self.egress.update_frame_sizes();
        if self.egress.expire_lingering(now) {
            let mut flows = self.plan.flows.clone();
            self.egress.add_lingering(&mut flows);
            self.ingress
                .set_flows(node, flows, false, now)
                .map(drop)
                .unwrap_or_else(|error| error!("{error:#}"));
        }
        if std::mem::take(&mut self.is_unsaved) {
            self.persisted.write(&self.assignment);
        }
        self.trace.flush();
    }

    /// Sends a report if there are observations, if the health of a path changed, or if a report is
    /// due.
    fn report(&mut self, node: &Node, observer: Option<&Observer>, now: Instant) {
        let urgent = !self.outbox.is_empty() || self.health.has_changed(node, &self.echoes, now);
        if !self.ready || !(urgent || now >= self.next_report) {
            return;
        }
        let report = report::Source {
            node,
            observer,
            plan: &self.plan,
        };
        let mut report = report.describe(self.applied_revision);
        report.paths = self.health.take(node, &self.echoes, now);
        report.observations = self.outbox.take(now);
        self.link.report(report);
        self.ready = false;
        self.next_report = now + Duration::from_millis(self.assignment.report_every_ms.into());
    }
}

/// Keeps policies that are newer than those of the assignment. A signal or an event may have
/// brought them while the assignment was in flight.
fn keep_newer_policies(assignment: &mut Assignment, before: &Assignment) {
    let mut known: BTreeMap<(&Name, u16), &Policy> = BTreeMap::new();
    known.extend(
        before
            .sends
            .iter()
            .map(|send| ((&send.flow, send.number), &send.policy)),
    );
    known.extend(
        before
            .receives
            .iter()
            .map(|receive| ((&receive.flow, receive.number), &receive.policy)),
    );
    let sends = assignment
        .sends
        .iter_mut()
        .map(|send| (&send.flow, send.number, &mut send.policy));
    let receives = assignment
        .receives
        .iter_mut()
        .map(|receive| (&receive.flow, receive.number, &mut receive.policy));
    for (flow, number, policy) in sends.chain(receives) {
        if let Some(newer) = known
            .get(&(flow, number))
            .filter(|known| known.epoch > policy.epoch)
        {
            *policy = (*newer).clone();
        }
    }
}

impl Plan {
    /// Returns the number of a flow that this node sends.
    fn sent(&self, name: &Name) -> Option<FlowId> {
        let named = |sent: &crate::flows::Sent| sent.name.as_ref() == Some(name);
        self.flows
            .send
            .iter()
            .find(|(_, sent)| named(sent))
            .map(|(flow, _)| *flow)
    }

    /// Returns the number of a flow that this node receives.
    fn received(&self, name: &Name) -> Option<FlowId> {
        self.receives
            .iter()
            .find(|(_, receive)| receive.flow == *name)
            .map(|(flow, _)| *flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment(revision: u64, number: u16, epoch: u32) -> Assignment {
        let text = format!(
            r#"{{ "revision": {revision}, "report_every_ms": 5000, "signal_key": null, "receives": [],
                 "sends": [{{ "flow": "stage", "number": {number}, "peer": "egress",
                              "select": {{ "destination": "10.0.0.0/8" }},
                              "policy": {{ "flow": "stage", "epoch": {epoch}, "code": 1, "probes": 0,
                                           "probe_every": 0, "reason": "configured", "decided_unix_ms": 0 }} }}] }}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn an_assignment_that_was_overtaken_by_a_policy_does_not_undo_it() {
        let epoch_after = |known: &Assignment, mut new: Assignment| {
            keep_newer_policies(&mut new, known);
            new.sends[0].policy.epoch
        };
        assert_eq!(epoch_after(&assignment(1, 4, 9), assignment(2, 4, 8)), 9);
        assert_eq!(epoch_after(&assignment(1, 4, 9), assignment(2, 4, 10)), 10);
        // The number belongs to a flow that was deleted and created again.
        assert_eq!(epoch_after(&assignment(1, 4, 9), assignment(2, 5, 1)), 1);
    }
}
