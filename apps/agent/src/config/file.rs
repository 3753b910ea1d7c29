use super::Config;
use super::build::Builder;
use super::select::Selector;
use hawser_io::config::{ConfigError, Source};
use hawser_units::FlowId;
use hawser_wire::{DEFAULT_PORT, echo};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) node: Spanned<Node>,
    #[serde(default)]
    pub(super) peer: Vec<Spanned<Peer>>,
    #[serde(default)]
    pub(super) path: Vec<Spanned<PathEntry>>,
    #[serde(default)]
    pub(super) send: Vec<Spanned<Send>>,
    #[serde(default)]
    pub(super) receive: Vec<Spanned<Receive>>,
    pub(super) controller: Option<Spanned<Controller>>,
    pub(super) device: Option<Spanned<Device>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    /// Letters, digits and dashes.
    pub(super) name: String,
    /// UDP port of replicas, the same on both nodes of a pair.
    #[serde(default = "default_port")]
    pub(super) port: u16,
    /// Interfaces whose transit traffic is replicated, in XDP.
    #[serde(default)]
    pub(super) transit: Vec<String>,
    /// Interfaces by which this node's own traffic leaves, to be replicated at TC.
    #[serde(default)]
    pub(super) local: Vec<String>,
    /// Interfaces by which viewers' requests come in, to be watched.
    #[serde(default)]
    pub(super) watch: Vec<String>,
    /// Whether XDP may run in the slower generic mode, for drivers without native XDP.
    #[serde(default)]
    pub(super) generic_xdp: bool,
    /// Where status files are kept.
    pub(super) state: Option<PathBuf>,
    /// A bpf file system.
    #[serde(default = "default_pins")]
    pub(super) pins: PathBuf,
    /// How much longer than the fastest a tagged copy may take, milliseconds.
    #[serde(default = "default_max_age_ms")]
    pub(super) max_age_ms: u32,
    /// When a copy that has not arrived counts as missing, milliseconds.
    #[serde(default = "default_arrival_deadline_ms")]
    pub(super) arrival_deadline_ms: u64,
    /// UDP port on which nodes measure round-trip times, the same on both nodes of a pair.
    #[serde(default = "default_echo_port")]
    pub(super) echo_port: u16,
    /// TCP ports that this node is managed by: what it sends from them is replicated only where source ports are selected.
    #[serde(default = "default_management_ports")]
    pub(super) management_ports: Vec<u16>,
    /// A file to which judgements and changes of policies are written.
    pub(super) trace: Option<PathBuf>,
}

fn default_port() -> u16 {
    DEFAULT_PORT
}

fn default_echo_port() -> u16 {
    echo::DEFAULT_PORT
}

fn default_management_ports() -> Vec<u16> {
    vec![22]
}

fn default_pins() -> PathBuf {
    PathBuf::from("/sys/fs/bpf/hawser")
}

fn default_max_age_ms() -> u32 {
    2_000
}

fn default_arrival_deadline_ms() -> u64 {
    500
}

/// A node at the other end of paths, and the secret shared with it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Peer {
    pub(super) name: String,
    /// The node's own name, where it is called otherwise here.
    pub(super) node: Option<String>,
    /// Files with a key for each slot; a receiver accepts both.
    #[serde(default)]
    pub(super) keys: Keys,
    /// The slot whose key a sender uses.
    #[serde(default)]
    pub(super) send_with: u8,
    /// How much of a packet the tags cover that are sent to the peer.
    #[serde(default)]
    pub(super) cover: Cover,
    /// How much the tags that are accepted from the peer cover at least.
    #[serde(default)]
    pub(super) demand: Cover,
    /// False: replicas carry no tags, and anyone who reaches this node can forge them.
    #[serde(default = "yes")]
    pub(super) authenticate: bool,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Cover {
    /// The headers and the length.
    #[default]
    Headers,
    /// Every byte.
    Whole,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Keys {
    pub(super) slot0: Option<PathBuf>,
    pub(super) slot1: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathEntry {
    /// 1 to 8, the same on both nodes.
    pub(super) number: u8,
    pub(super) interface: String,
    /// This node's address on the path.
    pub(super) local: IpAddr,
    /// The peer's address on the path.
    pub(super) remote: IpAddr,
    /// The router toward it; the routing table's when not given.
    pub(super) next_hop: Option<IpAddr>,
    /// Whose it is; needed when there are several peers.
    pub(super) peer: Option<String>,
    /// Largest packet on the path; the interface's MTU when not given.
    pub(super) mtu_bytes: Option<u16>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Send {
    /// 0 to 1023, this node's number.
    pub(super) flow: FlowId,
    /// The receiving node's number; the same when not given.
    pub(super) label: Option<FlowId>,
    pub(super) peer: String,
    /// Which packets.
    pub(super) select: Selector,
    /// Numbers of the paths that copies take; empty: the default route, as if there were no agent.
    pub(super) paths: Vec<u8>,
    /// Nothing is added to packets; IPv4 over adjacent hops only.
    #[serde(default)]
    pub(super) transparent: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Receive {
    /// 0 to 1023, this node's number, which the sender uses as label.
    pub(super) flow: FlowId,
    pub(super) peer: String,
    /// For a transparent flow: which packets.
    pub(super) transparent: Option<Selector>,
}

/// An interface that the agent makes for this node's own traffic, and the routes to and around it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Device {
    /// Name of the interface. No other program may make one of this name.
    #[serde(default = "default_device")]
    pub(super) name: String,
    /// This node's addresses on the inside, at most one of each IP version.
    pub(super) addresses: Vec<IpAddr>,
    /// By peer: the prefixes that are reached by the interface.
    pub(super) routes: BTreeMap<String, Vec<String>>,
    /// Numbers of the paths that the traffic takes without an agent, the preferred one first; all paths to the peer when
    /// not given, none when empty.
    pub(super) fallback: Option<Vec<u8>>,
    /// Largest packet; what the narrowest path has room for when not given, an interface taken for one of 1500 bytes.
    pub(super) mtu_bytes: Option<u16>,
}

fn default_device() -> String {
    "hawser0".to_owned()
}

/// Who says which flows there are, instead of `[[send]]` and `[[receive]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Controller {
    /// `https://HOST:PORT` of every instance.
    pub(super) urls: Vec<String>,
    /// Interfaces by which in-band signals may come in.
    #[serde(default)]
    pub(super) interfaces: Vec<String>,
    /// Where signals reach this node.
    pub(super) signals: Option<SignalAddress>,
    /// Where certificate, key and the last assignment are kept.
    pub(super) state: Option<PathBuf>,
}

/// An address, and the port if it is not the usual one.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "signals is an address such as 192.0.2.1, or 192.0.2.1:14749"
)]
pub(super) enum SignalAddress {
    WithPort(SocketAddr),
    Plain(IpAddr),
}

/// What a file says.
pub(super) fn parse(source: &Source<'_>) -> Result<Config, ConfigError> {
    Builder { source }.build(source.parse()?)
}
