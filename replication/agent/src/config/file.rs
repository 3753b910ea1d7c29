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
    /// Letters, digits, dashes, underscores; under a controller no underscores, at most 63 characters, and
    /// no dash at either end.
    pub(super) name: String,
    /// The UDP port of replicas, the same on both nodes of a pair.
    #[serde(default = "default_port")]
    pub(super) port: u16,
    /// Interfaces whose transit traffic is replicated.
    #[serde(default)]
    pub(super) transit: Vec<String>,
    /// Interfaces by which this node's own traffic leaves, to be replicated at TC.
    #[serde(default)]
    pub(super) local: Vec<String>,
    /// Under a controller: interfaces of which it makes paths, by name or the beginning of a name and `*`.
    #[serde(default)]
    pub(super) uplinks: Vec<String>,
    /// Under a controller: interfaces on which viewers' requests arrive, to be watched.
    #[serde(default)]
    pub(super) watch: Vec<String>,
    /// `true` forces generic mode on all interfaces, `false` native mode. A change takes effect at the next
    /// start. Default: the best mode of each interface.
    pub(super) generic_xdp: Option<bool>,
    /// The folder of the status, of `device.json` (addresses and routes of a `[device]` in the kernel) and
    /// of `parameters.json` (changed reverse path filters), all meaningless after the next boot, in a
    /// subfolder with the node's name. If it is given and `[controller]` has none, it also holds
    /// `send-clock`, which must outlive a reboot: name a folder on a disk. Default: `/run/hawser/agent`.
    pub(super) state: Option<PathBuf>,
    /// The folder in a bpf file system. Default: `/run/hawser/bpf/agent` if a bpf file system is mounted at
    /// `/run/hawser/bpf`, as by the package's service, else `/sys/fs/bpf/hawser`.
    #[serde(default = "default_pins")]
    pub(super) pins: PathBuf,
    /// How much longer than the fastest copies a tagged copy may take, at least 100. Slower ones are
    /// dropped, because they may be replayed.
    #[serde(default = "default_max_age_ms")]
    pub(super) max_age_ms: u32,
    /// The time after which a copy that has not arrived counts as missing.
    #[serde(default = "default_arrival_deadline_ms")]
    pub(super) arrival_deadline_ms: u64,
    /// The UDP port on which paths are measured, the same on both nodes of a pair. Default: `14751`.
    #[serde(default = "default_echo_port")]
    pub(super) echo_port: u16,
    /// TCP ports through which the node is managed, up to eight: packets from them are not replicated,
    /// unless source ports are selected.
    #[serde(default = "default_management_ports")]
    pub(super) management_ports: Vec<u16>,
    /// The users whose programs may report how their flows fare, besides root and the agent's own user: by
    /// name or number; `"*"` is all.
    #[serde(default)]
    pub(super) reporters: Vec<String>,
    /// A loopback address and port at which metrics are served, such as `"127.0.0.1:9476"`.
    pub(super) metrics: Option<SocketAddr>,
    /// Under a controller: a CSV file with all judgements and decisions and their times, overwritten at
    /// every start.
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

/// A node at the other end of paths.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Peer {
    /// The name used in `[[send]]` and `[[receive]]`; under a controller that of the other node.
    pub(super) name: String,
    /// The name that the node has in its own `[node]`. The names of both nodes are part of the keys of the
    /// two directions: if they do not match, every copy is a tag failure, which the log reports. Default:
    /// as `name`.
    pub(super) node: Option<String>,
    #[serde(default)]
    pub(super) keys: Keys,
    /// The slot whose key a sender uses.
    #[serde(default)]
    pub(super) send_slot: u8,
    /// The part of a packet that the tags sent to the peer cover: its headers and length, or the whole.
    /// With `"whole"`, a copy that is altered on one path does not take the place of the good one.
    #[serde(default)]
    pub(super) cover: Cover,
    /// The least part of a packet that the tags received from the peer must cover; more is always accepted.
    /// `"whole"` rejects the rest (`dropped_partial_tag`): set `cover` at the peer first, with a SIGHUP.
    #[serde(default)]
    pub(super) required_cover: Cover,
    /// `false`: replicas carry no tag, and any host that reaches this node can forge them.
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

/// Files that `hawser keygen FILE` made, mode 600, the same on both nodes. A receiver accepts both
/// slots. Under a controller the nodes make their keys, and the files are left out.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Keys {
    /// The file of the first key.
    pub(super) slot0: Option<PathBuf>,
    /// The file of the second key.
    pub(super) slot1: Option<PathBuf>,
}

/// A path between this node and a peer, at most eight. Under a controller, `uplinks` may replace them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathEntry {
    /// 1 to 8, the same on both nodes.
    pub(super) number: u8,
    /// The interface of the path in both directions. On a node that sends, no other path may use it.
    pub(super) interface: String,
    /// This node's address on the path. Without it, the path follows the address that the interface has.
    /// Default: the interface's.
    pub(super) local: Option<IpAddr>,
    /// The peer's address on the path, which must not change.
    pub(super) remote: IpAddr,
    /// The router toward the peer. The kernel is asked for the route of packets from `local` by
    /// `interface`, so an uplink may have a table of its own (`ip rule add from ...`). Default: from the
    /// routing table.
    pub(super) next_hop: Option<IpAddr>,
    /// The peer at the other end. Without it and with several peers, the path's round-trip time is not
    /// measured. Default: the only one.
    pub(super) peer: Option<String>,
    /// The largest packet on the path. Default: the interface's.
    pub(super) mtu_bytes: Option<u16>,
}

/// A flow that is replicated here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Send {
    /// This node's number for the flow, 0 to 1023.
    pub(super) flow: FlowId,
    /// The receiving node's number. Default: as `flow`.
    pub(super) label: Option<FlowId>,
    /// The name of a `[[peer]]`.
    pub(super) peer: String,
    pub(super) select: Selector,
    /// Numbers of paths, at most seven; `[]` is the default route.
    pub(super) paths: Vec<u8>,
    /// Nothing is added to packets. IPv4 over adjacent hops only.
    #[serde(default)]
    pub(super) transparent: bool,
}

/// A flow whose copies are deduplicated here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Receive {
    /// The sender's `label`, 0 to 1023.
    pub(super) flow: FlowId,
    /// The name of a `[[peer]]`.
    pub(super) peer: String,
    /// The packets of a transparent flow.
    pub(super) transparent: Option<Selector>,
}

/// An interface that the agent creates for this node's own traffic, and the routes through it and
/// around it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Device {
    /// The interface. No other program may create one of this name.
    #[serde(default = "default_device")]
    pub(super) name: String,
    /// This node's inner addresses, at most one of each IP version. The agent puts them on `lo`.
    pub(super) addresses: Vec<IpAddr>,
    /// By peer, the prefixes that are routed to the interface: `{ viewer = ["10.99.0.2/32"] }`.
    pub(super) routes: BTreeMap<String, Vec<String>>,
    /// Numbers of the paths that traffic takes without an agent, the preferred one first; `[]`: none, and
    /// without an agent there is no route. IPv6 needs paths with IPv6 addresses. Default: all paths to the
    /// peer.
    pub(super) fallback: Option<Vec<u8>>,
    /// The largest packet. Default: room on the narrowest path, with 1500 for a path without `mtu_bytes`:
    /// 1444 over IPv4, 1424 over IPv6.
    pub(super) mtu_bytes: Option<u16>,
}

fn default_device() -> String {
    "hawser0".to_owned()
}

/// The controller, which assigns the flows instead of `[[send]]` and `[[receive]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Controller {
    /// `["https://HOST:PORT"]`, every instance of the controller. The agent uses the first that answers.
    pub(super) urls: Vec<String>,
    /// Interfaces on which in-band signals are accepted; none: all signals are ignored.
    #[serde(default)]
    pub(super) interfaces: Vec<String>,
    /// This node's address to which signals are sent, with the port if it is not 14749. Required with
    /// `interfaces`. All other packets to that address and port are dropped.
    pub(super) signals: Option<SignalAddress>,
    /// The folder of the certificate, the node's keys and the last assignment, under the node's name,
    /// readable by the agent's user only. Must outlive a reboot. Default: that of `[node]` if given, else
    /// `/var/lib/hawser/agent`.
    pub(super) state: Option<PathBuf>,
    /// The age at which the node replaces the key pair from which the keys with its peers are derived, 1 to
    /// 8784. Default: `720`.
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
