//! The rules that map packets to flows.

use hawser_experience::Packet;
use hawser_model::resource::Selector;
use hawser_units::{FlowId, Ports, Prefix, Rule};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The protocols that have ports: TCP and UDP.
const PORT_PROTOCOLS: [u8; 2] = [6, 17];

/// The rules that map packets to flows, by destination.
pub type Selectors = BTreeMap<Prefix, Vec<Rule>>;

/// The error of a destination with more flows than the kernel checks for a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooManyFlows {
    /// The destination.
    pub prefix: Prefix,
    /// The flows that packets to it may belong to.
    pub flows: Vec<FlowId>,
}

/// Adds to each prefix the rules of the prefixes that contain it, because the kernel looks up the
/// longest prefix only.
///
/// # Errors
/// Returns the first prefix with more than `max_rules` rules.
pub fn inherit(selectors: &Selectors, max_rules: usize) -> Result<Selectors, TooManyFlows> {
    let mut inherited = Selectors::new();
    for (prefix, own) in selectors {
        let mut wider: Vec<_> = selectors
            .iter()
            .filter(|(other, _)| *other != prefix && other.contains(*prefix))
            .collect();
        wider.sort_by_key(|(other, _)| Reverse(other.bits()));
        let wider = wider.into_iter().flat_map(|(_, rules)| rules);
        let rules: Vec<Rule> = own.iter().chain(wider).cloned().collect();
        if rules.len() > max_rules {
            return Err(TooManyFlows {
                prefix: *prefix,
                flows: rules.iter().map(|rule| rule.flow).collect(),
            });
        }
        inherited.insert(*prefix, rules);
    }
    Ok(inherited)
}

/// Returns the flow that a packet belongs to: that of the first rule that matches it, from the longest
/// prefix to the shortest.
pub fn flow_of(selectors: &Selectors, packet: &Packet) -> Option<FlowId> {
    let destination = Prefix::host(packet.destination.ip());
    let (source, to) = (packet.source.port(), packet.destination.port());
    let matches = |rule: &&Rule| {
        let protocol = packet.protocol.number();
        rule.protocol.is_none_or(|wanted| wanted == protocol)
            && (rule.ports.as_ref()).is_none_or(|ports| {
                ports.source.contains(&source) && ports.destination.contains(&to)
            })
    };
    let rules = selectors
        .iter()
        .filter(|(prefix, _)| prefix.contains(destination));
    let mut rules: Vec<_> = rules.collect();
    rules.sort_by_key(|(prefix, _)| Reverse(prefix.bits()));
    let mut rules = rules.into_iter().flat_map(|(_, rules)| rules);
    rules.find(matches).map(|rule| rule.flow)
}

/// Converts a selector to its prefix and the rule for packets to that prefix. The error says how to
/// fix the selector.
pub(crate) fn rule(flow: FlowId, select: &Selector) -> Result<(Prefix, Rule), String> {
    let prefix = (select.destination.parse())
        .map_err(|error| format!("{:?}: {error}", select.destination))?;
    let ports = ports(select)?;
    let has_ports = |protocol| PORT_PROTOCOLS.contains(&protocol);
    if ports.is_some() && !select.protocol.is_some_and(has_ports) {
        return Err("ports need the protocol to be 6 (TCP) or 17 (UDP)".to_owned());
    }
    if select.protocol == Some(0) {
        return Err("0 is not an IP protocol; leave protocol out to select all".to_owned());
    }
    let rule = Rule {
        flow,
        protocol: select.protocol,
        ports,
    };
    Ok((prefix, rule))
}

/// Removes the rules of a flow.
pub(crate) fn remove(selectors: &mut Selectors, flow: FlowId) {
    selectors.retain(|_, rules| {
        rules.retain(|rule| rule.flow != flow);
        !rules.is_empty()
    });
}

fn ports(select: &Selector) -> Result<Option<Ports>, String> {
    match (select.source_ports, select.destination_ports) {
        (None, None) => Ok(None),
        (source, destination) => Ok(Some(Ports {
            source: range(source)?,
            destination: range(destination)?,
        })),
    }
}

fn range(ports: Option<(u16, u16)>) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = ports.unwrap_or((0, u16::MAX));
    if first <= last {
        Ok(first..=last)
    } else {
        Err(format!("the port range {first} to {last} is empty"))
    }
}
