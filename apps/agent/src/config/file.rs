use super::keys::read_key;
use super::{Config, PathConfig, SendConfig};
use hawser_bpf::{MAX_RULES, Ports, Prefix, Rule, XdpMode};
use hawser_units::{FlowId, MAX_PATHS, PathId, PathSet, PolicyCode};
use hawser_wire::{DEFAULT_PORT, Key, KeyRing, KeySlot};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not what is expected; the message shows line, key and what would be right.
    #[error("{}: {source}", path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Where and what.
        source: Box<toml::de::Error>,
    },
    /// The text is well-formed and does not make sense.
    #[error("{}, line {line}: {message}", path.display())]
    Meaning {
        /// Which file.
        path: PathBuf,
        /// Where, counted from one.
        line: usize,
        /// What is wrong and what would be right.
        message: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    node: Spanned<Node>,
    #[serde(default)]
    peer: Vec<Spanned<Peer>>,
    #[serde(default)]
    path: Vec<Spanned<PathEntry>>,
    #[serde(default)]
    send: Vec<Spanned<Send>>,
    #[serde(default)]
    receive: Vec<Spanned<Receive>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    /// Letters, digits and dashes.
    name: String,
    /// UDP port of replicas, the same on both nodes of a pair.
    #[serde(default = "default_port")]
    port: u16,
    /// Interfaces whose transit traffic is replicated, in XDP.
    #[serde(default)]
    transit: Vec<String>,
    /// Interfaces by which this node's own traffic leaves, to be replicated at TC.
    #[serde(default)]
    local: Vec<String>,
    /// Whether XDP may run in the slower generic mode, for drivers without native XDP.
    #[serde(default)]
    generic_xdp: bool,
    /// Where status files are kept.
    #[serde(default = "default_state")]
    state: PathBuf,
    /// A bpf file system.
    #[serde(default = "default_pins")]
    pins: PathBuf,
    /// When a copy that has not arrived counts as missing, milliseconds.
    #[serde(default = "default_arrival_deadline_ms")]
    arrival_deadline_ms: u64,
}

fn default_port() -> u16 {
    DEFAULT_PORT
}

fn default_state() -> PathBuf {
    PathBuf::from("/run/hawser/agent")
}

fn default_pins() -> PathBuf {
    PathBuf::from("/sys/fs/bpf/hawser")
}

fn default_arrival_deadline_ms() -> u64 {
    500
}

/// A node at the other end of paths, and the secret shared with it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Peer {
    name: String,
    /// Files with a key for each slot; a receiver accepts both.
    #[serde(default)]
    keys: Keys,
    /// The slot whose key a sender uses.
    #[serde(default)]
    send_with: u8,
    /// False: replicas carry no tags, and anyone who reaches this node can forge them.
    #[serde(default = "yes")]
    authenticate: bool,
}

fn yes() -> bool {
    true
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    slot0: Option<PathBuf>,
    slot1: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PathEntry {
    /// 1 to 8, the same on both nodes.
    number: u8,
    interface: String,
    /// This node's address on the path.
    local: IpAddr,
    /// The peer's address on the path.
    remote: IpAddr,
    /// The router toward it; the routing table's when not given.
    next_hop: Option<IpAddr>,
    /// Largest packet on the path; the interface's MTU when not given.
    mtu_bytes: Option<u16>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Send {
    /// 0 to 1023, this node's number.
    flow: FlowId,
    /// The receiving node's number; the same when not given.
    label: Option<FlowId>,
    peer: String,
    /// Which packets.
    select: Selector,
    /// Numbers of the paths that copies take; empty: the default route, as if there were no agent.
    paths: Vec<u8>,
    /// Nothing is added to packets; IPv4 over adjacent hops only.
    #[serde(default)]
    transparent: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Receive {
    /// 0 to 1023, this node's number, which the sender uses as label.
    flow: FlowId,
    peer: String,
    /// For a transparent flow: which packets.
    transparent: Option<Selector>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Selector {
    /// A prefix, such as 203.0.113.0/24.
    destination: String,
    protocol: Option<Protocol>,
    /// One port, or the first and the last.
    source_ports: Option<PortRange>,
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

/// Parses the text of `path`.
pub(super) fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
    let file: File = toml::from_str(text)
        .map_err(|source| ConfigError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
    let directory = path.parent().unwrap_or(Path::new("."));
    Builder { text, path, directory }.build(file)
}

/// Turns the sections into a [`Config`], or points at the first that makes no sense.
struct Builder<'a> {
    text: &'a str,
    path: &'a Path,
    directory: &'a Path,
}

impl Builder<'_> {
    fn build(&self, file: File) -> Result<Config, ConfigError> {
        let node = file.node.get_ref();
        let valid_name = |name: &str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        };
        if !valid_name(&node.name) {
            return Err(self.at(&file.node, "name is made of letters, digits and dashes".to_owned()));
        }
        if node.port == 0 {
            return Err(self.at(&file.node, "port is 1 to 65535".to_owned()));
        }
        if !file.send.is_empty() && node.transit.is_empty() && node.local.is_empty() {
            let message = "there are [[send]] flows, but neither transit nor local names an interface to take them from";
            return Err(self.at(&file.node, message.to_owned()));
        }
        let mut config = Config {
            name: node.name.clone(),
            port: node.port,
            transit: node.transit.clone(),
            local: node.local.clone(),
            xdp: if node.generic_xdp { XdpMode::Generic } else { XdpMode::Native },
            state: node.state.clone(),
            pins: node.pins.clone(),
            arrival_deadline: Duration::from_millis(node.arrival_deadline_ms),
            paths: self.paths(&file.path)?,
            send: BTreeMap::new(),
            send_selectors: BTreeMap::new(),
            receive: BTreeMap::new(),
            receive_selectors: BTreeMap::new(),
        };
        if !file.send.is_empty() {
            self.one_interface_a_path(&file.path)?;
        }
        let peers = self.peers(&file.peer)?;
        for entry in &file.send {
            self.add_send(entry, &peers, &mut config)?;
        }
        for entry in &file.receive {
            self.add_receive(entry, &peers, &mut config)?;
        }
        config.send_selectors = self.inherit(&file.node, config.send_selectors)?;
        config.receive_selectors = self.inherit(&file.node, config.receive_selectors)?;
        Ok(config)
    }

    fn paths(&self, entries: &[Spanned<PathEntry>]) -> Result<BTreeMap<PathId, PathConfig>, ConfigError> {
        let mut paths = BTreeMap::new();
        for spanned in entries {
            let entry = spanned.get_ref();
            let path = path_of(entry.number).map_err(|message| self.at(spanned, message))?;
            if entry.local.is_ipv4() != entry.remote.is_ipv4() {
                return Err(self.at(spanned, "local and remote must both be IPv4 or both IPv6".to_owned()));
            }
            let description = PathConfig {
                interface: entry.interface.clone(),
                local: entry.local,
                remote: entry.remote,
                next_hop: entry.next_hop,
                mtu_bytes: entry.mtu_bytes,
            };
            if paths.insert(path, description).is_some() {
                return Err(self.at(spanned, format!("{path} is described twice")));
            }
        }
        Ok(paths)
    }

    /// The kernel sends what leaves by one interface in one go, as copies of one path.
    fn one_interface_a_path(&self, entries: &[Spanned<PathEntry>]) -> Result<(), ConfigError> {
        let mut owners = BTreeMap::new();
        for spanned in entries {
            let PathEntry { number, interface, .. } = spanned.get_ref();
            if let Some(other) = owners.insert(interface, number) {
                let message = format!(
                    "path {other} leaves by {interface} too; give each its own interface (a VLAN or macvlan device will do)"
                );
                return Err(self.at(spanned, message));
            }
        }
        Ok(())
    }

    fn peers(&self, entries: &[Spanned<Peer>]) -> Result<BTreeMap<String, Secrets>, ConfigError> {
        let mut peers = BTreeMap::new();
        for spanned in entries {
            let entry = spanned.get_ref();
            let secrets = self.secrets(entry).map_err(|message| self.at(spanned, message))?;
            if peers.insert(entry.name.clone(), secrets).is_some() {
                return Err(self.at(spanned, format!("peer {:?} is described twice", entry.name)));
            }
        }
        Ok(peers)
    }

    fn secrets(&self, peer: &Peer) -> Result<Secrets, String> {
        let files = [&peer.keys.slot0, &peer.keys.slot1];
        let mut ring = KeyRing::default();
        for (slot, file) in ring.slots.iter_mut().zip(files) {
            *slot = file.as_ref().map(|file| read_key(&self.directory.join(file))).transpose()?;
        }
        let filled = ring.slots.iter().any(Option::is_some);
        if peer.authenticate && !filled {
            return Err(format!(
                "peer {:?} has no keys: name a file in keys.slot0 (`hawser keygen FILE` makes one), or set \
                 authenticate = false",
                peer.name
            ));
        }
        if !peer.authenticate && filled {
            return Err(format!(
                "peer {:?} has keys and authenticate = false; remove one of them",
                peer.name
            ));
        }
        let slot = match peer.send_with {
            0 => KeySlot::Zero,
            1 => KeySlot::One,
            other => return Err(format!("send_with is 0 or 1, not {other}")),
        };
        let key = ring.slots[slot.index()].clone().map(|key| (slot, key));
        if filled && key.is_none() {
            return Err(format!("send_with is {0}, but keys.slot{0} names no file", peer.send_with));
        }
        Ok(Secrets { ring, key })
    }

    fn add_send(
        &self,
        spanned: &Spanned<Send>,
        peers: &BTreeMap<String, Secrets>,
        config: &mut Config,
    ) -> Result<(), ConfigError> {
        let entry = spanned.get_ref();
        let secrets = self.peer(spanned, &entry.peer, peers)?;
        let mut paths = PathSet::EMPTY;
        for number in &entry.paths {
            let path = path_of(*number).map_err(|message| self.at(spanned, message))?;
            let description = config.paths.get(&path);
            let description = description.ok_or_else(|| {
                self.at(spanned, format!("{path} is used here and described in no [[path]]"))
            })?;
            if entry.transparent && description.local.is_ipv6() {
                let message = format!("a transparent flow needs paths with IPv4 next hops; {path} has IPv6");
                return Err(self.at(spanned, message));
            }
            paths = paths.with(path);
        }
        if paths.len() == MAX_PATHS {
            let message = format!(
                "at most {} paths replicate at once: the code of all eight means stop",
                MAX_PATHS - 1
            );
            return Err(self.at(spanned, message));
        }
        let flow = SendConfig {
            label: entry.label.unwrap_or(entry.flow),
            policy: PolicyCode(paths.bits()),
            transparent: entry.transparent,
            key: secrets.key.clone(),
        };
        if config.send.insert(entry.flow, flow).is_some() {
            return Err(self.at(spanned, format!("{} is sent twice", entry.flow)));
        }
        let (prefix, rule) = rule(entry.flow, &entry.select).map_err(|message| self.at(spanned, message))?;
        config.send_selectors.entry(prefix).or_default().push(rule);
        Ok(())
    }

    fn add_receive(
        &self,
        spanned: &Spanned<Receive>,
        peers: &BTreeMap<String, Secrets>,
        config: &mut Config,
    ) -> Result<(), ConfigError> {
        let entry = spanned.get_ref();
        let secrets = self.peer(spanned, &entry.peer, peers)?;
        if config.paths.is_empty() {
            return Err(self.at(spanned, "copies arrive by paths, and no [[path]] is described".to_owned()));
        }
        if config.receive.insert(entry.flow, secrets.ring.clone()).is_some() {
            return Err(self.at(spanned, format!("{} is received twice", entry.flow)));
        }
        if let Some(selector) = &entry.transparent {
            let (prefix, rule) = rule(entry.flow, selector).map_err(|message| self.at(spanned, message))?;
            config.receive_selectors.entry(prefix).or_default().push(rule);
        }
        Ok(())
    }

    fn peer<'p, T>(
        &self,
        spanned: &Spanned<T>,
        name: &str,
        peers: &'p BTreeMap<String, Secrets>,
    ) -> Result<&'p Secrets, ConfigError> {
        peers.get(name).ok_or_else(|| self.at(spanned, format!("no [[peer]] is called {name:?}")))
    }

    /// The kernel asks the longest prefix alone, so each prefix also gets the rules of those that contain it.
    fn inherit(
        &self,
        node: &Spanned<Node>,
        selectors: BTreeMap<Prefix, Vec<Rule>>,
    ) -> Result<BTreeMap<Prefix, Vec<Rule>>, ConfigError> {
        let mut inherited = BTreeMap::new();
        for (prefix, own) in &selectors {
            let mut wider: Vec<_> =
                selectors.iter().filter(|(other, _)| *other != prefix && other.contains(*prefix)).collect();
            wider.sort_by_key(|(other, _)| std::cmp::Reverse(other.bits()));
            let rules: Vec<Rule> =
                own.iter().chain(wider.into_iter().flat_map(|(_, rules)| rules)).cloned().collect();
            if rules.len() > MAX_RULES {
                let message =
                    format!("{} flows share the destination {prefix}; at most {MAX_RULES} can", rules.len());
                return Err(self.at(node, message));
            }
            inherited.insert(*prefix, rules);
        }
        Ok(inherited)
    }

    fn at<T>(&self, spanned: &Spanned<T>, message: String) -> ConfigError {
        let before = &self.text[..spanned.span().start];
        ConfigError::Meaning { path: self.path.to_owned(), line: before.matches('\n').count() + 1, message }
    }
}

struct Secrets {
    ring: KeyRing,
    key: Option<(KeySlot, Key)>,
}

fn path_of(number: u8) -> Result<PathId, String> {
    number
        .checked_sub(1)
        .and_then(|index| PathId::try_from(index).ok())
        .ok_or_else(|| format!("paths are numbered 1 to {MAX_PATHS}, not {number}"))
}

fn rule(flow: FlowId, selector: &Selector) -> Result<(Prefix, Rule), String> {
    let text = &selector.destination;
    let prefix: Prefix =
        text.parse().map_err(|_| format!("destination {text:?} is not a prefix such as 203.0.113.0/24"))?;
    let protocol = match &selector.protocol {
        None => None,
        Some(Protocol::Number(0)) => {
            return Err("protocol 0 is no IP protocol; leave it out for all".to_owned());
        }
        Some(Protocol::Number(number)) => Some(*number),
        Some(Protocol::Named(Named::Icmp)) => Some(1),
        Some(Protocol::Named(Named::Tcp)) => Some(6),
        Some(Protocol::Named(Named::Udp)) => Some(17),
        Some(Protocol::Named(Named::Icmpv6)) => Some(58),
    };
    let ports = match (&selector.source_ports, &selector.destination_ports) {
        (None, None) => None,
        (source, destination) => Some(Ports { source: range(source)?, destination: range(destination)? }),
    };
    if ports.is_some() && !matches!(protocol, Some(6 | 17)) {
        return Err("ports need protocol = \"tcp\" or \"udp\"".to_owned());
    }
    Ok((prefix, Rule { flow, protocol, ports }))
}

fn range(ports: &Option<PortRange>) -> Result<RangeInclusive<u16>, String> {
    match ports {
        None => Ok(0..=u16::MAX),
        Some(PortRange::One(port)) => Ok(*port..=*port),
        Some(PortRange::Range([first, last])) if first <= last => Ok(*first..=*last),
        Some(PortRange::Range([first, last])) => {
            Err(format!("ports [{first}, {last}]: the first is above the last"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGE: &str = r#"
[node]
name = "ingress"
transit = ["source0"]

[[peer]]
name = "egress"
authenticate = false

[[path]]
number = 1
interface = "path1"
local = "10.1.1.1"
remote = "10.1.1.2"

[[path]]
number = 2
interface = "path2"
local = "fd00::1"
remote = "fd00::2"

[[send]]
flow = 7
peer = "egress"
select = { destination = "10.0.2.0/24", protocol = "tcp", destination_ports = [5000, 5010] }
paths = [1, 2]
"#;

    fn parse_edge(text: &str) -> Result<Config, ConfigError> {
        parse(text, Path::new("edge.toml"))
    }

    fn refusal(change: impl Fn(&str) -> String) -> String {
        parse_edge(&change(EDGE)).unwrap_err().to_string()
    }

    #[test]
    fn a_whole_configuration() {
        let config = parse_edge(EDGE).unwrap();
        let flow = FlowId::try_from(7).unwrap();
        assert_eq!(config.port, DEFAULT_PORT);
        assert_eq!(config.paths.len(), 2);
        assert_eq!(config.send[&flow].policy, PolicyCode(0b11));
        assert_eq!(config.send[&flow].label, flow);
        let rules = &config.send_selectors[&"10.0.2.0/24".parse().unwrap()];
        assert_eq!(rules[0].ports.as_ref().unwrap().destination, 5000..=5010);
    }

    #[test]
    fn refusals_name_the_line_and_what_would_be_right() {
        let cases: [(&str, &str, &str); 12] = [
            ("number = 2", "number = 9", "line 16: paths are numbered 1 to 8, not 9"),
            ("number = 2", "number = 1", "line 16: path 1 is described twice"),
            ("interface = \"path2\"", "interface = \"path1\"", "line 16: path 1 leaves by path1 too"),
            ("paths = [1, 2]", "paths = [1, 3]", "line 22: path 3 is used here and described in no [[path]]"),
            ("remote = \"fd00::2\"", "remote = \"10.1.2.2\"", "line 16: local and remote must both be IPv4"),
            ("peer = \"egress\"", "peer = \"other\"", "line 22: no [[peer]] is called \"other\""),
            ("authenticate = false", "", "line 6: peer \"egress\" has no keys"),
            ("10.0.2.0/24", "10.0.2.0/33", "destination \"10.0.2.0/33\" is not a prefix"),
            ("[5000, 5010]", "[5010, 5000]", "the first is above the last"),
            ("protocol = \"tcp\", ", "", "ports need protocol = \"tcp\" or \"udp\""),
            ("transit = [\"source0\"]", "", "neither transit nor local names an interface"),
            ("name = \"ingress\"", "name = \"../etc\"", "line 2: name is made of letters"),
        ];
        for (from, to, expected) in cases {
            let message = refusal(|text| text.replacen(from, to, 1));
            assert!(message.contains(expected), "{to}: {message}");
        }
    }

    #[test]
    fn unknown_keys_and_wrong_types_show_their_place() {
        let message = refusal(|text| text.replace("transit =", "transits ="));
        assert!(message.contains("transits") && message.contains("line 4"), "{message}");
        let message = refusal(|text| text.replace("flow = 7", "flow = 1024"));
        assert!(message.contains("must be below 1024"), "{message}");
        let message = refusal(|text| text.replace("\"tcp\"", "\"sctp\""));
        assert!(message.contains("a protocol is"), "{message}");
    }

    #[test]
    fn a_narrow_prefix_does_not_hide_the_flows_of_a_wide_one() {
        let wide = "\n[[send]]\nflow = 8\npeer = \"egress\"\nselect = { destination = \"10.0.0.0/8\" }\npaths = [1]\n";
        let config = parse_edge(&format!("{EDGE}{wide}")).unwrap();
        let flows = |prefix: &str| -> Vec<u16> {
            config.send_selectors[&prefix.parse().unwrap()].iter().map(|rule| rule.flow.into()).collect()
        };
        assert_eq!(flows("10.0.2.0/24"), [7, 8]);
        assert_eq!(flows("10.0.0.0/8"), [8]);
    }

    #[test]
    fn eight_paths_at_once_are_refused() {
        let mut text = EDGE.replace("paths = [1, 2]", "paths = [1, 2, 3, 4, 5, 6, 7, 8]");
        for number in 3..=8 {
            text += &format!(
                "\n[[path]]\nnumber = {number}\ninterface = \"p{number}\"\nlocal = \"10.1.{number}.1\"\nremote = \"10.1.{number}.2\"\n"
            );
        }
        assert!(parse_edge(&text).unwrap_err().to_string().contains("at most 7 paths"));
    }
}
