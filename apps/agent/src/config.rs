//! The configuration of a node: a valid description, parsed once from its file.

mod build;
mod file;
mod keys;
mod select;

pub use hawser_io::config::ConfigError;
pub use keys::generate_key;
pub(crate) use keys::parse_key;

use crate::flows::Flows;
use hawser_bpf::{Prefix, XdpMode};
use hawser_client::Controller;
use hawser_io::config::Source;
use hawser_units::PathId;
use hawser_wire::{Cover, Key, KeyRing, KeySlot, SealKey, SealRing};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A node and what it does. Everything in it is consistent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The node's name; state and pins are kept under it.
    pub name: String,
    /// UDP port of replicas, in and out.
    pub port: u16,
    /// UDP port on which nodes measure the round-trip times of paths.
    pub echo_port: u16,
    /// Interfaces whose transit traffic is replicated.
    pub transit: Vec<String>,
    /// Interfaces by which this node's own traffic leaves, to be replicated; the device is among them.
    pub local: Vec<String>,
    /// TCP ports that this node is managed by; what it sends from them is replicated only where source ports are selected.
    pub management_ports: Vec<u16>,
    /// Interfaces by which viewers' requests come in.
    pub watch: Vec<String>,
    /// How XDP programs are attached.
    pub xdp: XdpMode,
    /// Where the status is written.
    pub state: PathBuf,
    /// A bpf file system, for what must outlive the agent.
    pub pins: PathBuf,
    /// Where is kept what must outlive a reboot.
    pub lasting: PathBuf,
    /// How much longer than the fastest a tagged copy may take.
    pub max_age: Duration,
    /// When a copy that has not arrived counts as missing.
    pub arrival_deadline: Duration,
    /// Where judgements and changes of policies are written.
    pub trace: Option<PathBuf>,
    /// The paths of this node.
    pub paths: BTreeMap<PathId, PathConfig>,
    /// The nodes at the other ends, by name.
    pub peers: BTreeMap<String, Peer>,
    /// What is done for which traffic; nothing when there is a controller, which says so later.
    pub flows: Flows,
    /// Who says which flows there are.
    pub controller: Option<ControllerConfig>,
    /// The interface that the agent makes itself.
    pub device: Option<DeviceConfig>,
}

/// One path between this node and its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathConfig {
    /// The interface that it leaves and comes in by.
    pub interface: String,
    /// This node's address on it.
    pub local: IpAddr,
    /// The peer's address on it.
    pub remote: IpAddr,
    /// The router; asked of the routing table when not given.
    pub next_hop: Option<IpAddr>,
    /// Largest outer packet; the interface's MTU when not given.
    pub mtu_bytes: Option<u16>,
    /// Whose the other end is, as far as that is known.
    pub peer: Option<String>,
}

/// The secret that is shared with a node at the other end of paths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peer {
    /// The keys that are accepted from it; none: anything is.
    pub ring: KeyRing,
    /// The key that is used toward it, and its slot there.
    pub key: Option<(KeySlot, Key)>,
    /// Keys that replicas from the peer are checked with: those of its direction.
    pub accepted: SealRing,
    /// Key that replicas to the peer are sealed with: that of this node's direction.
    pub sealed: Option<(KeySlot, SealKey, Cover)>,
}

/// Where the controller is, and what this node lets it do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerConfig {
    /// `https://HOST:PORT` of every instance.
    pub urls: Vec<Controller>,
    /// Interfaces by which in-band signals may come in.
    pub interfaces: Vec<String>,
    /// Where signals reach this node.
    pub signals: Option<SocketAddr>,
    /// Where this node's certificate, key and last assignment are kept.
    pub state: PathBuf,
}

/// An interface that the agent makes for this node's own traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Its name.
    pub name: String,
    /// Largest packet.
    pub mtu_bytes: u16,
    /// This node's addresses on the inside.
    pub addresses: Vec<IpAddr>,
    /// Destinations that are routed to the interface.
    pub routes: Vec<DeviceRoute>,
}

/// A destination that is reached by the agent's own interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRoute {
    /// Where to.
    pub destination: Prefix,
    /// The address of this node that packets come from; of the same IP version.
    pub source: IpAddr,
    /// The paths that packets take without an agent, the preferred one first.
    pub fallback: Vec<PathId>,
}

impl Config {
    /// Reads and checks a file. Paths of key files are relative to it.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        file::parse(&Source::read(path)?)
    }

    /// Whether `other` differs in flows, policies and keys alone.
    pub(crate) fn is_same_node(&self, other: &Config) -> bool {
        let without = |config: &Config| Config {
            peers: BTreeMap::new(),
            flows: Flows::default(),
            ..config.clone()
        };
        without(self) == without(other)
    }

    /// The folder of this node's state that ends with the machine.
    pub(crate) fn directory(&self) -> PathBuf {
        self.state.join(&self.name)
    }

    /// Where the status of this node is.
    pub fn status_file(&self) -> PathBuf {
        self.directory().join("status.json")
    }
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
