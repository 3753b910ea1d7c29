use super::super::file::{Device, File};
use super::super::{ConfigError, DeviceConfig, DeviceRoute, PathConfig, Peer};
use super::{Builder, described};
use hawser_replication_bpf::Prefix;
use hawser_shim::{OVERHEAD_V4, OVERHEAD_V6};
use hawser_units::PathId;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// MTU assumed for a path whose MTU is not given, bytes.
const ETHERNET_MTU: u16 = 1500;

/// Minimum MTU of IPv4 (RFC 791) and of IPv6 (RFC 8200, section 5), bytes.
const MIN_MTU: [u16; 2] = [576, 1280];

type Paths = BTreeMap<PathId, PathConfig>;

impl Builder<'_> {
    /// Returns the description of the interface that the agent is to create, if the file has one.
    pub(super) fn device(
        &self,
        file: &File,
        paths: &Paths,
        peers: &BTreeMap<String, Peer>,
    ) -> Result<Option<DeviceConfig>, ConfigError> {
        let Some(spanned) = &file.device else {
            return Ok(None);
        };
        if file.send.is_empty() && file.controller.is_none() {
            let message = "no traffic through this interface is replicated: add a [[send]], or remove [device]";
            return Err(self.at(spanned, message.to_owned()));
        }
        for peer in spanned.get_ref().routes.keys() {
            self.peer(spanned, peer, peers)?;
        }
        check_name(file, spanned.get_ref())
            .and_then(|()| describe(spanned.get_ref(), paths))
            .map(Some)
            .map_err(|message| self.at(spanned, message))
    }
}

fn check_name(file: &File, Device { name, .. }: &Device) -> Result<(), String> {
    let is_allowed =
        |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if name.is_empty() || name.len() >= 16 || !name.chars().all(is_allowed) {
        return Err(format!(
            "name {name:?} must have 1 to 15 letters, digits, dashes and underscores"
        ));
    }
    let node = file.node.get_ref();
    let of_paths = file.path.iter().map(|path| &path.get_ref().interface);
    if node
        .transit
        .iter()
        .chain(&node.local)
        .chain(of_paths)
        .any(|other| other == name)
    {
        return Err(format!(
            "the agent creates {name} itself and replicates the traffic through it: name it only here, and use another \
             interface elsewhere"
        ));
    }
    Ok(())
}

fn describe(entry: &Device, paths: &Paths) -> Result<DeviceConfig, String> {
    for version in [IpAddr::is_ipv4, IpAddr::is_ipv6] {
        let addresses = entry.addresses.iter();
        if addresses.filter(|address| version(address)).count() > 1 {
            return Err("addresses has at most one of each IP version".to_owned());
        }
    }
    let mut routes = Vec::new();
    for (peer, destinations) in &entry.routes {
        for destination in destinations {
            routes.push(route(entry, peer, destination, paths)?);
        }
    }
    if routes.is_empty() {
        return Err("routes is empty: name the prefixes that the interface leads to, such as { viewer = [\"10.99.0.2/32\"] }"
            .to_owned());
    }
    Ok(DeviceConfig {
        name: entry.name.clone(),
        mtu_bytes: mtu(entry, paths)?,
        addresses: entry.addresses.clone(),
        routes,
    })
}

fn route(
    entry: &Device,
    peer: &str,
    destination: &str,
    paths: &Paths,
) -> Result<DeviceRoute, String> {
    let destination: Prefix = destination
        .parse()
        .map_err(|error| format!("the route {destination:?} is not a prefix: {error}"))?;
    let is_ipv4 = destination.address().is_ipv4();
    let source = source(entry, destination)?;
    let fallback = fallback(entry, peer, is_ipv4, paths)?;
    if fallback.is_empty() && entry.has_fallback() {
        return Err(format!(
            "no path to peer {peer:?} could carry packets to {destination} without an agent (IPv6 needs a path with IPv6 \
             addresses); name one, or set `fallback = []`"
        ));
    }
    Ok(DeviceRoute {
        destination,
        source,
        fallback,
    })
}

/// Returns the source address of packets to these destinations.
fn source(entry: &Device, destination: Prefix) -> Result<IpAddr, String> {
    let is_ipv4 = destination.address().is_ipv4();
    let mut addresses = entry.addresses.iter().copied();
    let source = addresses.find(|address| address.is_ipv4() == is_ipv4);
    source.ok_or_else(|| {
        format!("addresses has none of the IP version of {destination}, to be the source address of packets to it")
    })
}

/// Returns the paths that packets to a peer take while no agent runs: of the paths given in the
/// file, or of all, those that lead to the peer and can carry packets of this IP version.
fn fallback(
    entry: &Device,
    peer: &str,
    is_ipv4: bool,
    paths: &Paths,
) -> Result<Vec<PathId>, String> {
    let mut fallback = match &entry.fallback {
        None => paths.keys().copied().collect(),
        Some(numbers) => {
            let path = |number: &u8| described(*number, paths).map(|(path, _)| path);
            numbers.iter().map(path).collect::<Result<Vec<_>, _>>()?
        }
    };
    fallback.retain(|path| {
        let leads_there = paths[path].peer.as_ref().is_none_or(|name| name == peer);
        // IPv4 packets can be sent to a router's IPv6 address (RFC 5549), IPv6 packets only to an
        // IPv6 address.
        leads_there && (is_ipv4 || paths[path].remote.is_ipv6())
    });
    Ok(fallback)
}

impl Device {
    /// Returns whether traffic is to take a path while no agent runs.
    fn has_fallback(&self) -> bool {
        let numbers = self.fallback.as_ref();
        numbers.is_none_or(|numbers| !numbers.is_empty())
    }
}

/// Returns the MTU of the interface, bytes: the one in the file, or the largest that fits every
/// path.
fn mtu(entry: &Device, paths: &Paths) -> Result<u16, String> {
    let mtu_bytes = entry.mtu_bytes.unwrap_or_else(|| narrowest(paths));
    let minimum = MIN_MTU[usize::from(entry.addresses.iter().any(IpAddr::is_ipv6))];
    if mtu_bytes < minimum {
        return Err(format!(
            "packets of {mtu_bytes} bytes are too small: mtu_bytes is at least {minimum}"
        ));
    }
    Ok(mtu_bytes)
}

/// Returns the size of the largest packet that fits every path together with the outer headers,
/// bytes.
fn narrowest(paths: &Paths) -> u16 {
    let inner = |path: &PathConfig| {
        let overhead = if path.remote.is_ipv6() {
            OVERHEAD_V6
        } else {
            OVERHEAD_V4
        };
        path.mtu_bytes
            .unwrap_or(ETHERNET_MTU)
            .saturating_sub(overhead as u16)
    };
    paths.values().map(inner).min().unwrap_or(ETHERNET_MTU)
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, ConfigError};
    use hawser_io::config::Source;
    use hawser_units::PathId;
    use std::path::Path;

    const MACHINE: &str = r#"
[node]
name = "publisher"

[device]
addresses = ["10.99.0.1"]
routes = { viewer = ["10.99.0.2/32"] }

[[peer]]
name = "viewer"
authenticate = false

[[path]]
number = 1
interface = "eth0"
local = "192.0.2.1"
remote = "192.0.2.2"

[[path]]
number = 2
interface = "wlan0"
local = "198.51.100.1"
remote = "198.51.100.2"

[[send]]
flow = 1
peer = "viewer"
select = { destination = "10.99.0.2/32" }
paths = [1, 2]
"#;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        super::super::parse(&Source::of(Path::new("machine.toml"), text))
    }

    fn fallback(change: &str) -> Vec<u8> {
        let text = MACHINE.replace("[device]\n", &format!("[device]\n{change}\n"));
        let device = parse(&text).unwrap().device.unwrap();
        device.routes[0]
            .fallback
            .iter()
            .copied()
            .map(PathId::into)
            .collect()
    }

    #[test]
    fn defaults_of_a_device() {
        let config = parse(MACHINE).unwrap();
        assert_eq!(config.local, ["hawser0"]);
        let device = config.device.unwrap();
        assert_eq!((device.name.as_str(), device.mtu_bytes), ("hawser0", 1444));
        assert_eq!(device.routes[0].source, device.addresses[0]);
        let narrow = MACHINE.replace("number = 2", "number = 2\nmtu_bytes = 1400");
        assert_eq!(parse(&narrow).unwrap().device.unwrap().mtu_bytes, 1344);
    }

    #[test]
    fn uplinks_have_the_given_order_or_that_of_the_paths() {
        assert_eq!(fallback(""), [0, 1]);
        assert_eq!(fallback("fallback = [2, 1]"), [1, 0]);
        assert_eq!(fallback("fallback = []"), [0; 0]);
        let two = MACHINE.replace("number = 2", "number = 2\npeer = \"other\"")
            + "\n[[peer]]\nname = \"other\"\nauthenticate = false\n";
        let two = two.replace("number = 1", "number = 1\npeer = \"viewer\"");
        assert_eq!(
            parse(&two).unwrap().device.unwrap().routes[0]
                .fallback
                .len(),
            1
        );
    }

    #[test]
    fn refusals_name_the_line_and_what_would_be_right() {
        let cases = [
            (
                "\"10.99.0.2/32\"] }\n",
                "\"10.99.0.2\"] }\n",
                "\"10.99.0.2\" is not a prefix: a prefix is an address",
            ),
            ("{ viewer =", "{ other =", "no [[peer]] is called \"other\""),
            ("{ viewer = [\"10.99.0.2/32\"] }", "{}", "routes is empty"),
            (
                "[\"10.99.0.1\"]",
                "[\"10.99.0.1\", \"10.99.0.7\"]",
                "at most one of each IP version",
            ),
            (
                "[\"10.99.0.1\"]",
                "[\"fd00::1\"]",
                "none of the IP version of 10.99.0.2/32",
            ),
            (
                "[device]\n",
                "[device]\nfallback = [3]\n",
                "path 3 is used here and described in no [[path]]",
            ),
            (
                "[device]\n",
                "[device]\nmtu_bytes = 500\n",
                "mtu_bytes is at least 576",
            ),
            (
                "[device]\n",
                "[device]\nname = \"hawser0.100.200.300\"\n",
                "1 to 15 letters",
            ),
            (
                "[device]\n",
                "[device]\nname = \"wlan0\"\n",
                "the agent creates wlan0 itself",
            ),
            (
                "[device]\n",
                "[device]\nmtu = 1444\n",
                "unknown field `mtu`",
            ),
        ];
        for (from, to, expected) in cases {
            let message = parse(&MACHINE.replacen(from, to, 1))
                .unwrap_err()
                .to_string();
            assert!(
                message.contains(expected) && message.contains("line "),
                "{to}: {message}"
            );
        }
        let idle = MACHINE.split("[[send]]").next().unwrap();
        let message = parse(idle).unwrap_err().to_string();
        assert!(
            message.contains("line 5: no traffic through this interface is replicated"),
            "{message}"
        );
    }

    #[test]
    fn ipv6_needs_a_path_with_ipv6() {
        let six = MACHINE
            .replace("10.99.0.1", "fd99::1")
            .replace("10.99.0.2/32", "fd99::2/128");
        let message = parse(&six).unwrap_err().to_string();
        assert!(
            message.contains("no path to peer \"viewer\" could carry packets to fd99::2/128"),
            "{message}"
        );
        let six = six.replace("\"198.51.100.", "\"2001:db8::");
        let device = parse(&six).unwrap().device.unwrap();
        assert_eq!(device.routes[0].fallback, [PathId::all().nth(1).unwrap()]);
        assert_eq!(device.mtu_bytes, 1424);
    }
}
