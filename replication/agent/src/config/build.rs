mod device;

use super::file::{File, Node, PathEntry, Receive, RemainsOnly, Send, SignalAddress};
use super::keys::read_key;
use super::select::{Selector, rule};
use super::{
    Config, ConfigError, ControllerConfig, PathConfig, Peer, Remains, Reporters, UplinkNames, file,
};
use crate::flows::{Flows, Selectors, Sent};
use hawser_client::Controller;
use hawser_io::config::Source;
use hawser_io::xdp::Wanted;
use hawser_metrics::server::check_loopback;
use hawser_model::Name;
use hawser_node::{TooManyFlows, inherit};
use hawser_replication_bpf::{MANAGEMENT_PORTS, MAX_RULES, Prefix, Rule, SendPolicy};
use hawser_shim::{Cover, KeyRing, KeySlot, SealRing};
use hawser_units::{FlowId, MAX_PATHS, PathId, PathSet, PolicyCode};
use hawser_wire::SIGNAL_PORT;
use nix::unistd::User;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Directory of the state that does not survive a reboot.
const RUNTIME_STATE: &str = "/run/hawser/agent";

/// Directory of the state that survives a reboot.
const PERSISTENT_STATE: &str = "/var/lib/hawser/agent";

/// The longest name of an interface, bytes (IFNAMSIZ of Linux, without the final zero).
const MAX_INTERFACE_NAME: usize = 15;

/// Minimum of `max_age_ms`. Path delays differ by tens of milliseconds, and scheduling on a busy
/// processor adds to that.
const MIN_MAX_AGE_MS: u32 = 100;

/// Maximum age of a key that the node makes, hours: a year. The numbers of packets under one key last
/// for longer.
const MAX_KEY_HOURS: u32 = 366 * 24;

/// Parses a configuration file.
pub(super) fn parse(source: &Source<'_>) -> Result<Config, ConfigError> {
    Builder { source }.build(source.parse()?)
}

/// Parses where the node leaves what outlives its agent, and ignores the rest.
pub(super) fn remains(source: &Source<'_>) -> Result<Remains, ConfigError> {
    let file: RemainsOnly = source.parse()?;
    source.check_name(&file.node, &file.node.get_ref().name)?;
    let node = file.node.into_inner();
    Ok(Remains {
        name: node.name,
        state: runtime_state(node.state.as_ref()),
        pins: node.pins,
        interfaces: node.local.into_iter().chain(node.transit).collect(),
    })
}

fn runtime_state(state: Option<&PathBuf>) -> PathBuf {
    state.cloned().unwrap_or_else(|| RUNTIME_STATE.into())
}

/// Builds a [`Config`] from the sections of a file, or returns an error that points at the first
/// wrong section.
struct Builder<'a> {
    source: &'a Source<'a>,
}

impl Builder<'_> {
    fn build(&self, file: File) -> Result<Config, ConfigError> {
        self.check_node(&file.node)?;
        if !file.send.is_empty() && !file.replicates() {
            let message = "there are [[send]] flows, but neither transit nor local names an interface to take their packets from, \
                           and there is no [device]";
            return Err(self.at(&file.node, message.to_owned()));
        }
        let node = file.node.get_ref();
        let peers = self.peers(&node.name, &file.peer, file.controller.is_some())?;
        let paths = self.paths(&file.path, &peers)?;
        if !file.send.is_empty() || (file.controller.is_some() && file.replicates()) {
            self.check_one_interface_per_path(&file.path)?;
        }
        let device = self.device(&file, &paths, &peers)?;
        let own = device.iter().map(|device| device.name.clone());
        Ok(Config {
            name: node.name.clone(),
            port: node.port,
            echo_port: node.echo_port,
            transit: node.transit.clone(),
            local: node.local.iter().cloned().chain(own).collect(),
            management_ports: node.management_ports.clone(),
            uplinks: self.uplinks(&file)?,
            watch: node.watch.clone(),
            xdp: Wanted::of(node.generic_xdp),
            state: runtime_state(node.state.as_ref()),
            pins: node.pins.clone(),
            persistent_state: self.persistent_state(&file),
            max_age: Duration::from_millis(node.max_age_ms.into()),
            arrival_deadline: Duration::from_millis(node.arrival_deadline_ms),
            reporters: self.reporters(&file.node)?,
            metrics: node.metrics,
            trace: node.trace.clone(),
            flows: self.flows(&file, &paths, &peers)?,
            paths,
            peers,
            controller: self.controller(&file)?,
            device,
        })
    }

    /// Checks the keys of `[node]` that do not depend on other sections.
    fn check_node(&self, spanned: &Spanned<Node>) -> Result<(), ConfigError> {
        let node = spanned.get_ref();
        self.source.check_name(spanned, &node.name)?;
        if let Some(metrics) = node.metrics {
            check_loopback(metrics, 9476).map_err(|message| self.at(spanned, message))?;
        }
        if node.port == 0 {
            return Err(self.at(spanned, "port is 1 to 65535".to_owned()));
        }
        if node.max_age_ms < MIN_MAX_AGE_MS {
            let message = format!(
                "max_age_ms is at least {MIN_MAX_AGE_MS}, more than the delays of paths differ: copies that arrive later \
                 than this after the fastest one are dropped"
            );
            return Err(self.at(spanned, message));
        }
        if node.management_ports.len() > MANAGEMENT_PORTS || node.management_ports.contains(&0) {
            let message =
                format!("management_ports holds up to {MANAGEMENT_PORTS} ports of 1 to 65535");
            return Err(self.at(spanned, message));
        }
        Ok(())
    }

    /// Finds the users that are named, so that an agent looks up no name while it runs.
    fn reporters(&self, spanned: &Spanned<Node>) -> Result<Reporters, ConfigError> {
        let mut reporters = Reporters::default();
        for name in &spanned.get_ref().reporters {
            if name == "*" {
                reporters.all = true;
            } else if let Ok(number) = name.parse() {
                reporters.users.insert(number);
            } else {
                match User::from_name(name) {
                    Ok(Some(user)) => drop(reporters.users.insert(user.uid.as_raw())),
                    Ok(None) => {
                        let unknown = format!("reporters: this machine has no user {name:?}");
                        return Err(self.at(spanned, unknown));
                    }
                    // The node's traffic does not depend on it.
                    Err(error) => {
                        tracing::warn!(
                            "reporters: cannot look up {name:?}, who cannot report: {error}"
                        );
                    }
                }
            }
        }
        Ok(reporters)
    }

    fn controller(&self, file: &File) -> Result<Option<ControllerConfig>, ConfigError> {
        let Some(spanned) = &file.controller else {
            return Ok(None);
        };
        self.check_assignable(file, spanned)?;
        let urls = self.urls(spanned)?;
        let entry = spanned.get_ref();
        if entry.signals.is_some() == entry.interfaces.is_empty() {
            let message = "interfaces names where in-band signals arrive and signals the address to which they are sent: give both or neither";
            return Err(self.at(spanned, message.to_owned()));
        }
        Ok(Some(ControllerConfig {
            urls,
            interfaces: entry.interfaces.clone(),
            signals: entry.signals.as_ref().map(SignalAddress::socket),
            state: self.persistent_state(file),
            key_lifetime: self.key_lifetime(spanned)?,
        }))
    }

    fn key_lifetime(&self, spanned: &Spanned<file::Controller>) -> Result<Duration, ConfigError> {
        let hours = spanned.get_ref().new_key_every_hours;
        if !(1..=MAX_KEY_HOURS).contains(&hours) {
            let message = format!("new_key_every_hours is 1 to {MAX_KEY_HOURS}");
            return Err(self.at(spanned, message));
        }
        Ok(Duration::from_secs(u64::from(hours) * 3600))
    }

    /// Checks that the controller can assign all flows, and that it accepts the node's name.
    fn check_assignable(
        &self,
        file: &File,
        controller: &Spanned<file::Controller>,
    ) -> Result<(), ConfigError> {
        if !file.send.is_empty() || !file.receive.is_empty() {
            let message = "the controller assigns the flows; remove either [controller] or [[send]] and [[receive]]";
            return Err(self.at(controller, message.to_owned()));
        }
        match file.node.get_ref().name.parse::<Name>() {
            Ok(_) => Ok(()),
            Err(error) => Err(self.at(&file.node, error.to_string())),
        }
    }

    fn urls(&self, spanned: &Spanned<file::Controller>) -> Result<Vec<Controller>, ConfigError> {
        let urls = &spanned.get_ref().urls;
        if urls.is_empty() {
            let message = "urls is empty: name each controller as \"https://HOST:PORT\"";
            return Err(self.at(spanned, message.to_owned()));
        }
        let urls = urls
            .iter()
            .map(|url| url.parse())
            .collect::<Result<_, hawser_client::Error>>();
        urls.map_err(|error| self.at(spanned, error.to_string()))
    }

    /// Returns the directory of the state that must survive a reboot.
    fn persistent_state(&self, file: &File) -> PathBuf {
        let node = file.node.get_ref();
        let controller = file
            .controller
            .as_ref()
            .and_then(|controller| controller.get_ref().state.as_ref());
        let state = controller.or(node.state.as_ref());
        state
            .map_or(Path::new(PERSISTENT_STATE), PathBuf::as_path)
            .join(&node.name)
    }

    fn flows(
        &self,
        file: &File,
        paths: &BTreeMap<PathId, PathConfig>,
        peers: &BTreeMap<String, Peer>,
    ) -> Result<Flows, ConfigError> {
        let mut flows = Flows::default();
        for entry in &file.send {
            self.add_send(entry, paths, peers, &mut flows)?;
        }
        for entry in &file.receive {
            if paths.is_empty() {
                return Err(self.at(
                    entry,
                    "no [[path]] is described on which copies could arrive".to_owned(),
                ));
            }
            self.add_receive(entry, peers, &mut flows)?;
        }
        flows.send_selectors = self.inherited(&file.node, &flows.send_selectors)?;
        flows.receive_selectors = self.inherited(&file.node, &flows.receive_selectors)?;
        Ok(flows)
    }

    fn paths(
        &self,
        entries: &[Spanned<PathEntry>],
        peers: &BTreeMap<String, Peer>,
    ) -> Result<BTreeMap<PathId, PathConfig>, ConfigError> {
        let mut paths = BTreeMap::new();
        for spanned in entries {
            let number = spanned.get_ref().number;
            let path = path_of(number).map_err(|message| self.at(spanned, message))?;
            let description = self.path(spanned, peers)?;
            if paths.insert(path, description).is_some() {
                return Err(self.at(spanned, format!("{path} is described twice")));
            }
        }
        Ok(paths)
    }

    fn path(
        &self,
        spanned: &Spanned<PathEntry>,
        peers: &BTreeMap<String, Peer>,
    ) -> Result<PathConfig, ConfigError> {
        let entry = spanned.get_ref();
        let is_other_version = |local: IpAddr| local.is_ipv4() != entry.remote.is_ipv4();
        if entry.local.is_some_and(is_other_version) {
            let message = "local and remote must both be IPv4 or both IPv6";
            return Err(self.at(spanned, message.to_owned()));
        }
        if entry.local == Some(entry.remote) {
            let message = "local is this node's address and remote the peer's: they are the same";
            return Err(self.at(spanned, message.to_owned()));
        }
        if entry.interface.is_empty() || entry.interface.len() > MAX_INTERFACE_NAME {
            let message = format!(
                "interface {:?}: the name of an interface has 1 to {MAX_INTERFACE_NAME} bytes",
                entry.interface
            );
            return Err(self.at(spanned, message));
        }
        if let Some(peer) = &entry.peer {
            self.peer(spanned, peer, peers)?;
        }
        let only_peer = peers.keys().next().filter(|_| peers.len() == 1);
        Ok(PathConfig {
            interface: entry.interface.clone(),
            local: entry.local,
            remote: entry.remote,
            next_hop: entry.next_hop,
            mtu_bytes: entry.mtu_bytes,
            peer: entry.peer.as_ref().or(only_peer).cloned(),
            discovered: false,
        })
    }

    /// Checks the interfaces of which the controller may make paths.
    fn uplinks(&self, file: &File) -> Result<UplinkNames, ConfigError> {
        let names = &file.node.get_ref().uplinks;
        if !names.is_empty() && file.controller.is_none() {
            let message = "a controller makes paths of the interfaces in uplinks, and there is no [controller]; use [[path]]";
            return Err(self.at(&file.node, message.to_owned()));
        }
        let is_valid = |name: &&String| {
            let beginning = name.strip_suffix('*').unwrap_or(name);
            (1..=MAX_INTERFACE_NAME).contains(&beginning.len()) && !beginning.contains('*')
        };
        match names.iter().find(|name| !is_valid(name)) {
            None => Ok(UplinkNames(names.clone())),
            Some(name) => {
                let message = format!(
                    "uplinks: {name:?} is neither the name of an interface nor the beginning of one and `*`, such as \"wwan*\""
                );
                Err(self.at(&file.node, message))
            }
        }
    }

    /// Requires an interface of its own for each path: the kernel sends the packets that leave
    /// through one interface in one batch, as copies of one path.
    fn check_one_interface_per_path(
        &self,
        entries: &[Spanned<PathEntry>],
    ) -> Result<(), ConfigError> {
        let mut owners = BTreeMap::new();
        for spanned in entries {
            let PathEntry {
                number, interface, ..
            } = spanned.get_ref();
            if let Some(other) = owners.insert(interface, number) {
                let message = format!(
                    "path {other} leaves by {interface} too; give each path its own interface (a VLAN or macvlan device will do)"
                );
                return Err(self.at(spanned, message));
            }
        }
        Ok(())
    }

    fn peers(
        &self,
        own_name: &str,
        entries: &[Spanned<file::Peer>],
        is_controlled: bool,
    ) -> Result<BTreeMap<String, Peer>, ConfigError> {
        let mut peers = BTreeMap::new();
        for spanned in entries {
            let entry = spanned.get_ref();
            let secrets = self
                .secrets(own_name, entry, is_controlled)
                .map_err(|message| self.at(spanned, message))?;
            if peers.insert(entry.name.clone(), secrets).is_some() {
                return Err(self.at(spanned, format!("peer {:?} is described twice", entry.name)));
            }
        }
        Ok(peers)
    }

    fn secrets(
        &self,
        own_name: &str,
        peer: &file::Peer,
        is_controlled: bool,
    ) -> Result<Peer, String> {
        let ring = self.key_ring(&peer.keys)?;
        let has_keys = ring.slots.iter().any(Option::is_some);
        // Under a controller, the nodes make the keys that the file does not name.
        let by_hand = has_keys || !peer.authenticate || !is_controlled;
        peer.check_authentication(has_keys || !by_hand)?;
        let send = peer.sending_slot(&ring)?;
        let node = peer.node.as_ref().unwrap_or(&peer.name);
        if has_keys && node == own_name {
            return Err(format!(
                "peer {:?} has the name of this node: keys are derived for each direction from the nodes' names; set `node` \
                 to the name that the peer has in its own configuration",
                peer.name
            ));
        }
        peer.check_covers(has_keys || !by_hand)?;
        let (cover, required) = (Cover::from(peer.cover), Cover::from(peer.required_cover));
        let described = Peer {
            by_hand,
            cover,
            accepted: SealRing {
                required_cover: required,
                ..SealRing::default()
            },
            ..Peer::default()
        };
        Ok(described.with_keys(own_name, node, ring, send))
    }

    fn key_ring(&self, keys: &file::Keys) -> Result<KeyRing, String> {
        let mut ring = KeyRing::default();
        for (slot, file) in ring.slots.iter_mut().zip([&keys.slot0, &keys.slot1]) {
            *slot = file
                .as_ref()
                .map(|file| read_key(&self.source.directory().join(file)))
                .transpose()?;
        }
        Ok(ring)
    }

    fn add_send(
        &self,
        spanned: &Spanned<Send>,
        paths: &BTreeMap<PathId, PathConfig>,
        peers: &BTreeMap<String, Peer>,
        flows: &mut Flows,
    ) -> Result<(), ConfigError> {
        let entry = spanned.get_ref();
        let flow = self.sent(spanned, paths, peers)?;
        let is_taken = |other: &Sent| other.label == flow.label && other.key == flow.key;
        if flow.key.is_some() && flows.send.values().any(is_taken) {
            let message = format!(
                "two flows to peer {:?} have the label {}: it would take packets of one for copies of the other",
                entry.peer, flow.label
            );
            return Err(self.at(spanned, message));
        }
        if flows.send.insert(entry.flow, flow).is_some() {
            return Err(self.at(spanned, format!("{} is sent twice", entry.flow)));
        }
        let (prefix, rule) = self.rule(spanned, entry.flow, &entry.select)?;
        flows.send_selectors.entry(prefix).or_default().push(rule);
        Ok(())
    }

    fn sent(
        &self,
        spanned: &Spanned<Send>,
        paths: &BTreeMap<PathId, PathConfig>,
        peers: &BTreeMap<String, Peer>,
    ) -> Result<Sent, ConfigError> {
        let entry = spanned.get_ref();
        let secrets = self.peer(spanned, &entry.peer, peers)?;
        let paths = paths_of(entry, paths).map_err(|message| self.at(spanned, message))?;
        Ok(Sent {
            name: None,
            label: entry.label.unwrap_or(entry.flow),
            policy: SendPolicy {
                code: PolicyCode(paths.bits()),
                ..SendPolicy::default()
            },
            transparent: entry.transparent,
            key: secrets.sealed.clone(),
        })
    }

    fn add_receive(
        &self,
        spanned: &Spanned<Receive>,
        peers: &BTreeMap<String, Peer>,
        flows: &mut Flows,
    ) -> Result<(), ConfigError> {
        let entry = spanned.get_ref();
        let keys = self.peer(spanned, &entry.peer, peers)?.accepted.clone();
        if flows.receive.insert(entry.flow, keys).is_some() {
            return Err(self.at(spanned, format!("{} is received twice", entry.flow)));
        }
        if let Some(selector) = &entry.transparent {
            let (prefix, rule) = self.rule(spanned, entry.flow, selector)?;
            let rules = flows.receive_selectors.entry(prefix).or_default();
            rules.push(rule);
        }
        Ok(())
    }

    fn rule<T>(
        &self,
        spanned: &Spanned<T>,
        flow: FlowId,
        selector: &Selector,
    ) -> Result<(Prefix, Rule), ConfigError> {
        rule(flow, selector).map_err(|message| self.at(spanned, message))
    }

    fn peer<'p, T>(
        &self,
        spanned: &Spanned<T>,
        name: &str,
        peers: &'p BTreeMap<String, Peer>,
    ) -> Result<&'p Peer, ConfigError> {
        peers
            .get(name)
            .ok_or_else(|| self.at(spanned, format!("no [[peer]] is called {name:?}")))
    }

    fn inherited(
        &self,
        node: &Spanned<Node>,
        selectors: &Selectors,
    ) -> Result<Selectors, ConfigError> {
        inherit(selectors, MAX_RULES).map_err(|TooManyFlows { prefix, flows }| {
            let message = format!(
                "{} flows share the destination {prefix}; at most {MAX_RULES} can",
                flows.len()
            );
            self.at(node, message)
        })
    }

    fn at<T>(&self, spanned: &Spanned<T>, message: String) -> ConfigError {
        self.source.wrong(spanned, message)
    }
}

impl File {
    /// Returns whether the node has any traffic that it could replicate.
    fn replicates(&self) -> bool {
        let Node { transit, local, .. } = self.node.get_ref();
        !transit.is_empty() || !local.is_empty() || self.device.is_some()
    }
}

impl file::Peer {
    /// Checks that the peer has keys if, and only if, packets are authenticated.
    fn check_authentication(&self, has_keys: bool) -> Result<(), String> {
        match (self.authenticate, has_keys) {
            (true, false) => Err(format!(
                "peer {:?} has no keys: name a file in keys.slot0 (`hawser keygen FILE` makes one), or set \
                 authenticate = false",
                self.name
            )),
            (false, true) => Err(format!(
                "peer {:?} has keys and authenticate = false; remove one of them",
                self.name
            )),
            _ => Ok(()),
        }
    }

    /// Returns the slot of the key for packets to the peer, if the peer has keys.
    fn sending_slot(&self, ring: &KeyRing) -> Result<Option<KeySlot>, String> {
        let slot = match self.send_slot {
            0 => KeySlot::Zero,
            1 => KeySlot::One,
            other => return Err(format!("send_slot is 0 or 1, not {other}")),
        };
        let send = ring.slots[slot.index()].as_ref().map(|_| slot);
        if send.is_none() && ring.slots.iter().any(Option::is_some) {
            return Err(format!(
                "send_slot is {0}, but keys.slot{0} names no file",
                self.send_slot
            ));
        }
        Ok(send)
    }

    /// Checks that tags are required to cover whole packets only where there are tags.
    fn check_covers(&self, has_keys: bool) -> Result<(), String> {
        for (key, cover) in [
            ("cover", self.cover),
            ("required_cover", self.required_cover),
        ] {
            if !has_keys && cover == file::Cover::Whole {
                return Err(format!(
                    "peer {:?} has {key} = \"whole\" and no keys: without keys there are no tags",
                    self.name
                ));
            }
        }
        Ok(())
    }
}

impl From<file::Cover> for Cover {
    fn from(cover: file::Cover) -> Cover {
        match cover {
            file::Cover::Headers => Cover::Headers,
            file::Cover::Whole => Cover::Whole,
        }
    }
}

impl SignalAddress {
    fn socket(&self) -> SocketAddr {
        match self {
            SignalAddress::WithPort(address) => *address,
            SignalAddress::Plain(address) => SocketAddr::new(*address, SIGNAL_PORT),
        }
    }
}

/// Returns the paths on which copies of a flow are sent.
fn paths_of(entry: &Send, paths: &BTreeMap<PathId, PathConfig>) -> Result<PathSet, String> {
    let mut used = PathSet::EMPTY;
    for number in &entry.paths {
        let (path, description) = described(*number, paths)?;
        if entry.transparent && description.remote.is_ipv6() {
            return Err(format!(
                "a transparent flow needs paths with IPv4 next hops; {path} has IPv6"
            ));
        }
        used = used.with(path);
    }
    if used.len() == MAX_PATHS {
        return Err(format!(
            "at most {} paths replicate at once: the policy code of all eight is reserved for stop",
            MAX_PATHS - 1
        ));
    }
    Ok(used)
}

/// Returns the path of this number with its description.
fn described(
    number: u8,
    paths: &BTreeMap<PathId, PathConfig>,
) -> Result<(PathId, &PathConfig), String> {
    let path = path_of(number)?;
    match paths.get(&path) {
        Some(description) => Ok((path, description)),
        None => Err(format!("{path} is used here and described in no [[path]]")),
    }
}

fn path_of(number: u8) -> Result<PathId, String> {
    PathId::from_number(number)
        .ok_or_else(|| format!("paths are numbered 1 to {MAX_PATHS}, not {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::generate_key;
    use hawser_shim::DEFAULT_PORT;

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
        parse(&Source::of(Path::new("edge.toml"), text))
    }

    fn refusal(change: impl Fn(&str) -> String) -> String {
        parse_edge(&change(EDGE)).unwrap_err().to_string()
    }

    #[test]
    fn a_whole_configuration() {
        let config = parse_edge(EDGE).unwrap();
        let flow = FlowId::try_from(7).unwrap();
        assert_eq!(config.port, DEFAULT_PORT);
        assert_eq!(config.management_ports, [22]);
        assert_eq!(config.paths.len(), 2);
        assert_eq!(config.flows.send[&flow].policy.code, PolicyCode(0b11));
        assert_eq!(config.flows.send[&flow].label, flow);
        let rules = &config.flows.send_selectors[&"10.0.2.0/24".parse().unwrap()];
        assert_eq!(rules[0].ports.as_ref().unwrap().destination, 5000..=5010);
    }

    #[test]
    fn refusals_name_the_line_and_what_would_be_right() {
        let cases: [(&str, &str, &str); 21] = [
            (
                "[node]",
                "[node]\nreporters = [\"root\", \"no such user\"]",
                "line 2: reporters: this machine has no user \"no such user\"",
            ),
            (
                "[node]",
                "[node]\nmax_age_ms = 0",
                "line 2: max_age_ms is at least 100",
            ),
            (
                "[node]",
                "[node]\nmax_age_ms = 99",
                "line 2: max_age_ms is at least 100",
            ),
            (
                "authenticate = false",
                "authenticate = false\ncover = \"whole\"",
                "has cover = \"whole\" and no keys",
            ),
            (
                "authenticate = false",
                "authenticate = false\nrequired_cover = \"whole\"",
                "has required_cover = \"whole\" and no keys",
            ),
            (
                "[node]",
                "[node]\nmanagement_ports = [0]",
                "line 2: management_ports holds up to 8 ports",
            ),
            (
                "[node]",
                "[node]\nmanagement_ports = [1, 2, 3, 4, 5, 6, 7, 8, 9]",
                "holds up to 8 ports",
            ),
            (
                "number = 2",
                "number = 9",
                "line 16: paths are numbered 1 to 8, not 9",
            ),
            (
                "number = 2",
                "number = 1",
                "line 16: path 1 is described twice",
            ),
            (
                "interface = \"path2\"",
                "interface = \"path1\"",
                "line 16: path 1 leaves by path1 too",
            ),
            (
                "interface = \"path2\"",
                "interface = \"an-interface-of-20b\"",
                "has 1 to 15 bytes",
            ),
            (
                "local = \"fd00::1\"",
                "local = \"fd00::2\"",
                "they are the same",
            ),
            (
                "paths = [1, 2]",
                "paths = [1, 3]",
                "line 22: path 3 is used here and described in no [[path]]",
            ),
            (
                "remote = \"fd00::2\"",
                "remote = \"10.1.2.2\"",
                "line 16: local and remote must both be IPv4",
            ),
            (
                "peer = \"egress\"",
                "peer = \"other\"",
                "line 22: no [[peer]] is called \"other\"",
            ),
            (
                "authenticate = false",
                "",
                "line 6: peer \"egress\" has no keys",
            ),
            (
                "10.0.2.0/24",
                "10.0.2.0/33",
                "destination \"10.0.2.0/33\" is not a prefix",
            ),
            (
                "[5000, 5010]",
                "[5010, 5000]",
                "the first is above the last",
            ),
            (
                "protocol = \"tcp\", ",
                "",
                "ports need protocol = \"tcp\" or \"udp\"",
            ),
            (
                "transit = [\"source0\"]",
                "",
                "neither transit nor local names an interface",
            ),
            (
                "name = \"ingress\"",
                "name = \"../etc\"",
                "line 2: name must consist of letters",
            ),
        ];
        for (from, to, expected) in cases {
            let message = refusal(|text| text.replacen(from, to, 1));
            assert!(message.contains(expected), "{to}: {message}");
        }
    }

    #[test]
    fn what_a_node_leaves_is_found_without_the_rest_of_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("edge.toml");
        let text = "[node]\nname = \"edge\"\nlocal = [\"eth0\"]\nunknown = 1\n[[peer]]\nkeys = 3\n";
        std::fs::write(&file, text).unwrap();
        let remains = Remains::read(&file).unwrap();
        assert_eq!(
            remains.status_file(),
            Path::new("/run/hawser/agent/edge/status.json")
        );
        assert_eq!(remains.interfaces, ["eth0"]);
        std::fs::write(&file, "[node]\nname = \"../edge\"\n").unwrap();
        assert!(Remains::read(&file).is_err());
        assert_eq!(
            parse_edge(EDGE).unwrap().remains(),
            remains_of(EDGE),
            "as the whole file says"
        );
    }

    fn remains_of(text: &str) -> Remains {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("edge.toml");
        std::fs::write(&file, text).unwrap();
        Remains::read(&file).unwrap()
    }

    #[test]
    fn pins_are_found_where_an_agent_without_the_key_leaves_them() {
        let all = remains_of(EDGE).all_pins();
        for default in file::DEFAULT_PINS {
            assert!(all.contains(&Path::new(default).join("ingress")), "{all:?}");
        }
        let given = EDGE.replacen("[node]", "[node]\npins = \"/sys/fs/bpf/other\"", 1);
        let all = remains_of(&given).all_pins();
        assert_eq!(all, [Path::new("/sys/fs/bpf/other/ingress")]);
    }

    #[test]
    fn cover_and_required_cover_are_set_apart() {
        let directory = tempfile::tempdir().unwrap();
        generate_key(&directory.path().join("pair.key")).unwrap();
        let file = directory.path().join("edge.toml");
        for (keys, cover, required) in [
            ("", Cover::Headers, Cover::Headers),
            ("cover = \"whole\"", Cover::Whole, Cover::Headers),
            ("required_cover = \"whole\"", Cover::Headers, Cover::Whole),
        ] {
            let keys = format!("keys = {{ slot0 = \"pair.key\" }}\n{keys}");
            std::fs::write(&file, EDGE.replace("authenticate = false", &keys)).unwrap();
            let config = Config::read(&file).unwrap();
            let peer = &config.peers["egress"];
            assert_eq!(
                (
                    peer.sealed.as_ref().unwrap().2,
                    peer.accepted.required_cover
                ),
                (cover, required),
                "{keys}"
            );
        }
    }

    #[test]
    fn unknown_keys_and_wrong_types_show_their_place() {
        let message = refusal(|text| text.replace("transit =", "transits ="));
        assert!(
            message.contains("transits") && message.contains("line 4"),
            "{message}"
        );
        let message = refusal(|text| text.replace("flow = 7", "flow = 1024"));
        assert!(message.contains("must be below 1024"), "{message}");
        let message = refusal(|text| text.replace("\"tcp\"", "\"sctp\""));
        assert!(message.contains("a protocol is"), "{message}");
    }

    const CONTROLLED: &str = r#"
[controller]
urls = ["https://192.0.2.1:14750", "https://controller.example:14750"]
interfaces = ["control0"]
signals = "192.0.2.7"
"#;

    fn controlled() -> String {
        EDGE.split("[[send]]").next().unwrap().to_owned() + CONTROLLED
    }

    #[test]
    fn a_controller_takes_the_place_of_flows() {
        let config = parse_edge(&controlled()).unwrap();
        let controller = config.controller.unwrap();
        assert_eq!(controller.urls.len(), 2);
        assert_eq!(
            controller.signals,
            Some(SocketAddr::from(([192, 0, 2, 7], SIGNAL_PORT)))
        );
        assert_eq!(controller.state, Path::new("/var/lib/hawser/agent/ingress"));
        assert_eq!(config.state, Path::new("/run/hawser/agent"));
        // The only peer is at the other end of every path.
        assert!(
            config
                .paths
                .values()
                .all(|path| path.peer.as_deref() == Some("egress"))
        );

        let elsewhere = controlled().replace("[node]", "[node]\nstate = \"/srv/node\"");
        assert_eq!(
            parse_edge(&elsewhere).unwrap().controller.unwrap().state,
            Path::new("/srv/node/ingress")
        );
    }

    #[test]
    fn uplinks_are_interfaces_by_name_or_by_its_beginning() {
        let named = |names: &str| {
            let uplinks = format!("[node]\nuplinks = {names}");
            parse_edge(&controlled().replacen("[node]", &uplinks, 1))
        };
        let uplinks = named(r#"["wwan*", "eth1"]"#).unwrap().uplinks;
        for (name, is_uplink) in [
            ("wwan0", true),
            ("eth1", true),
            ("eth11", false),
            ("wlan0", false),
        ] {
            assert_eq!(uplinks.contains(name), is_uplink, "{name}");
        }
        for names in [
            r#"["*"]"#,
            r#"["w*n"]"#,
            r#"[""]"#,
            r#"["an-interface-of-20b"]"#,
        ] {
            let message = named(names).unwrap_err().to_string();
            assert!(message.contains("line 2: uplinks: "), "{message}");
        }
        let message = refusal(|text| text.replacen("[node]", "[node]\nuplinks = [\"eth1\"]", 1));
        assert!(message.contains("there is no [controller]"), "{message}");
    }

    #[test]
    fn a_path_of_the_file_keeps_its_number_and_its_interface() {
        let mut config = parse_edge(&controlled()).unwrap();
        let written = config.paths.clone();
        let path = |interface: &str| PathConfig {
            interface: interface.to_owned(),
            local: Some([10, 3, 1, 1].into()),
            remote: [10, 3, 1, 2].into(),
            next_hop: None,
            mtu_bytes: None,
            peer: Some("egress".to_owned()),
            discovered: true,
        };
        let number = |number| PathId::from_number(number).unwrap();
        let paths = [(1, "wwan0"), (3, "path2"), (4, "wwan1")];
        let paths = paths.map(|(of, interface)| (number(of), path(interface)));
        config.set_discovered(paths.into());
        assert_eq!(config.discovered(), [(number(4), path("wwan1"))].into());
        config.set_discovered(BTreeMap::new());
        assert_eq!(config.paths, written);
    }

    #[test]
    fn what_does_not_go_with_a_controller_is_refused() {
        let both = format!("{EDGE}{CONTROLLED}");
        let cases = [
            (
                both,
                "remove either [controller] or [[send]] and [[receive]]",
            ),
            (
                controlled().replace("interfaces = [\"control0\"]\n", ""),
                "give both or neither",
            ),
            (
                controlled().replace("https://192.0.2.1", "http://192.0.2.1"),
                "https://HOST:PORT",
            ),
            (
                controlled().replace("\"192.0.2.7\"", "\"here\""),
                "signals is an address",
            ),
            (
                controlled().replace("name = \"ingress\"", "name = \"in_gress\""),
                "is not a valid name",
            ),
            (
                controlled().replace("path2", "path1"),
                "path 1 leaves by path1 too",
            ),
            (
                controlled().replace("number = 2", "number = 2\npeer = \"far\""),
                "no [[peer]] is called \"far\"",
            ),
        ];
        for (text, expected) in cases {
            let message = parse_edge(&text).unwrap_err().to_string();
            assert!(message.contains(expected), "{expected}: {message}");
        }
    }

    #[test]
    fn a_narrow_prefix_does_not_hide_the_flows_of_a_wide_one() {
        let wide = "\n[[send]]\nflow = 8\npeer = \"egress\"\nselect = { destination = \"10.0.0.0/8\" }\npaths = [1]\n";
        let config = parse_edge(&format!("{EDGE}{wide}")).unwrap();
        let flows = |prefix: &str| -> Vec<u16> {
            config.flows.send_selectors[&prefix.parse().unwrap()]
                .iter()
                .map(|rule| rule.flow.into())
                .collect()
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
        assert!(
            parse_edge(&text)
                .unwrap_err()
                .to_string()
                .contains("at most 7 paths")
        );
    }
}
