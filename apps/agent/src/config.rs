//! The configuration of a node: a valid description, parsed once from its file.

mod file;
mod keys;

pub use file::ConfigError;
pub use keys::generate_key;

use hawser_bpf::{Prefix, Rule, XdpMode};
use hawser_units::{FlowId, PathId, PolicyCode};
use hawser_wire::{Key, KeyRing, KeySlot};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A node and what it does. Everything in it is consistent.
#[derive(Debug, Clone)]
pub struct Config {
    /// The node's name; state and pins are kept under it.
    pub name: String,
    /// UDP port of replicas, in and out.
    pub port: u16,
    /// Interfaces whose transit traffic is replicated.
    pub transit: Vec<String>,
    /// Interfaces by which this node's own traffic leaves, to be replicated.
    pub local: Vec<String>,
    /// How XDP programs are attached.
    pub xdp: XdpMode,
    /// Where the status is written.
    pub state: PathBuf,
    /// A bpf file system, for what must outlive the agent.
    pub pins: PathBuf,
    /// When a copy that has not arrived counts as missing.
    pub arrival_deadline: Duration,
    /// The paths of this node.
    pub paths: BTreeMap<PathId, PathConfig>,
    /// The flows that are replicated here.
    pub send: BTreeMap<FlowId, SendConfig>,
    /// Which packets are of which of them.
    pub send_selectors: BTreeMap<Prefix, Vec<Rule>>,
    /// The flows whose copies are eliminated here.
    pub receive: BTreeMap<FlowId, KeyRing>,
    /// Which packets without a shim are copies.
    pub receive_selectors: BTreeMap<Prefix, Vec<Rule>>,
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
}

/// One flow that is replicated.
#[derive(Debug, Clone)]
pub struct SendConfig {
    /// The receiver's number for it.
    pub label: FlowId,
    /// The paths that copies take.
    pub policy: PolicyCode,
    /// The paper's form: nothing is added to packets.
    pub transparent: bool,
    /// What shims are tagged with.
    pub key: Option<(KeySlot, Key)>,
}

impl Config {
    /// Reads and checks a file. Paths of key files are relative to it.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        file::parse(&text, path)
    }

    /// Whether `other` differs in flows, policies and keys alone.
    pub(crate) fn is_same_node(&self, other: &Config) -> bool {
        let fixed = |config: &Config| {
            let Config { name, port, transit, local, xdp, state, pins, arrival_deadline, paths, .. } =
                config.clone();
            (name, port, transit, local, xdp, state, pins, arrival_deadline, paths)
        };
        fixed(self) == fixed(other)
    }

    /// Where the status of this node is.
    pub fn status_file(&self) -> PathBuf {
        self.state.join(&self.name).join("status.json")
    }
}
