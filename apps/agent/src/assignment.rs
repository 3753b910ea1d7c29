//! Translates an assignment into the flows of this node, and lists the parts that this node cannot
//! carry out.

use crate::config::{Config, Peer};
use crate::flows::{Flows, Selectors, Sent, inherit};
use hawser_bpf::{MAX_RULES, Ports, Prefix, Rule, SendPolicy};
use hawser_control::Name;
use hawser_control::node::{Assignment, Receive, Send};
use hawser_control::resource::{self, Policy, Trigger};
use hawser_units::FlowId;
use std::collections::BTreeMap;

/// The protocols that have ports: TCP and UDP.
const PORT_PROTOCOLS: [u8; 2] = [6, 17];

/// The parts of an assignment that this node can carry out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// The flows, as the eBPF programs take them.
    pub(crate) flows: Flows,
    /// Received flows, by number.
    pub(crate) receives: BTreeMap<FlowId, Receive>,
    /// The triggers of the received flows whose viewers' requests are watched.
    pub(crate) watched: BTreeMap<FlowId, Trigger>,
    /// Selectors of these requests.
    pub(crate) watch_selectors: Selectors,
    /// The flows that this node cannot carry out or carries out in part, with the reason.
    pub(crate) refused: Vec<(Name, String)>,
}

impl Plan {
    /// Returns the plan for the parts of the assignment that this node can carry out.
    pub(crate) fn of(assignment: &Assignment, config: &Config) -> Self {
        let mut plan = Plan::default();
        for send in &assignment.sends {
            let added = plan.add_send(send, config);
            plan.record_outcome(&send.flow, added);
        }
        for receive in &assignment.receives {
            let added = plan.add_receive(receive, config);
            plan.record_outcome(&receive.flow, added);
            let watched = plan.add_watch(receive, config);
            plan.record_outcome(&receive.flow, watched);
        }
        plan.drop_excess_flows();
        plan
    }

    fn record_outcome(&mut self, flow: &Name, outcome: Result<(), String>) {
        self.refused
            .extend(outcome.err().map(|reason| (flow.clone(), reason)));
    }

    fn add_send(&mut self, send: &Send, config: &Config) -> Result<(), String> {
        let flow = number(send.number)?;
        if config.transit.is_empty() && config.local.is_empty() {
            return Err(
                "neither transit nor local names an interface to take packets from".to_owned(),
            );
        }
        if self.flows.send.contains_key(&flow) {
            return Err(format!(
                "another flow to be sent has the number {}",
                send.number
            ));
        }
        let peer = peer(&send.peer, config)?;
        let (prefix, rule) = rule(flow, &send.select)?;
        self.flows
            .send_selectors
            .entry(prefix)
            .or_default()
            .push(rule);
        let sent = Sent {
            name: Some(send.flow.clone()),
            label: flow,
            policy: send_policy(&send.policy),
            transparent: false,
            key: peer.sealed.clone(),
        };
        self.flows.send.insert(flow, sent);
        missing_paths(&send.policy, config)
    }

    fn add_receive(&mut self, receive: &Receive, config: &Config) -> Result<(), String> {
        let flow = number(receive.number)?;
        if config.paths.is_empty() {
            return Err("this node has no paths on which copies could arrive".to_owned());
        }
        if self.receives.contains_key(&flow) {
            return Err(format!(
                "another flow to be received has the number {}",
                receive.number
            ));
        }
        let peer = peer(&receive.peer, config)?;
        self.flows.receive.insert(flow, peer.accepted.clone());
        self.receives.insert(flow, receive.clone());
        Ok(())
    }

    fn add_watch(&mut self, receive: &Receive, config: &Config) -> Result<(), String> {
        let Some(trigger) = &receive.trigger else {
            return Ok(());
        };
        let flow = number(receive.number)?;
        if self
            .receives
            .get(&flow)
            .is_none_or(|known| known.flow != receive.flow)
        {
            return Ok(());
        }
        if config.watch.is_empty() {
            return Err(
                "its viewer's requests cannot be watched: watch names no interface".to_owned(),
            );
        }
        let (prefix, rule) = rule(flow, &trigger.select)?;
        self.watch_selectors.entry(prefix).or_default().push(rule);
        self.watched.insert(flow, trigger.clone());
        Ok(())
    }

    /// Removes flows until no destination has more of them than the kernel checks. Flows with high
    /// numbers are removed first.
    fn drop_excess_flows(&mut self) {
        let too_many =
            |prefix: Prefix| format!("more than {MAX_RULES} flows share the destination {prefix}");
        while let Err(excess) = inherit(&self.flows.send_selectors) {
            let Some(flow) = excess.flows.into_iter().max() else {
                break;
            };
            remove(&mut self.flows.send_selectors, flow);
            let name = self.flows.send.remove(&flow).and_then(|sent| sent.name);
            self.refused
                .extend(name.map(|name| (name, too_many(excess.prefix))));
        }
        while let Err(excess) = inherit(&self.watch_selectors) {
            let Some(flow) = excess.flows.into_iter().max() else {
                break;
            };
            remove(&mut self.watch_selectors, flow);
            self.watched.remove(&flow);
            let name = self.receives.get(&flow).map(|receive| receive.flow.clone());
            self.refused
                .extend(name.map(|name| (name, too_many(excess.prefix))));
        }
        for selectors in [&mut self.flows.send_selectors, &mut self.watch_selectors] {
            *selectors = inherit(selectors).unwrap_or_default();
        }
    }
}

/// Converts a policy to the form that the eBPF programs take.
pub(crate) fn send_policy(policy: &Policy) -> SendPolicy {
    SendPolicy {
        code: policy.code,
        probes: policy.probes,
        probe_every: policy.probe_every,
        epoch: policy.epoch,
    }
}

/// Returns an error if the policy names paths that this node does not have. The flow uses the other
/// paths.
pub(crate) fn missing_paths(policy: &Policy, config: &Config) -> Result<(), String> {
    let missing = (policy.code.paths().union(policy.probes).iter())
        .filter(|path| !config.paths.contains_key(path));
    let missing: Vec<_> = missing.map(|path| path.to_string()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "this node has no {}; the flow uses the other paths",
        missing.join(", ")
    ))
}

fn number(number: u16) -> Result<FlowId, String> {
    FlowId::try_from(number).map_err(|error| error.to_string())
}

fn peer<'c>(name: &Name, config: &'c Config) -> Result<&'c Peer, String> {
    config.peers.get(name.as_str()).ok_or_else(|| {
        format!(
            "no [[peer]] is called {:?}: add one with the key that both nodes share",
            name.as_str()
        )
    })
}

fn rule(flow: FlowId, select: &resource::Selector) -> Result<(Prefix, Rule), String> {
    let prefix = select
        .destination
        .parse()
        .map_err(|error| format!("{:?}: {error}", select.destination))?;
    let range = |ports: Option<(u16, u16)>| {
        let (first, last) = ports.unwrap_or((0, u16::MAX));
        if first <= last {
            Ok(first..=last)
        } else {
            Err(format!("the port range {first} to {last} is empty"))
        }
    };
    let ports = match (select.source_ports, select.destination_ports) {
        (None, None) => None,
        (source, destination) => Some(Ports {
            source: range(source)?,
            destination: range(destination)?,
        }),
    };
    if ports.is_some()
        && !select
            .protocol
            .is_some_and(|protocol| PORT_PROTOCOLS.contains(&protocol))
    {
        return Err("ports need the protocol to be 6 (TCP) or 17 (UDP)".to_owned());
    }
    if select.protocol == Some(0) {
        return Err("0 is not an IP protocol; leave protocol out to select all".to_owned());
    }
    Ok((
        prefix,
        Rule {
            flow,
            protocol: select.protocol,
            ports,
        },
    ))
}

fn remove(selectors: &mut Selectors, flow: FlowId) {
    selectors
        .values_mut()
        .for_each(|rules| rules.retain(|rule| rule.flow != flow));
    selectors.retain(|_, rules| !rules.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const NODE: &str = r#"
[node]
name = "edge"
transit = ["lan0"]
watch = ["lan0"]

[[peer]]
name = "other"
authenticate = false

[[path]]
number = 1
interface = "wan1"
local = "192.0.2.1"
remote = "192.0.2.2"

[controller]
urls = ["https://192.0.2.9:14750"]
"#;

    fn config(text: &str) -> Config {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("edge.toml");
        std::fs::write(&file, text).unwrap();
        Config::read(Path::new(&file)).unwrap()
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
            r#"{{ "revision": 1, "report_every_ms": 5000, "signal_key": null, "sends": [{sends}],
                  "receives": [{receives}] }}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    const ALL: &str = r#""destination": "203.0.113.0/24""#;

    #[test]
    fn what_fits_is_taken_and_the_rest_is_named() {
        let sends = [
            send("good", 1, "other", ALL, 0b1),
            send("stranger", 2, "nobody", ALL, 0b1),
            send("twice", 1, "other", ALL, 0b1),
            send("far", 1024, "other", ALL, 0b1),
            send(
                "portly",
                3,
                "other",
                r#""destination": "10.0.0.0/8", "destination_ports": [1, 2]"#,
                0b1,
            ),
            send(
                "nowhere",
                4,
                "other",
                r#""destination": "10.0.0.0/33""#,
                0b1,
            ),
            send("partly", 5, "other", r#""destination": "10.0.0.0/8""#, 0b11),
        ];
        let receives = [receive("in", 7, "other"), receive("unknown", 8, "nobody")];
        let plan = Plan::of(&assignment(&sends, &receives), &config(NODE));

        let sent: Vec<u16> = plan.flows.send.keys().map(|flow| (*flow).into()).collect();
        assert_eq!(sent, [1, 5]);
        let received: Vec<u16> = plan
            .flows
            .receive
            .keys()
            .map(|flow| (*flow).into())
            .collect();
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
    fn a_node_without_interfaces_to_take_packets_from_says_so() {
        let bare = NODE.replace("transit = [\"lan0\"]\nwatch = [\"lan0\"]\n", "");
        let assigned = assignment(
            &[send("out", 1, "other", ALL, 0)],
            &[receive("in", 7, "other")],
        );
        let plan = Plan::of(&assigned, &config(&bare));
        assert!(plan.flows.send.is_empty() && plan.watched.is_empty());
        assert_eq!(plan.receives.len(), 1);
        assert!(
            plan.refused[0].1.contains("neither transit nor local"),
            "{:?}",
            plan.refused
        );
        assert!(
            plan.refused[1].1.contains("watch names no interface"),
            "{:?}",
            plan.refused
        );
    }

    #[test]
    fn flows_beyond_what_the_kernel_looks_at_for_a_destination_are_refused() {
        let sends: Vec<_> = (0..20)
            .map(|number| send(&format!("f{number}"), number, "other", ALL, 0))
            .collect();
        let plan = Plan::of(&assignment(&sends, &[]), &config(NODE));
        assert_eq!(plan.flows.send.len(), MAX_RULES);
        assert_eq!(plan.refused.len(), 20 - MAX_RULES);
        assert!(
            plan.refused[0]
                .1
                .contains("share the destination 203.0.113.0/24"),
            "{:?}",
            plan.refused
        );
        assert_eq!(
            plan.flows.send_selectors.values().next().unwrap().len(),
            MAX_RULES
        );
    }
}
