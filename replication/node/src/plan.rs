//! The parts of an assignment that a node can carry out.

use crate::pairs::{Pairs, Unusable};
use crate::selection::{Selectors, inherit, remove, rule};
use hawser_model::Name;
use hawser_model::node::{Assignment, Receive, Send};
use hawser_model::resource::Policy;
use hawser_units::{FlowId, PathSet, Prefix};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The parts of a node's configuration that its decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Equipment {
    /// The paths of the node.
    pub paths: PathSet,
    /// The paths on which packets can be sent as they are: of IPv4, with the other node on the link.
    pub adjacent: PathSet,
    /// Whether the controller may make paths of the node's uplinks.
    pub discovers: bool,
    /// Whether the node takes packets from an interface, to replicate them.
    pub replicates: bool,
    /// Whether the node watches an interface on which viewers' requests arrive.
    pub watches: bool,
    /// The names of the nodes whose keys are in this node's configuration.
    pub peers: BTreeSet<String>,
    /// The maximum number of rules that the kernel checks for a packet.
    pub max_rules: usize,
    /// The time within which all copies of a packet arrive.
    pub arrival_deadline: Duration,
}

/// The parts of an assignment that a node can carry out. Flows are given by their index in the
/// assignment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// The flows to replicate.
    pub(crate) sends: BTreeMap<FlowId, usize>,
    /// Selectors of the packets of these flows.
    pub(crate) send_selectors: Selectors,
    /// The flows to deduplicate.
    pub(crate) receives: BTreeMap<FlowId, usize>,
    /// Selectors of packets that are copies although they have no shim.
    pub(crate) receive_selectors: Selectors,
    /// The received flows whose viewers' requests are watched.
    pub(crate) watched: BTreeSet<FlowId>,
    /// Selectors of these requests.
    pub(crate) watch_selectors: Selectors,
    /// The flows that the node cannot carry out or carries out in part, with the reason.
    pub(crate) refused: Vec<(Name, String)>,
    /// The flows that wait for the other node, with the reason.
    pub(crate) waiting: Vec<(Name, String)>,
}

impl Plan {
    /// Returns the plan for the parts of the assignment that the node can carry out.
    pub(crate) fn of(assignment: &Assignment, equipment: &Equipment, pairs: &Pairs) -> Self {
        let mut plan = Plan::default();
        for (index, send) in assignment.sends.iter().enumerate() {
            let added = plan.add_send(index, send, equipment, pairs);
            plan.record_outcome(&send.flow, added);
        }
        for (index, receive) in assignment.receives.iter().enumerate() {
            let added = plan.add_receive(index, receive, equipment, pairs);
            let was_added = added.is_ok();
            plan.record_outcome(&receive.flow, added);
            if was_added {
                let watched = plan.add_watch(receive, equipment);
                plan.record_outcome(&receive.flow, watched.map_err(Unusable::from));
            }
        }
        plan.drop_excess_sends(assignment, equipment.max_rules);
        plan.drop_excess_watches(assignment, equipment.max_rules);
        plan
    }

    fn record_outcome(&mut self, flow: &Name, outcome: Result<(), Unusable>) {
        match outcome {
            Ok(()) => {}
            Err(Unusable::Refused(reason)) => self.refused.push((flow.clone(), reason)),
            Err(Unusable::Waiting(reason)) => self.waiting.push((flow.clone(), reason)),
        }
    }

    fn add_send(
        &mut self,
        index: usize,
        send: &Send,
        equipment: &Equipment,
        pairs: &Pairs,
    ) -> Result<(), Unusable> {
        let flow = number(send.number)?;
        if !equipment.replicates {
            let reason = "neither transit nor local names an interface to take packets from";
            return Err(reason.to_owned().into());
        }
        if self.sends.contains_key(&flow) {
            let number = send.number;
            return Err(format!("another flow to be sent has the number {number}").into());
        }
        pairs.can_send(&send.peer)?;
        if let Some(paths) = send.transparent {
            check_adjacent(paths.intersection(equipment.paths), equipment)?;
        }
        let (prefix, rule) = rule(flow, &send.select)?;
        self.send_selectors.entry(prefix).or_default().push(rule);
        self.sends.insert(flow, index);
        Ok(missing_paths(&send.policy, equipment.paths)?)
    }

    fn add_receive(
        &mut self,
        index: usize,
        receive: &Receive,
        equipment: &Equipment,
        pairs: &Pairs,
    ) -> Result<(), Unusable> {
        let flow = number(receive.number)?;
        if equipment.paths.is_empty() && equipment.discovers {
            let peer = &receive.peer;
            let reason = format!("no path to {peer} has been found yet");
            return Err(Unusable::Waiting(reason));
        }
        if equipment.paths.is_empty() {
            let reason = "this node has no paths on which copies could arrive";
            return Err(reason.to_owned().into());
        }
        if self.receives.contains_key(&flow) {
            let number = receive.number;
            return Err(format!("another flow to be received has the number {number}").into());
        }
        pairs.can_receive(&receive.peer)?;
        if let Some(select) = &receive.transparent {
            check_adjacent(receive.paths.intersection(equipment.paths), equipment)?;
            let (prefix, rule) = rule(flow, select)?;
            let rules = self.receive_selectors.entry(prefix).or_default();
            rules.push(rule);
        }
        self.receives.insert(flow, index);
        Ok(())
    }

    fn add_watch(&mut self, receive: &Receive, equipment: &Equipment) -> Result<(), String> {
        let Some(trigger) = &receive.trigger else {
            return Ok(());
        };
        let flow = number(receive.number)?;
        if !equipment.watches {
            return Err(
                "its viewer's requests cannot be watched: watch names no interface".to_owned(),
            );
        }
        let (prefix, rule) = rule(flow, &trigger.select)?;
        self.watch_selectors.entry(prefix).or_default().push(rule);
        self.watched.insert(flow);
        Ok(())
    }

    /// Removes flows until no destination has more of them than the kernel checks. Flows with high
    /// numbers are removed first.
    fn drop_excess_sends(&mut self, assignment: &Assignment, max_rules: usize) {
        while let Err(excess) = inherit(&self.send_selectors, max_rules) {
            let Some(flow) = excess.flows.into_iter().max() else {
                break;
            };
            remove(&mut self.send_selectors, flow);
            if let Some(index) = self.sends.remove(&flow) {
                let name = assignment.sends[index].flow.clone();
                self.refused
                    .push((name, too_many(excess.prefix, max_rules)));
            }
        }
        self.send_selectors = inherit(&self.send_selectors, max_rules).unwrap_or_default();
    }

    /// Does the same for the flows whose viewers' requests are watched. They are still received.
    fn drop_excess_watches(&mut self, assignment: &Assignment, max_rules: usize) {
        while let Err(excess) = inherit(&self.watch_selectors, max_rules) {
            let Some(flow) = excess.flows.into_iter().max() else {
                break;
            };
            remove(&mut self.watch_selectors, flow);
            self.watched.remove(&flow);
            if let Some(index) = self.receives.get(&flow) {
                let name = assignment.receives[*index].flow.clone();
                self.refused
                    .push((name, too_many(excess.prefix, max_rules)));
            }
        }
        self.watch_selectors = inherit(&self.watch_selectors, max_rules).unwrap_or_default();
    }
}

/// Returns an error if the policy names paths that the node does not have. The flow uses the other
/// paths.
pub(crate) fn missing_paths(policy: &Policy, paths: PathSet) -> Result<(), String> {
    let named = policy.code.paths().union(policy.probes);
    let missing: Vec<_> = named
        .difference(paths)
        .iter()
        .map(|path| path.to_string())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    Err(format!(
        "this node has no {missing}; the flow uses the other paths"
    ))
}

/// Returns an error if a transparent flow may use a path on which packets cannot be sent as they
/// are: they would reach another host, or could not be identified.
fn check_adjacent(paths: PathSet, equipment: &Equipment) -> Result<(), String> {
    let wrong = paths.difference(equipment.adjacent);
    match wrong.iter().next() {
        None => Ok(()),
        Some(path) => Err(format!(
            "a transparent flow needs paths of IPv4 whose other end is on the link, and {path} is not: leave it out of \
             `paths` of the flow"
        )),
    }
}

fn too_many(prefix: Prefix, max_rules: usize) -> String {
    format!("more than {max_rules} flows share the destination {prefix}")
}

fn number(number: u16) -> Result<FlowId, String> {
    FlowId::try_from(number).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_RULES: usize = 16;

    fn equipment() -> Equipment {
        Equipment {
            paths: PathSet::from_bits(0b1),
            adjacent: PathSet::from_bits(0b1),
            discovers: false,
            replicates: true,
            watches: true,
            peers: BTreeSet::from(["other".to_owned()]),
            max_rules: MAX_RULES,
            arrival_deadline: Duration::from_millis(200),
        }
    }

    fn policy(flow: &str, code: u8) -> String {
        format!(
            r#"{{ "flow": "{flow}", "epoch": 3, "code": {code}, "probes": 0, "probe_every": 0,
                  "reason": "configured", "decided_unix_ms": 0 }}"#
        )
    }

    fn send(flow: &str, number: u16, peer: &str, select: &str, code: u8) -> String {
        let policy = policy(flow, code);
        format!(
            r#"{{ "flow": "{flow}", "number": {number}, "peer": "{peer}", "select": {{ {select} }},
                  "policy": {policy} }}"#
        )
    }

    fn receive(flow: &str, number: u16, peer: &str) -> String {
        let policy = policy(flow, 0);
        format!(
            r#"{{ "flow": "{flow}", "number": {number}, "peer": "{peer}", "mode": "evidence", "pruning": {{}},
                  "paths": 1, "trigger": {{ "select": {{ "destination": "10.0.0.0/8" }} }}, "policy": {policy} }}"#
        )
    }

    fn assignment(sends: &[String], receives: &[String]) -> Assignment {
        let (sends, receives) = (sends.join(","), receives.join(","));
        let text = format!(
            r#"{{ "revision": 1, "report_every_ms": 5000, "reconnect_within_ms": 0, "signal_key": null,
                "keys": {{}}, "discovery": {{}}, "sends": [{sends}],
                  "receives": [{receives}] }}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn plan_of(assignment: &Assignment, equipment: &Equipment) -> Plan {
        let pairs = Pairs::new(
            None,
            equipment.peers.clone(),
            None,
            hawser_units::Instant::ZERO,
        );
        Plan::of(assignment, equipment, &pairs)
    }

    const ALL: &str = r#""destination": "203.0.113.0/24""#;

    #[test]
    fn flows_that_fit_are_carried_out_and_the_others_are_named() {
        let elsewhere = r#""destination": "10.0.0.0/8""#;
        let ports = r#""destination": "10.0.0.0/8", "destination_ports": [1, 2]"#;
        let sends = [
            send("good", 1, "other", ALL, 0b1),
            send("stranger", 2, "nobody", ALL, 0b1),
            send("twice", 1, "other", ALL, 0b1),
            send("far", 1024, "other", ALL, 0b1),
            send("portly", 3, "other", ports, 0b1),
            send(
                "nowhere",
                4,
                "other",
                r#""destination": "10.0.0.0/33""#,
                0b1,
            ),
            send("partly", 5, "other", elsewhere, 0b11),
        ];
        let receives = [receive("in", 7, "other"), receive("unknown", 8, "nobody")];
        let plan = plan_of(&assignment(&sends, &receives), &equipment());

        let sent: Vec<u16> = plan.sends.keys().map(|flow| (*flow).into()).collect();
        assert_eq!(sent, [1, 5]);
        let received: Vec<u16> = plan.receives.keys().map(|flow| (*flow).into()).collect();
        assert_eq!(received, [7]);
        assert_eq!(plan.watched.len(), 1);
        let why = |flow: &str| {
            let refused = plan.refused.iter().find(|(name, _)| name.as_str() == flow);
            refused
                .map(|(_, reason)| reason.as_str())
                .unwrap_or_default()
        };
        for (flow, reason) in [
            ("good", ""),
            ("stranger", "no [[peer]] is called \"nobody\""),
            ("twice", "has the number 1"),
            ("far", "must be below 1024"),
            ("portly", "ports need the protocol"),
            ("nowhere", "a prefix is an address"),
            (
                "partly",
                "this node has no path 2; the flow uses the other paths",
            ),
            ("in", ""),
            ("unknown", "no [[peer]] is called \"nobody\""),
        ] {
            assert!(
                why(flow).contains(reason) && why(flow).is_empty() == reason.is_empty(),
                "{flow}: {}",
                why(flow)
            );
        }
    }

    #[test]
    fn a_transparent_flow_is_refused_where_a_path_is_not_adjacent() {
        let parts = |paths: u8| {
            let mut assignment = assignment(
                &[send("out", 1, "other", ALL, 0b1)],
                &[receive("in", 7, "other")],
            );
            assignment.sends[0].transparent = Some(PathSet::from_bits(paths));
            assignment.receives[0].transparent = Some(assignment.sends[0].select.clone());
            assignment.receives[0].paths = PathSet::from_bits(paths);
            assignment
        };
        let equipment = Equipment {
            paths: PathSet::from_bits(0b11),
            adjacent: PathSet::from_bits(0b10),
            ..equipment()
        };
        let plan = plan_of(&parts(0b10), &equipment);
        assert_eq!((plan.sends.len(), plan.receives.len()), (1, 1));
        assert_eq!(plan.receive_selectors.len(), 1);
        let plan = plan_of(&parts(0b11), &equipment);
        assert!(plan.sends.is_empty() && plan.receives.is_empty());
        assert!(plan.receive_selectors.is_empty() && plan.send_selectors.is_empty());
        for (_, reason) in &plan.refused {
            assert!(reason.contains("path 1 is not"), "{reason}");
        }
    }

    #[test]
    fn a_flow_waits_for_a_path_that_the_controller_may_make() {
        let without_paths = Equipment {
            paths: PathSet::EMPTY,
            ..equipment()
        };
        let assigned = assignment(&[], &[receive("in", 7, "other")]);
        let plan = plan_of(&assigned, &without_paths);
        assert_eq!((plan.refused.len(), plan.waiting.len()), (1, 0));
        let discovering = Equipment {
            discovers: true,
            ..without_paths
        };
        let plan = plan_of(&assigned, &discovering);
        assert_eq!((plan.refused.len(), plan.receives.len()), (0, 0));
        assert_eq!(plan.waiting[0].1, "no path to other has been found yet");
    }

    #[test]
    fn a_node_without_source_interfaces_refuses_the_flow() {
        let bare = Equipment {
            replicates: false,
            watches: false,
            ..equipment()
        };
        let assigned = assignment(
            &[send("out", 1, "other", ALL, 0)],
            &[receive("in", 7, "other")],
        );
        let plan = plan_of(&assigned, &bare);
        assert!(plan.sends.is_empty() && plan.watched.is_empty());
        assert_eq!(plan.receives.len(), 1);
        let reasons: Vec<_> = plan.refused.iter().map(|(_, reason)| reason).collect();
        assert!(
            reasons[0].contains("neither transit nor local"),
            "{reasons:?}"
        );
        assert!(
            reasons[1].contains("watch names no interface"),
            "{reasons:?}"
        );
    }

    #[test]
    fn flows_beyond_the_rules_of_a_destination_are_refused() {
        let sends: Vec<_> = (0..20)
            .map(|number| send(&format!("f{number}"), number, "other", ALL, 0))
            .collect();
        let plan = plan_of(&assignment(&sends, &[]), &equipment());
        assert_eq!(plan.sends.len(), MAX_RULES);
        assert_eq!(plan.refused.len(), 20 - MAX_RULES);
        let (flow, reason) = &plan.refused[0];
        assert_eq!(flow.as_str(), "f19");
        assert!(
            reason.contains("share the destination 203.0.113.0/24"),
            "{reason}"
        );
        let rules = plan.send_selectors.values().next().unwrap();
        assert_eq!(rules.len(), MAX_RULES);
    }
}
