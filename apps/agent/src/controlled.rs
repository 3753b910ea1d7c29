//! The node under a controller: what it is told takes effect, what it sees is reported.

mod egress;
mod ingress;
mod report;

use crate::assignment::{Plan, missing_paths, send_policy};
use crate::config::{Config, ControllerConfig};
use crate::echo::Echoes;
use crate::flows::Flows;
use crate::kept::Kept;
use crate::link::{Connection, Link, Message};
use crate::node::Node;
use crate::observer::Observer;
use crate::outbox::Outbox;
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

/// How long the loop waits for the controller before it looks at the kernel again.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The same while a first copy is waited for, which is reported to this precision.
const LOOK_CLOSELY: Duration = Duration::from_millis(1);

/// How often what need not happen at once is done.
const SLOWLY: Duration = Duration::from_secs(1);

/// How often the node reports before its controller has said.
const REPORT_EVERY_MS: u32 = 5_000;

/// What an agent before this one has left: it goes on until the controller says otherwise.
pub(crate) struct Restored {
    settings: ControllerConfig,
    kept: Kept,
    assignment: Assignment,
    plan: Plan,
}

/// A node whose flows come from a controller.
pub(crate) struct Controlled {
    settings: ControllerConfig,
    link: Link,
    connection: Connection,
    since_unix_ms: u64,
    /// Whether the link takes a report.
    ready: bool,
    next_report: Instant,
    next_slow: Instant,
    kept: Kept,
    /// Whether the assignment differs from what is kept.
    unkept: bool,
    assignment: Assignment,
    /// Of the last assignment that could be carried out.
    in_force: u64,
    plan: Plan,
    outbox: Outbox,
    health: Health,
    echoes: Echoes,
    ingress: Ingress,
    egress: Egress,
    trace: Trace,
}

impl Restored {
    /// Reads what was kept; nothing without a controller.
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
        let kept = Kept::at(&settings.state);
        let assignment = kept.read().unwrap_or(Assignment {
            revision: 0,
            report_every_ms: REPORT_EVERY_MS,
            signal_key: None,
            sends: Vec::new(),
            receives: Vec::new(),
        });
        let plan = Plan::of(&assignment, config);
        Ok(Some(Restored {
            settings,
            kept,
            assignment,
            plan,
        }))
    }

    /// The flows to begin with.
    pub(crate) fn flows(&self) -> Flows {
        self.plan.flows.clone()
    }

    /// Starts to talk to the controller, when the programs run.
    pub(crate) fn start(self, node: &mut Node, now: Instant) -> Result<Controlled> {
        let Restored {
            settings,
            kept,
            assignment,
            plan,
        } = self;
        let config = node.config();
        if assignment.revision > 0 {
            let (sent, received) = (plan.flows.send.len(), plan.receives.len());
            info!(
                revision = assignment.revision,
                "{sent} flows sent and {received} received, as before"
            );
        }
        let mut controlled = Controlled {
            link: Link::start(settings.clone(), report::registration(config, &settings))?,
            connection: Connection::Connecting,
            since_unix_ms: unix_now_ms(),
            ready: false,
            next_report: now,
            next_slow: now,
            kept,
            unkept: false,
            outbox: Outbox::default(),
            health: Health::default(),
            echoes: Echoes::new(config),
            ingress: Ingress::start(node)?,
            egress: Egress::start(config)?,
            trace: Trace::to(config.trace.as_deref())?,
            settings,
            in_force: assignment.revision,
            assignment,
            plan,
        };
        controlled.follow(node);
        controlled.begin(node, now)?;
        Ok(controlled)
    }
}

impl Controlled {
    /// What became of a packet of a received flow.
    pub(crate) fn handle_packet(&mut self, packet: &JudgedPacket) {
        self.egress.handle_packet(packet, &mut self.trace);
    }

    /// Uses the interfaces as they are now.
    pub(crate) fn follow(&mut self, node: &mut Node) {
        let number_of = |name: &str| node.interface_number(name);
        self.echoes.follow(number_of);
        self.egress.follow(&node.config().watch, number_of);
        self.obey_signals(node)
            .unwrap_or_else(|error| warn!("in-band signals are not obeyed: {error:#}"));
    }

    /// Takes over keys that were read again.
    pub(crate) fn reload(&mut self, node: &mut Node, now: Instant) -> Result<()> {
        self.echoes.reload(node.config());
        self.carry_out(node, self.assignment.clone(), now)
    }

    /// Looks at the kernel, and tells the controller what it has to know.
    pub(crate) fn look(&mut self, node: &mut Node, observer: Option<&Observer>, now: Instant) {
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
        if now >= self.next_slow {
            self.next_slow = now + SLOWLY;
            self.look_around(node, now);
        }
        self.report(node, observer, now);
    }

    /// Waits for the controller, but not for long.
    pub(crate) fn wait(&mut self, node: &mut Node) {
        let mut patience = if self.ingress.is_waiting() {
            LOOK_CLOSELY
        } else {
            LOOK_EVERY
        };
        while let Some(message) = self.link.wait(patience) {
            if let Err(error) = self.handle(node, message, crate::monotonic_now()) {
                error!("what the controller said could not be done: {error:#}");
            }
            patience = Duration::ZERO;
        }
    }

    /// What people are to know.
    pub(crate) fn status(&self, node: &Node, now: Instant) -> ControllerStatus {
        let (state, why) = match &self.connection {
            Connection::Connecting => ("connecting", None),
            Connection::Connected => ("connected", None),
            Connection::Away(why) => ("away", Some(why.clone())),
            Connection::Refused(why) => ("refused", Some(why.clone())),
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
            why,
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
                self.outbox.arrived();
                self.ready = true;
            }
            Message::Unsent => self.outbox.put_back(),
            Message::NotTaken => self.outbox.refused(),
            Message::Policy(policy) => self.handle_policy(node, &policy, now)?,
            Message::Assignment(assignment) => {
                info!(
                    revision = assignment.revision,
                    "the controller has assigned flows"
                );
                self.carry_out(node, assignment, now)?;
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
            Connection::Away(why) => warn!("no controller; the last policies stay in force: {why}"),
            Connection::Refused(why) => error!(
                "THE CONTROLLER REFUSES THIS NODE; the last policies stay in force until somebody enrols it again: {why}"
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
            // A signal does not say why.
            let stored = self
                .assignment
                .sends
                .iter_mut()
                .find(|send| send.flow == policy.flow);
            if let Some(send) = stored.filter(|send| send.policy.epoch <= policy.epoch) {
                send.policy = policy.clone();
                self.unkept = true;
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
            self.unkept = true;
        }
        Ok(())
    }

    /// Puts an assignment into the place of the one before. A policy that is newer than the assignment's stays, unless the
    /// controller counts anew.
    fn carry_out(
        &mut self,
        node: &mut Node,
        mut assignment: Assignment,
        now: Instant,
    ) -> Result<()> {
        let anew = assignment.revision < self.assignment.revision;
        if anew {
            warn!("the controller counts assignments anew: its policies replace those in force");
            self.egress.forget();
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
        self.unkept = true;
        self.egress.linger(&before, &self.plan, now);
        let mut flows = self.plan.flows.clone();
        self.egress.add_lingering(&mut flows);
        for effect in self.ingress.set_flows(node, flows, anew, now)? {
            self.took_effect(&effect);
        }
        self.begin(node, now)?;
        self.in_force = self.assignment.revision;
        // Flows may wait for word that their copies are eliminated.
        self.next_report = now;
        Ok(())
    }

    /// Watches, judges and obeys signals as the assignment says.
    fn begin(&mut self, node: &mut Node, now: Instant) -> Result<()> {
        self.obey_signals(node)?;
        self.egress.set_flows(&self.plan, now, &mut self.trace)
    }

    fn obey_signals(&mut self, node: &mut Node) -> Result<()> {
        self.ingress
            .obey_signals(node, &self.settings, self.assignment.signal_key.as_deref())
    }

    /// A policy is in force now.
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
        let (code, probes) = (policy.code.0, policy.probes.bits());
        info!(flow = %name, epoch = policy.epoch, "paths {code:#010b}, probes {probes:#010b}, {detail}");
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
            self.unkept = true;
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

    /// What is done once a second.
    fn look_around(&mut self, node: &mut Node, now: Instant) {
        self.health.look();
        self.ingress.note_copies(node, &self.plan);
        for observation in self.ingress.refused_signals(node) {
            self.outbox.push(now, observation);
        }
        self.egress.frame_sizes();
        if self.egress.has_left(now) {
            let mut flows = self.plan.flows.clone();
            self.egress.add_lingering(&mut flows);
            self.ingress
                .set_flows(node, flows, false, now)
                .map(drop)
                .unwrap_or_else(|error| error!("{error:#}"));
        }
        if std::mem::take(&mut self.unkept) {
            self.kept.write(&self.assignment);
        }
        self.trace.flush();
    }

    /// Reports when there is something to say, or when it is time to.
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
        let mut report = report.describe(self.in_force);
        report.paths = self.health.take(node, &self.echoes, now);
        report.observations = self.outbox.take(now);
        self.link.report(report);
        self.ready = false;
        self.next_report = now + Duration::from_millis(self.assignment.report_every_ms.into());
    }
}

/// A signal or an event may have brought a policy that is newer than the assignment on its way.
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
    /// The number of a flow that is sent here.
    fn sent(&self, name: &Name) -> Option<FlowId> {
        let named = |sent: &crate::flows::Sent| sent.name.as_ref() == Some(name);
        self.flows
            .send
            .iter()
            .find(|(_, sent)| named(sent))
            .map(|(flow, _)| *flow)
    }

    /// The number of a flow that is received here.
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
                                           "probe_every": 0, "because": "configured", "decided_unix_ms": 0 }} }}] }}"#
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
        // The number stands for a flow that was made anew.
        assert_eq!(epoch_after(&assignment(1, 4, 9), assignment(2, 5, 1)), 1);
    }
}
