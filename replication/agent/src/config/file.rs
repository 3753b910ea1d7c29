use super::select::Selector;
use hawser_io::sysctl;
use hawser_shim::{DEFAULT_PORT, echo};
use hawser_units::FlowId;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
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

/// The part of a file that says where a node leaves what outlives its agent.
#[derive(Deserialize)]
pub(super) struct RemainsOnly {
    pub(super) node: Spanned<RemainsOfNode>,
}

/// The keys of [`Node`] that [`RemainsOnly`] needs.
#[derive(Deserialize)]
pub(super) struct RemainsOfNode {
    pub(super) name: String,
    #[serde(default)]
    pub(super) transit: Vec<String>,
    #[serde(default)]
    pub(super) local: Vec<String>,
    pub(super) state: Option<PathBuf>,
    #[serde(default = "default_pins")]
    pub(super) pins: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    /// Letters, digits and dashes.
    pub(super) name: String,
    /// UDP port of replicas, the same on both nodes of a pair.
    #[serde(default = "default_port")]
    pub(super) port: u16,
    /// Interfaces whose transit traffic is replicated in XDP.
    #[serde(default)]
    pub(super) transit: Vec<String>,
    /// Interfaces on which this node's own traffic leaves, to be replicated at TC.
    #[serde(default)]
    pub(super) local: Vec<String>,
    /// Interfaces of which a controller may make paths. `*` at the end stands for any characters.
    #[serde(default)]
    pub(super) uplinks: Vec<String>,
    /// Interfaces on which viewers' requests arrive, to be watched.
    #[serde(default)]
    pub(super) watch: Vec<String>,
    /// Whether all interfaces use the slower generic mode (true) or native XDP (false). If not
    /// given, each interface uses the best mode that works for it.
    pub(super) generic_xdp: Option<bool>,
    /// Directory of the status file.
    pub(super) state: Option<PathBuf>,
    /// Directory in a bpf file system.
    #[serde(default = "default_pins")]
    pub(super) pins: PathBuf,
    /// The largest delay of a tagged copy after the fastest one, milliseconds.
    #[serde(default = "default_max_age_ms")]
    pub(super) max_age_ms: u32,
    /// The time after which a copy that has not arrived counts as missing, milliseconds.
    #[serde(default = "default_arrival_deadline_ms")]
    pub(super) arrival_deadline_ms: u64,
    /// UDP port on which nodes measure round-trip times, the same on both nodes of a pair.
    #[serde(default = "default_echo_port")]
    pub(super) echo_port: u16,
    /// TCP ports through which this node is managed. Packets that it sends from them are replicated
    /// only if a flow selects source ports.
    #[serde(default = "default_management_ports")]
    pub(super) management_ports: Vec<u16>,
    /// Loopback address at which metrics are served.
    pub(super) metrics: Option<SocketAddr>,
    /// File to which judgements and policy changes are written.
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

/// The bpf file system of the package's service, which runs without root.
const SERVICE_BPF: &str = "/run/hawser/bpf";

/// The places of pins if the file names none: of the package's service, and of an agent that root starts where the
/// service's bpf file system does not exist.
pub(super) const DEFAULT_PINS: [&str; 2] = ["/run/hawser/bpf/agent", "/sys/fs/bpf/hawser"];

fn default_pins() -> PathBuf {
    let [of_service, of_root] = DEFAULT_PINS;
    match sysctl::is_in_bpf_file_system(Path::new(SERVICE_BPF)) {
        Ok(true) => of_service.into(),
        _ => of_root.into(),
    }
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
    /// The name that the node has in its own configuration, if it differs.
    pub(super) node: Option<String>,
    /// Files with a key for each slot. A receiver accepts both keys.
    #[serde(default)]
    pub(super) keys: Keys,
    /// The slot whose key a sender uses.
    #[serde(default)]
    pub(super) send_slot: u8,
    /// The part of a packet that the tags of packets to the peer cover.
    #[serde(default)]
    pub(super) cover: Cover,
    /// The least part of a packet that the tags of packets from the peer must cover.
    #[serde(default)]
    pub(super) required_cover: Cover,
    /// If false, replicas carry no tags, and any host that reaches this node can forge them.
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
    /// This node's address on the path. The interface's current address if not given.
    pub(super) local: Option<IpAddr>,
    /// The peer's address on the path.
    pub(super) remote: IpAddr,
    /// The next hop. Taken from the routing table if not given.
    pub(super) next_hop: Option<IpAddr>,
    /// The peer at the other end. Required if there are several peers.
    pub(super) peer: Option<String>,
    /// The largest packet on the path, bytes. The interface's MTU if not given.
    pub(super) mtu_bytes: Option<u16>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Send {
    /// This node's number for the flow, 0 to 1023.
    pub(super) flow: FlowId,
    /// The receiving node's number for the flow. This node's number if not given.
    pub(super) label: Option<FlowId>,
    pub(super) peer: String,
    /// Selects the packets of the flow.
    pub(super) select: Selector,
    /// Numbers of the paths on which copies are sent. If empty, packets take the default route, as
    /// without an agent.
    pub(super) paths: Vec<u8>,
    /// If true, packets are copied unchanged. Requires IPv4 and adjacent hops.
    #[serde(default)]
    pub(super) transparent: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Receive {
    /// This node's number for the flow, 0 to 1023, which the sender uses as label.
    pub(super) flow: FlowId,
    pub(super) peer: String,
    /// Selects the packets of a transparent flow.
    pub(super) transparent: Option<Selector>,
}

/// An interface that the agent creates for this node's own traffic, and the routes through it and
/// around it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Device {
    /// Name of the interface. No other program may create an interface of this name.
    #[serde(default = "default_device")]
    pub(super) name: String,
    /// This node's inner addresses, at most one of each IP version.
    pub(super) addresses: Vec<IpAddr>,
    /// The prefixes that are routed to the interface, by peer.
    pub(super) routes: BTreeMap<String, Vec<String>>,
    /// Numbers of the paths that the traffic takes while no agent runs, the preferred one first.
    /// All paths to the peer if not given, none if empty.
    pub(super) fallback: Option<Vec<u8>>,
    /// The largest packet, bytes. If not given, the largest that fits every path with the outer
    /// headers; a path whose MTU is not given is assumed to have 1500 bytes.
    pub(super) mtu_bytes: Option<u16>,
}

fn default_device() -> String {
    "hawser0".to_owned()
}

/// The controller, which assigns the flows instead of `[[send]]` and `[[receive]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Controller {
    /// `https://HOST:PORT` of every instance.
    pub(super) urls: Vec<String>,
    /// Interfaces on which in-band signals are accepted.
    #[serde(default)]
    pub(super) interfaces: Vec<String>,
    /// The address at which this node receives signals.
    pub(super) signals: Option<SignalAddress>,
    /// Directory of the certificate, the keys and the last assignment.
    pub(super) state: Option<PathBuf>,
    /// The time after which the node replaces the key from which those of its pairs are derived.
    #[serde(default = "default_new_key_every_hours")]
    pub(super) new_key_every_hours: u32,
}

fn default_new_key_every_hours() -> u32 {
    30 * 24
}

/// An address, with a port if it is not the default one.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "signals is an address such as 192.0.2.1, or 192.0.2.1:14749"
)]
pub(super) enum SignalAddress {
    WithPort(SocketAddr),
    Plain(IpAddr),
}
