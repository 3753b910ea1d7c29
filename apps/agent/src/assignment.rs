//! What an assignment means for this node: the flows in its own terms, and what does not fit.

use crate::config::{Config, Peer};
use crate::flows::{Flows, Selectors, Sent, inherit};
use hawser_bpf::{MAX_RULES, Ports, Prefix, Rule, SendPolicy};
use hawser_control::Name;
use hawser_control::node::{Assignment, Receive, Send};
use hawser_control::resource::{self, Policy, Trigger};
use hawser_units::{FlowId, PathSet, PolicyCode};
use std::collections::BTreeMap;

/// TCP and UDP, which have ports.
const WITH_PORTS: [u8; 2] = [6, 17];

/// An assignment as far as this node can do it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// For the programs.
    pub(crate) flows: Flows,
    /// The flows that are received, by their number.
    pub(crate) receives: BTreeMap<FlowId, Receive>,
    /// The viewers' requests of which of them are watched, and how.
    pub(crate) watched: BTreeMap<FlowId, Trigger>,
    /// Which packets these requests are.
    pub(crate) watch_selectors: Selectors,
    /// What is not done, by flow, and why.
    pub(crate) refused: Vec<(Name, String)>,
}

impl Plan {
    /// What this node can do of the assignment.
    pub(crate) fn of(assignment: &Assignment, config: &Config) -> Self {
        let mut plan = Plan::default();
        for send in &assignment.sends {
            let added = plan.add_send(send, config);
            plan.note(&send.flow, added);
        }
        for receive in &assignment.receives {
            let added = plan.add_receive(receive, config);
            plan.note(&receive.flow, added);
            let watched = plan.add_watch(receive, config);
            plan.note(&receive.flow, watched);
        }
        plan.thin_out();
        plan
    }

    fn note(&mut self, flow: &Name, outcome: Result<(), String>) {
        self.refused.extend(outcome.err().map(|reason| (flow.clone(), reason)));
    }

    fn add_send(&mut self, send: &Send, config: &Config) -> Result<(), String> {
        let flow = number(send.number)?;
        if config.transit.is_empty() && config.local.is_empty() {
            return Err("neither transit nor local names an interface to take packets from".to_owned());
        }
        if self.flows.send.contains_key(&flow) {
            return Err(format!("another flow to be sent has the number {}", send.number));
        }
        let peer = peer(&send.peer, config)?;
        let (prefix, rule) = rule(flow, &send.select)?;
        self.flows.send_selectors.entry(prefix).or_default().push(rule);
        let sent = Sent {
            name: Some(send.flow.clone()),
            label: flow,
            policy: send_policy(&send.policy),
            transparent: false,
            key: peer.key.clone(),
        };
        self.flows.send.insert(flow, sent);
        missing_paths(&send.policy, config)
    }

    fn add_receive(&mut self, receive: &Receive, config: &Config) -> Result<(), String> {
        let flow = number(receive.number)?;
        if config.paths.is_empty() {
            return Err("copies arrive by paths, and this node has none".to_owned());
        }
        if self.receives.contains_key(&flow) {
            return Err(format!("another flow to be received has the number {}", receive.number));
        }
        let peer = peer(&receive.peer, config)?;
        self.flows.receive.insert(flow, peer.ring.clone());
        self.receives.insert(flow, receive.clone());
        Ok(())
    }

    fn add_watch(&mut self, receive: &Receive, config: &Config) -> Result<(), String> {
        let Some(trigger) = &receive.trigger else { return Ok(()) };
        let flow = number(receive.number)?;
        if self.receives.get(&flow).is_none_or(|known| known.flow != receive.flow) {
            return Ok(());
        }
        if config.watch.is_empty() {
            return Err("its viewer's requests are to be watched, and watch names no interface".to_owned());
        }
        let (prefix, rule) = rule(flow, &trigger.select)?;
        self.watch_selectors.entry(prefix).or_default().push(rule);
        self.watched.insert(flow, trigger.clone());
        Ok(())
    }

    /// Takes flows out until no destination has more of them than the kernel looks at, those with high numbers first.
    fn thin_out(&mut self) {
        let too_many = |prefix: Prefix| format!("more than {MAX_RULES} flows share the destination {prefix}");
        while let Err(crowded) = inherit(&self.flows.send_selectors) {
            let Some(flow) = crowded.flows.into_iter().max() else { break };
            remove(&mut self.flows.send_selectors, flow);
            let name = self.flows.send.remove(&flow).and_then(|sent| sent.name);
            self.refused.extend(name.map(|name| (name, too_many(crowded.prefix))));
        }
        while let Err(crowded) = inherit(&self.watch_selectors) {
            let Some(flow) = crowded.flows.into_iter().max() else { break };
            remove(&mut self.watch_selectors, flow);
            self.watched.remove(&flow);
            let name = self.receives.get(&flow).map(|receive| receive.flow.clone());
            self.refused.extend(name.map(|name| (name, too_many(crowded.prefix))));
        }
        for selectors in [&mut self.flows.send_selectors, &mut self.watch_selectors] {
            *selectors = inherit(selectors).unwrap_or_default();
        }
    }
}

/// The policy as the programs take it.
pub(crate) fn send_policy(policy: &Policy) -> SendPolicy {
    SendPolicy {
        code: PolicyCode(policy.code),
        probes: PathSet::from_bits(policy.probes),
        probe_every: policy.probe_every,
        epoch: policy.epoch,
    }
}

/// An error when the policy names paths that this node does not have; it takes those that there are.
pub(crate) fn missing_paths(policy: &Policy, config: &Config) -> Result<(), String> {
    let named = PolicyCode(policy.code).paths().bits() | policy.probes;
    let missing = PathSet::from_bits(named).iter().filter(|path| !config.paths.contains_key(path));
    let missing: Vec<_> = missing.map(|path| path.to_string()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("this node has no {}; the flow takes the others", missing.join(", ")))
}

fn number(number: u16) -> Result<FlowId, String> {
    FlowId::try_from(number).map_err(|error| error.to_string())
}

fn peer<'c>(name: &Name, config: &'c Config) -> Result<&'c Peer, String> {
    config.peers.get(name.as_str()).ok_or_else(|| {
        format!("no [[peer]] is called {:?}: it takes a key that both nodes share", name.as_str())
    })
}

fn rule(flow: FlowId, select: &resource::Selector) -> Result<(Prefix, Rule), String> {
    let prefix = select.destination.parse().map_err(|error| format!("{:?}: {error}", select.destination))?;
    let range = |ports: Option<(u16, u16)>| {
        let (first, last) = ports.unwrap_or((0, u16::MAX));
        if first <= last { Ok(first..=last) } else { Err(format!("ports {first} to {last} are none")) }
    };
    let ports = match (select.source_ports, select.destination_ports) {
        (None, None) => None,
        (source, destination) => Some(Ports { source: range(source)?, destination: range(destination)? }),
    };
    if ports.is_some() && !select.protocol.is_some_and(|protocol| WITH_PORTS.contains(&protocol)) {
        return Err("ports need the protocol to be 6 (TCP) or 17 (UDP)".to_owned());
    }
    if select.protocol == Some(0) {
        return Err("protocol 0 is no IP protocol; leave it out for all".to_owned());
    }
    Ok((prefix, Rule { flow, protocol: select.protocol, ports }))
}

fn remove(selectors: &mut Selectors, flow: FlowId) {
    selectors.values_mut().for_each(|rules| rules.retain(|rule| rule.flow != flow));
    selectors.retain(|_, rules| !rules.is_empty());
}
