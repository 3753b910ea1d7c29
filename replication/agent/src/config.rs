//! The configuration of a node, parsed once from its file and valid.

mod build;
mod file;
mod keys;
mod select;

pub use crate::peer::Peer;
pub use hawser_io::config::ConfigError;
pub use keys::generate_key;
pub(crate) use keys::parse_key;

use crate::flows::Flows;
use hawser_client::Controller;
use hawser_io::config::Source;
use hawser_io::interface::name_matches;
use hawser_io::xdp::Wanted;
use hawser_replication_bpf::Prefix;
use hawser_units::{PathId, PathSet};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A node and its flows. All parts of it are consistent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The node's name. State and pins are stored under it.
    pub name: String,
    /// UDP port on which replicas are sent and received.
    pub port: u16,
    /// UDP port on which nodes measure the round-trip times of paths.
    pub echo_port: u16,
    /// Interfaces whose transit traffic is replicated.
    pub transit: Vec<String>,
    /// Interfaces on which this node's own traffic leaves, to be replicated. The agent's own
    /// interface is among them.
    pub local: Vec<String>,
    /// TCP ports through which this node is managed. Packets that it sends from them are replicated
    /// only if a flow selects source ports.
    pub management_ports: Vec<u16>,
    /// The interfaces of which the controller may make paths to other nodes.
    pub uplinks: UplinkNames,
    /// Interfaces on which viewers' requests arrive.
    pub watch: Vec<String>,
    /// The XDP mode of the interfaces.
    pub xdp: Wanted,
    /// Directory of the status file.
    pub state: PathBuf,
    /// Directory in a bpf file system, for objects that must outlive the agent.
    pub pins: PathBuf,
    /// Directory of the state that must survive a reboot.
    pub persistent_state: PathBuf,
    /// The largest delay of a tagged copy after the fastest one. Copies that take longer are
    /// dropped.
    pub max_age: Duration,
    /// The time after which a copy that has not arrived counts as missing.
    pub arrival_deadline: Duration,
    /// The users whose programs may report how their flows fare.
    pub reporters: Reporters,
    /// The loopback address at which metrics are served.
    pub metrics: Option<SocketAddr>,
    /// File to which judgements and policy changes are written.
    pub trace: Option<PathBuf>,
    /// The paths of this node.
    pub paths: BTreeMap<PathId, PathConfig>,
    /// The nodes at the other ends of the paths, by name.
    pub peers: BTreeMap<String, Peer>,
    /// The flows. Empty under a controller, which assigns them later.
    pub flows: Flows,
    /// The controller that assigns the flows.
    pub controller: Option<ControllerConfig>,
    /// The interface that the agent creates.
    pub device: Option<DeviceConfig>,
}

/// One path between this node and its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathConfig {
    /// The interface on which packets of the path are sent and received.
    pub interface: String,
    /// This node's address on it. The interface's current address if not given.
    pub local: Option<IpAddr>,
    /// The peer's address on it.
    pub remote: IpAddr,
    /// The next hop. Taken from the routing table if not given.
    pub next_hop: Option<IpAddr>,
    /// The largest outer packet, bytes. The interface's MTU if not given.
    pub mtu_bytes: Option<u16>,
    /// The peer at the other end of the path, if known.
    pub peer: Option<String>,
    /// Whether the controller has made the path of this node's uplinks. It is not in the file then.
    pub discovered: bool,
}

/// The names of the interfaces of which the controller may make paths. A name with `*` at its end
/// stands for all that begin like it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UplinkNames(Vec<String>);

impl UplinkNames {
    /// Returns whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the name of an interface is among them.
    pub(crate) fn contains(&self, interface: &str) -> bool {
        let mut names = self.0.iter();
        names.any(|name| name_matches(name, interface))
    }
}

/// The users whose programs may report how their flows fare, besides root and the agent's own user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reporters {
    pub(crate) all: bool,
    pub(crate) users: BTreeSet<u32>,
}

impl Reporters {
    /// Returns whether programs of a user may report.
    pub(crate) fn admit(&self, user: u32) -> bool {
        let is_own = user == 0 || user == nix::unistd::geteuid().as_raw();
        is_own || self.all || self.users.contains(&user)
    }
}

/// The controller's addresses, and the interfaces on which it may send signals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerConfig {
    /// `https://HOST:PORT` of every instance.
    pub urls: Vec<Controller>,
    /// Interfaces on which in-band signals are accepted.
    pub interfaces: Vec<String>,
    /// The address at which this node receives signals.
    pub signals: Option<SocketAddr>,
    /// Directory of this node's certificate, keys and last assignment.
    pub state: PathBuf,
    /// The age at which the node replaces the key from which those of its pairs are derived.
    pub key_lifetime: Duration,
}

/// An interface that the agent creates for this node's own traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceConfig {
    /// The name of the interface.
    pub name: String,
    /// The largest packet, bytes.
    pub mtu_bytes: u16,
    /// This node's inner addresses.
    pub addresses: Vec<IpAddr>,
    /// Destinations that are routed to the interface.
    pub routes: Vec<DeviceRoute>,
}

/// The least MTU with which the kernel uses IPv6 on an interface (RFC 8200, section 5).
const LEAST_IPV6_MTU: u16 = 1280;

impl DeviceConfig {
    /// Returns the MTU of the interface, bytes, while packets of up to `narrowest` bytes fit all
    /// paths.
    pub(crate) fn mtu_for(&self, narrowest: u16) -> u16 {
        let has_ipv6 = self.addresses.iter().any(IpAddr::is_ipv6);
        let least = if has_ipv6 { LEAST_IPV6_MTU } else { 0 };
        self.mtu_bytes.min(narrowest.max(least))
    }
}

/// A destination that is routed to the agent's own interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRoute {
    /// The destination.
    pub destination: Prefix,
    /// The source address of the packets. Has the IP version of the destination.
    pub source: IpAddr,
    /// The paths that packets take while no agent runs, the preferred one first.
    pub fallback: Vec<PathId>,
}

impl Config {
    /// Reads and checks a file. Relative paths of key files are resolved against its directory.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        build::parse(&Source::read(path)?)
    }

    /// Returns whether `other` differs in flows, policies and keys only.
    pub(crate) fn is_same_node(&self, other: &Config) -> bool {
        let without = |config: &Config| Config {
            peers: BTreeMap::new(),
            flows: Flows::default(),
            ..config.clone()
        };
        without(self) == without(other)
    }

    /// Replaces the paths that the controller has made. Those of the file keep their numbers and their
    /// interfaces.
    pub(crate) fn set_discovered(&mut self, paths: BTreeMap<PathId, PathConfig>) {
        self.paths.retain(|_, path| !path.discovered);
        for (number, path) in paths {
            let mut others = self.paths.values();
            if !others.any(|other| other.interface == path.interface) {
                self.paths.entry(number).or_insert(path);
            }
        }
    }

    /// Returns the paths that the controller has made.
    pub(crate) fn discovered(&self) -> BTreeMap<PathId, PathConfig> {
        let paths = self.paths.iter().filter(|(_, path)| path.discovered);
        paths
            .map(|(number, path)| (*number, path.clone()))
            .collect()
    }

    /// Returns the paths that the node may have, or those that it has.
    pub(crate) fn possible_paths(&self) -> PathSet {
        if self.uplinks.is_empty() {
            self.paths.keys().copied().collect()
        } else {
            PathId::all().collect()
        }
    }

    /// Returns whether there are interfaces whose traffic is replicated.
    pub(crate) fn replicates(&self) -> bool {
        !(self.transit.is_empty() && self.local.is_empty())
    }

    /// Returns the directory of the node's state that does not survive a reboot.
    pub(crate) fn directory(&self) -> PathBuf {
        self.state.join(&self.name)
    }

    /// Returns the path of this node's status file.
    pub fn status_file(&self) -> PathBuf {
        status_file(&self.directory())
    }

    /// Returns the path of the socket at which applications report how their flows fare. It is not in the
    /// directory of the node, which others may not enter.
    pub fn experience_socket(&self) -> PathBuf {
        self.state.join(format!("{}.sock", self.name))
    }

    /// Returns where the node leaves what outlives its agent.
    pub(crate) fn remains(&self) -> Remains {
        Remains {
            name: self.name.clone(),
            state: self.state.clone(),
            pins: self.pins.clone(),
            interfaces: self.local.iter().chain(&self.transit).cloned().collect(),
        }
    }
}

/// Where a node leaves what outlives its agent, from keys of `[node]` in a configuration file. Neither the rest of the
/// file nor the files that it names have to be valid or readable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remains {
    pub(crate) name: String,
    /// Parent directory of the state that does not survive a reboot.
    state: PathBuf,
    /// Parent directory of the pins.
    pins: PathBuf,
    /// The interfaces whose traffic is replicated.
    pub(crate) interfaces: Vec<String>,
}

impl Remains {
    /// Reads `[node]` of a configuration file.
    ///
    /// # Errors
    /// The file cannot be read, is no TOML, names no node, or one of these keys has a value of another type.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        build::remains(&Source::read(path)?)
    }

    /// Returns the directory of the node's state that does not survive a reboot.
    pub(crate) fn directory(&self) -> PathBuf {
        self.state.join(&self.name)
    }

    /// Returns the path of the node's status file.
    pub(crate) fn status_file(&self) -> PathBuf {
        status_file(&self.directory())
    }

    /// Returns the directory of the node's pins.
    pub(crate) fn pins(&self) -> PathBuf {
        self.pins.join(&self.name)
    }

    /// Returns the directories where an agent of this node may have left pins: with the default of `pins` it depends
    /// on who started the agent.
    pub(crate) fn all_pins(&self) -> Vec<PathBuf> {
        let defaults = file::DEFAULT_PINS.map(PathBuf::from);
        match defaults.contains(&self.pins) {
            true => defaults.map(|place| place.join(&self.name)).to_vec(),
            false => vec![self.pins()],
        }
    }
}

fn status_file(directory: &Path) -> PathBuf {
    directory.join("status.json")
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} paths, ", self.name, self.paths.len())?;
        match &self.controller {
            Some(_) => write!(f, "flows from the controller"),
            None => write!(
                f,
                "{} flows sent, {} received",
                self.flows.send.len(),
                self.flows.receive.len()
            ),
        }
    }
}
