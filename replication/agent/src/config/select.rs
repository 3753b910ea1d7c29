use hawser_replication_bpf::{Ports, Prefix, Rule};
use hawser_units::FlowId;
use serde::Deserialize;
use std::ops::RangeInclusive;

/// The packets of a flow.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Selector {
    /// A prefix, such as `"203.0.113.0/24"`.
    destination: String,
    /// `"tcp"`, `"udp"`, `"icmp"`, `"icmpv6"` or a number. Default: any.
    protocol: Option<Protocol>,
    /// One port, or `[first, last]`. Default: any.
    source_ports: Option<PortRange>,
    /// One port, or `[first, last]`. Default: any.
    destination_ports: Option<PortRange>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a protocol is \"tcp\", \"udp\", \"icmp\", \"icmpv6\" or a number from 1 to 255"
)]
enum Protocol {
    Named(Named),
    Number(u8),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Named {
    Tcp,
    Udp,
    Icmp,
    Icmpv6,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "ports are one number, or [first, last]")]
enum PortRange {
    One(u16),
    Range([u16; 2]),
}

/// Converts a selector to its prefix and the rule for packets to that prefix.
pub(super) fn rule(flow: FlowId, selector: &Selector) -> Result<(Prefix, Rule), String> {
    let text = &selector.destination;
    let prefix: Prefix = text
        .parse()
        .map_err(|_| format!("destination {text:?} is not a prefix such as 203.0.113.0/24"))?;
    let protocol = selector.protocol.as_ref().map(number).transpose()?;
    let ports = match (&selector.source_ports, &selector.destination_ports) {
        (None, None) => None,
        (source, destination) => Some(Ports {
            source: range(source)?,
            destination: range(destination)?,
        }),
    };
    if ports.is_some() && !matches!(protocol, Some(6 | 17)) {
        return Err("ports need protocol = \"tcp\" or \"udp\"".to_owned());
    }
    let rule = Rule {
        flow,
        protocol,
        ports,
    };
    Ok((prefix, rule))
}

/// Returns the number of a protocol (IANA, "Protocol Numbers").
fn number(protocol: &Protocol) -> Result<u8, String> {
    match protocol {
        Protocol::Number(0) => {
            Err("0 is not an IP protocol; leave protocol out to select all".to_owned())
        }
        Protocol::Number(number) => Ok(*number),
        Protocol::Named(Named::Icmp) => Ok(1),
        Protocol::Named(Named::Tcp) => Ok(6),
        Protocol::Named(Named::Udp) => Ok(17),
        Protocol::Named(Named::Icmpv6) => Ok(58),
    }
}

fn range(ports: &Option<PortRange>) -> Result<RangeInclusive<u16>, String> {
    match ports {
        None => Ok(0..=u16::MAX),
        Some(PortRange::One(port)) => Ok(*port..=*port),
        Some(PortRange::Range([first, last])) if first <= last => Ok(*first..=*last),
        Some(PortRange::Range([first, last])) => Err(format!(
            "ports [{first}, {last}]: the first is above the last"
        )),
    }
}
