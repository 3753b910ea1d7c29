//! Validation of requests of operators and nodes.

use hawser_model::at_most_one_of_each_family;
use hawser_model::discovery::{Discovery, Uplink};
use hawser_model::node::{Registration, Report};
use hawser_model::pair::NodeKeys;
use hawser_model::resource::{Flow, Mode, Pruning, Selector, Trigger};
use hawser_model::track::Track;
use hawser_model::tunnel::{ClientReport, RefusedSettings, ServerReport};
use hawser_units::Prefix;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The maximum number of paths in a policy: all eight bits are the code that stops a flow.
const MAX_PATHS: usize = 7;

/// The maximum size of a description, bytes.
const MAX_DESCRIPTION_BYTES: usize = 1024;

/// Checks the description of a tenant or a node.
pub(crate) fn description(text: &str) -> Result<(), String> {
    if text.len() > MAX_DESCRIPTION_BYTES {
        return Err(format!(
            "the description has more than {MAX_DESCRIPTION_BYTES} bytes"
        ));
    }
    Ok(())
}

/// Checks a flow. The error says what is wrong and what would be valid.
pub(crate) fn flow(flow: &Flow) -> Result<(), String> {
    if flow.ingress == flow.egress {
        return Err("`ingress` and `egress` must be two different nodes".into());
    }
    selector("select", &flow.select)?;
    if flow.paths.len() > MAX_PATHS || !are_paths(flow.paths.iter().copied()) {
        return Err("`paths` must be up to seven different numbers from 1 to 8".into());
    }
    if let Some(given) = &flow.trigger {
        trigger(given)?;
    }
    if flow.transparent {
        transparent(flow)?;
    }
    pruning(&flow.pruning)
}

/// Checks a flow whose copies are sent as they are.
fn transparent(flow: &Flow) -> Result<(), String> {
    if !prefix(&flow.select.destination)?.address().is_ipv4() {
        return Err(
            "`transparent` needs an IPv4 destination: copies of IPv6 packets cannot be identified"
                .into(),
        );
    }
    if matches!(flow.mode, Mode::Auto | Mode::Evidence) {
        return Err(
            "`transparent` does not go with the modes `auto` and `evidence`, which probe paths with numbered copies; use `successive`"
                .into(),
        );
    }
    Ok(())
}

/// Checks a track.
pub(crate) fn track(track: &Track) -> Result<(), String> {
    if !(1..=Track::MAX_WRITERS).contains(&track.writers.len()) {
        return Err(format!(
            "`writers` must be 1 to {} nodes",
            Track::MAX_WRITERS
        ));
    }
    if track.readers.len() > Track::MAX_READERS {
        return Err(format!(
            "`readers` must be at most {} nodes",
            Track::MAX_READERS
        ));
    }
    if track.relays.len() > Track::MAX_RELAYS {
        return Err(format!(
            "`relays` must be at most {} nodes",
            Track::MAX_RELAYS
        ));
    }
    let mut known = BTreeSet::new();
    match track.members().find(|node| !known.insert(*node)) {
        Some(twice) => Err(format!(
            "{twice} is named twice; a writer may also watch and relay, and a reader may relay"
        )),
        None => Ok(()),
    }
}

fn trigger(trigger: &Trigger) -> Result<(), String> {
    selector("trigger.select", &trigger.select)?;
    if trigger.request_bytes.0 > trigger.request_bytes.1 {
        return Err("trigger.request_bytes: the smallest size is above the largest".into());
    }
    if trigger.late_after_ms == 0 || trigger.consecutive == 0 {
        return Err("trigger.late_after_ms and trigger.consecutive must be at least 1".into());
    }
    Ok(())
}

fn pruning(pruning: &Pruning) -> Result<(), String> {
    let is_at_least =
        |value: Option<f64>, min: f64| value.is_none_or(|value| value >= min && value.is_finite());
    if !is_at_least(pruning.tolerance_ms, 0.0) {
        return Err("pruning.tolerance_ms must not be below 0".into());
    }
    if pruning.window_packets == Some(0) {
        return Err("pruning.window_packets must be at least 1".into());
    }
    if !is_at_least(pruning.budget_ratio, 1.0) {
        return Err("pruning.budget_ratio must be at least 1, for the packet itself".into());
    }
    match pruning.tolerated_damage_ratio {
        Some(ratio) if !(0.0..=1.0).contains(&ratio) => {
            Err("pruning.tolerated_damage_ratio must be 0 to 1".into())
        }
        _ => Ok(()),
    }
}

fn selector(key: &str, selector: &Selector) -> Result<(), String> {
    prefix(&selector.destination).map_err(|error| format!("{key}.destination: {error}"))?;
    if selector.protocol == Some(0) {
        return Err(format!(
            "{key}.protocol: 0 is not an IP protocol; leave it out to select all"
        ));
    }
    let ports = [selector.source_ports, selector.destination_ports];
    if ports.iter().flatten().any(|(first, last)| first > last) {
        return Err(format!("{key}: the first port is above the last"));
    }
    if ports.iter().any(Option::is_some) && !matches!(selector.protocol, Some(TCP | UDP)) {
        return Err(format!("{key}: ports need `protocol` {TCP} or {UDP}"));
    }
    Ok(())
}

/// Parses a prefix without bits beyond its length, which would suggest that it selects less than it
/// does.
fn prefix(text: &str) -> Result<Prefix, String> {
    let parse = || {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        // Only plain decimal digits: neither a sign nor leading zeros.
        let bits: u8 = bits
            .parse()
            .ok()
            .filter(|number: &u8| number.to_string() == bits)?;
        Some((address, Prefix::new(address, bits)?))
    };
    match parse() {
        None => Err(format!("{text:?} is not a prefix such as 203.0.113.0/24")),
        Some((address, prefix)) if prefix.address() != address => Err(format!(
            "{text:?} has bits beyond its length; write \"{prefix}\", or \"{}\" for this address alone",
            Prefix::host(address)
        )),
        Some((_, prefix)) => Ok(prefix),
    }
}

/// Returns whether two selectors have the same destination and some packets in common. Of
/// destinations of different lengths, the longest takes a packet.
pub(crate) fn overlap(one: &Selector, other: &Selector) -> bool {
    let destination = |selector: &Selector| selector.destination.parse::<Prefix>().ok();
    let any = (0, u16::MAX);
    let meet = |one: Option<(u16, u16)>, other: Option<(u16, u16)>| {
        let ((first, last), (other_first, other_last)) = (one.unwrap_or(any), other.unwrap_or(any));
        first <= other_last && other_first <= last
    };
    destination(one).is_some()
        && destination(one) == destination(other)
        && (one.protocol.is_none() || other.protocol.is_none() || one.protocol == other.protocol)
        && meet(one.source_ports, other.source_ports)
        && meet(one.destination_ports, other.destination_ports)
}

/// Checks a registration.
pub(crate) fn registration(registration: &Registration) -> Result<(), String> {
    if registration.version.len() > 64 {
        return Err("`version` has more than 64 bytes".into());
    }
    uplinks(&registration.uplinks)?;
    let interfaces = registration.paths.iter().map(|path| &path.interface);
    let of_uplinks = registration.uplinks.iter().map(|uplink| &uplink.interface);
    let interfaces = interfaces.chain(of_uplinks);
    if interfaces
        .clone()
        .chain([&registration.version])
        .any(|text| text.contains(char::is_control))
    {
        return Err("`version` and `interface` must not have control characters".into());
    }
    if registration.signals.is_some_and(|to| !is_unicast(to.ip())) {
        return Err("`signals` must be the address of one interface of the node".into());
    }
    if !are_paths(registration.paths.iter().map(|path| path.number)) {
        return Err("`paths` must have different numbers from 1 to 8".into());
    }
    if interfaces
        .clone()
        .any(|interface| interface.is_empty() || interface.len() > 15)
    {
        return Err("`interface` must have 1 to 15 bytes".into());
    }
    let authorities = &registration.authorities;
    if authorities.len() > Registration::MAX_AUTHORITIES
        || !authorities.iter().all(|digest| is_hex_of_32(digest))
    {
        let max = Registration::MAX_AUTHORITIES;
        return Err(format!(
            "`authorities` must be at most {max}, of 64 hexadecimal digits each"
        ));
    }
    Ok(())
}

/// Checks the uplinks of a node.
fn uplinks(uplinks: &[Uplink]) -> Result<(), String> {
    let place = |uplink: &Uplink| (uplink.interface.clone(), uplink.address.is_ipv4());
    let places: BTreeSet<_> = uplinks.iter().map(place).collect();
    if uplinks.len() > Uplink::MAX || places.len() < uplinks.len() {
        return Err(format!(
            "`uplinks` must be at most {}, one of each IP version for an interface",
            Uplink::MAX
        ));
    }
    if !uplinks.iter().all(|uplink| is_unicast(uplink.address)) {
        return Err("`uplinks.address` must be the address of one interface of the node".into());
    }
    Ok(())
}

/// Returns whether an address can be that of one interface of another machine. Loopback addresses are: nodes may run on the
/// controller's machine.
fn is_unicast(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || is_broadcast)
}

/// Returns whether a text is 32 bytes in hexadecimal digits.
fn is_hex_of_32(digits: &str) -> bool {
    digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Checks a report, except whether the node may report about its flows.
pub(crate) fn report(report: &Report) -> Result<(), String> {
    if !are_paths(report.paths.iter().map(|path| path.number)) {
        return Err("`paths` must have different numbers from 1 to 8".into());
    }
    is_at_most("sends", report.sends.len(), Report::MAX_FLOWS)?;
    is_at_most("receives", report.receives.len(), Report::MAX_FLOWS)?;
    is_at_most("reached", report.reached.len(), Discovery::MAX_CANDIDATES)?;
    let observations = report.observations.len();
    is_at_most("observations", observations, Report::MAX_OBSERVATIONS)?;
    if !report
        .receives
        .iter()
        .all(|flow| are_paths(flow.paths.iter().map(|path| path.number)))
    {
        return Err("`receives.paths` must have different numbers from 1 to 8".into());
    }
    Ok(())
}

/// Checks the length of a list in a report.
fn is_at_most(key: &str, count: usize, max: usize) -> Result<(), String> {
    if count > max {
        return Err(format!(
            "`{key}` has more than {max} elements; send several reports"
        ));
    }
    Ok(())
}

/// Checks a node's statement about its keys.
pub(crate) fn node_keys(stated: &NodeKeys) -> Result<(), String> {
    if !(1..=NodeKeys::MAX_KEYS).contains(&stated.keys.len()) {
        return Err("`keys` must be one key, or two while it is replaced".into());
    }
    if !stated.keys.iter().all(|key| is_hex_of_32(&key.public)) {
        return Err("`keys.public` must have 64 hexadecimal digits".into());
    }
    let generations: Vec<u64> = stated.keys.iter().map(|key| key.generation).collect();
    let is_next = |pair: &[u64]| pair[0] < pair[1] && pair[0] % 2 != pair[1] % 2;
    if !generations.windows(2).all(is_next) {
        return Err(
            "`keys.generation` must grow, and change between even and odd, from key to key".into(),
        );
    }
    let nodes: BTreeSet<_> = stated.pairs.iter().map(|pair| &pair.node).collect();
    if stated.pairs.len() > NodeKeys::MAX_PAIRS || nodes.len() < stated.pairs.len() {
        let max = NodeKeys::MAX_PAIRS;
        return Err(format!(
            "`pairs` must be at most {max}, each with another node"
        ));
    }
    if stated.pairs.iter().any(|pair| pair.accepts.len() > 2) {
        return Err("`pairs.accepts` must be at most two keys".into());
    }
    Ok(())
}

/// Checks a tunnel server's report.
pub(crate) fn tunnel_server(server: &ServerReport) -> Result<(), String> {
    let are_ipv4 = server.addresses.iter().map(SocketAddr::is_ipv4);
    if server.addresses.is_empty() || !at_most_one_of_each_family(are_ipv4) {
        return Err(
            "`addresses` must have one `address:port`, or one of IPv4 and one of IPv6".into(),
        );
    }
    Ok(())
}

/// Checks a tunnel client's report.
pub(crate) fn tunnel_client(client: &ClientReport) -> Result<(), String> {
    let max = RefusedSettings::MAX_REASON_BYTES;
    let refused = client.refused.as_ref();
    if refused.is_some_and(|refused| refused.reason.len() > max) {
        return Err(format!("`refused.reason` has more than {max} bytes"));
    }
    Ok(())
}

/// Returns whether all numbers are valid path numbers, without duplicates.
fn are_paths(mut numbers: impl Iterator<Item = u8>) -> bool {
    let mut seen = 0u16;
    numbers.all(|number| {
        let bit = 1u16.checked_shl(number.into()).unwrap_or(0);
        let is_new = (1..=8).contains(&number) && seen & bit == 0;
        seen |= bit;
        is_new
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn flow_with(change: impl FnOnce(&mut Value)) -> Result<(), String> {
        let mut text = json!({ "name": "stage", "tenant": "acme", "ingress": "edge-1", "egress": "edge-2", "mode": "evidence",
            "select": { "destination": "203.0.113.0/24", "protocol": 6, "destination_ports": [443, 443] } });
        change(&mut text);
        flow(&serde_json::from_value(text).unwrap())
    }

    #[test]
    fn selectors_overlap_if_one_packet_matches_both() {
        let select = |text: Value| serde_json::from_value::<Selector>(text).unwrap();
        let udp = |first: u16, last: u16| {
            select(
                json!({ "destination": "203.0.113.0/24", "protocol": 17, "destination_ports": [first, last] }),
            )
        };
        let all = select(json!({ "destination": "203.0.113.0/24" }));
        let tcp = select(json!({ "destination": "203.0.113.0/24", "protocol": 6 }));
        let longer = select(json!({ "destination": "203.0.113.0/25" }));
        assert!(
            overlap(&all, &all) && overlap(&all, &udp(1, 2)) && overlap(&udp(1, 2), &udp(2, 3))
        );
        assert!(!overlap(&udp(1, 2), &udp(3, 4)) && !overlap(&tcp, &udp(1, 2)));
        assert!(!overlap(&all, &longer), "the longest prefix takes a packet");
    }

    #[test]
    fn a_node_registers_no_control_characters_or_multicast() {
        let with = |version: &str, interface: &str, signals: &str| {
            registration(
                &serde_json::from_value(json!({ "version": version, "signals": signals, "paths": [
                    { "number": 1, "interface": interface, "local": "192.0.2.1", "remote": "192.0.2.2" }] }))
                .unwrap(),
            )
        };
        with("1", "eth0", "192.0.2.1:9").unwrap();
        for (wrong, key) in [
            (with("1\x1b[2K", "eth0", "192.0.2.1:9"), "version"),
            (with("1", "eth\n0", "192.0.2.1:9"), "interface"),
            (with("1", "eth0", "224.0.0.1:9"), "signals"),
            (with("1", "eth0", "255.255.255.255:9"), "signals"),
            (with("1", "eth0", "[::]:9"), "signals"),
        ] {
            assert!(wrong.unwrap_err().contains(key));
        }
    }

    #[test]
    fn an_invalid_flow_is_rejected_with_the_key() {
        flow_with(|_| ()).unwrap();
        let ipv6 = flow_with(|text| {
            text["transparent"] = true.into();
            text["select"]["destination"] = "2001:db8::/32".into();
        });
        assert!(ipv6.unwrap_err().contains("IPv4 destination"));
        for (pointer, value, word) in [
            ("/egress", json!("edge-1"), "egress"),
            (
                "/select/destination",
                json!("203.0.113.0"),
                "select.destination",
            ),
            (
                "/select/destination",
                json!("203.0.113.0/33"),
                "select.destination",
            ),
            (
                "/select/destination",
                json!("203.0.113.5/24"),
                "write \"203.0.113.0/24\", or \"203.0.113.5/32\"",
            ),
            ("/select/protocol", json!(1), "ports need"),
            ("/select/destination_ports", json!([2, 1]), "first port"),
        ] {
            let error = flow_with(|text| *text.pointer_mut(pointer).unwrap() = value).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        for (key, value, word) in [
            ("transparent", json!(true), "modes `auto` and `evidence`"),
            ("paths", json!([1, 1]), "paths"),
            ("paths", json!([0]), "paths"),
            ("paths", json!([1, 2, 3, 4, 5, 6, 7, 8]), "paths"),
            ("pruning", json!({ "budget_ratio": 0.5 }), "budget_ratio"),
            (
                "trigger",
                json!({ "select": { "destination": "::/0" }, "consecutive": 0 }),
                "consecutive",
            ),
        ] {
            let error = flow_with(|text| text[key] = value).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
