//! The environment of a node: the bpf file system, the resolution of paths by the routing table,
//! and settings of the machine that prevent replication or deduplication.

use crate::config::{Config, PathConfig, Remains};
use anyhow::{Context, Result, ensure};
use hawser_io::interface::{Described, LinkHeader};
use hawser_io::netlink::{self, XdpFeatures};
use hawser_io::{interface, sysctl};
use hawser_replication_bpf::{Prefix, Receiver, ReceiverOptions, Rule, SendPath, Sender};
use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::{info, warn};

/// The time within which all copies of a transparent packet arrive (the paper's threshold).
const TRANSPARENT_WITHIN: Duration = Duration::from_secs(1);

/// The state of the interfaces that a node uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interfaces(BTreeMap<String, Option<State>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    number: u32,
    /// Whether it is up and has a carrier.
    is_running: bool,
    found: Found,
}

/// The properties of an interface that decide the mode in which it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// The abilities of its driver. `None` if the kernel does not tell (before Linux 6.3).
    pub(super) features: Option<XdpFeatures>,
    pub(super) is_veth: bool,
    pub(super) is_tunnel: bool,
    pub(super) strips_vlan_tags: bool,
    pub(super) header: LinkHeader,
}

impl Interfaces {
    pub(super) fn read(config: &Config) -> Result<Self> {
        let all = interface::all().context("cannot read the state of the interfaces")?;
        let of_paths = config.paths.values().map(|path| &path.interface);
        let named = [&config.transit, &config.local, &config.watch]
            .into_iter()
            .flatten();
        let signalled = config
            .controller
            .iter()
            .flat_map(|controller| &controller.interfaces);
        let names = of_paths.chain(named).chain(signalled);
        let state = |name: &String| {
            let mut named = all.iter().filter(|interface| interface.name == *name);
            let interface = named.next()?;
            Some(State {
                number: interface.index,
                is_running: interface.is_running,
                found: Found::of(interface, &all),
            })
        };
        Ok(Interfaces(
            names.map(|name| (name.clone(), state(name))).collect(),
        ))
    }

    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.state(name).map(|state| state.number)
    }

    /// Returns the index and the properties of an interface.
    pub(super) fn device(&self, name: &str) -> Option<(u32, Found)> {
        self.state(name).map(|state| (state.number, state.found))
    }

    /// Returns whether an interface leads into a tunnel.
    pub(super) fn is_tunnel(&self, name: &str) -> bool {
        self.state(name).is_some_and(|state| state.found.is_tunnel)
    }

    /// Returns the name of the interface of this index.
    pub(super) fn name(&self, number: u32) -> Option<&str> {
        let mut named = self
            .0
            .iter()
            .filter(|(_, state)| state.is_some_and(|state| state.number == number));
        named.next().map(|(name, _)| name.as_str())
    }

    /// Returns the reason that no packet can leave on an interface, if there is one.
    pub(super) fn obstacle(&self, name: &str) -> Option<String> {
        match self.state(name) {
            None => Some(format!("its interface {name} does not exist")),
            Some(State {
                is_running: false, ..
            }) => Some(format!("its interface {name} is down or has no carrier")),
            Some(_) => None,
        }
    }

    fn state(&self, name: &str) -> Option<State> {
        self.0.get(name).copied().flatten()
    }
}

impl Found {
    fn of(interface: &Described, all: &[Described]) -> Self {
        let has_vlans = all.iter().any(|other| other.is_vlan_on(interface.index));
        let strips_tags = || {
            let offloads = netlink::offloads(interface.index);
            offloads.is_ok_and(|offloads| offloads.contains(netlink::STRIPS_VLAN_TAGS))
        };
        Found {
            features: netlink::xdp_features(interface.index).ok(),
            is_veth: interface.is_veth(),
            is_tunnel: interface.is_tunnel(),
            strips_vlan_tags: has_vlans && strips_tags(),
            header: interface.header,
        }
    }
}

/// Returns the directory of this node's pins. It is created when there is something to pin.
pub(crate) fn pins(remains: &Remains) -> Result<PathBuf> {
    let pins = remains.pins();
    ensure!(
        is_in_bpf_file_system(&pins)?,
        "{} is not in a bpf file system: run `mount -t bpf bpf /sys/fs/bpf`, and set `pins` to a directory in it",
        pins.display()
    );
    Ok(pins)
}

/// Removes the deduplication that an earlier agent of this node left. Returns whether there was
/// any.
pub(crate) fn remove_pins(remains: &Remains) -> Result<bool> {
    let mut found = false;
    for pins in remains.all_pins() {
        if pins.exists() && is_in_bpf_file_system(&pins)? {
            fs::remove_dir_all(&pins)
                .with_context(|| format!("cannot remove {}", pins.display()))?;
            found = true;
        }
    }
    Ok(found)
}

fn is_in_bpf_file_system(path: &Path) -> Result<bool> {
    let existing = path.ancestors().find(|path| path.exists());
    let existing =
        existing.with_context(|| format!("no parent directory of {} exists", path.display()))?;
    sysctl::is_in_bpf_file_system(existing)
        .with_context(|| format!("cannot read the file system of {}", existing.display()))
}

pub(super) fn load_receiver(config: &Config, pins: PathBuf) -> Result<Receiver> {
    let mut key = [0; 16];
    getrandom::fill(&mut key)?;
    let (low, high) = key.split_at(8);
    let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("half of 16 bytes"));
    let options = ReceiverOptions {
        port: config.port,
        max_age: config.max_age,
        transparent_within: TRANSPARENT_WITHIN,
        fingerprint_key: [word(low), word(high)],
        recording_cpus: sysctl::online_cpus().context("cannot read which CPUs are online")?,
        pins: Some(pins),
    };
    let receiver = Receiver::load(&options)?;
    if !receiver.replaced_tables().is_empty() {
        warn!(
            "the tables of an earlier agent have another layout and are replaced: {}; counters restart at zero, and duplicates \
             of packets that are in flight may pass",
            receiver.replaced_tables().join(", ")
        );
    }
    Ok(receiver)
}

/// Resolves a path by the routing table and the kernel's neighbour table. Returns `None` while the
/// kernel resolves the link-layer address of the next hop. Where packets have no Ethernet header,
/// there is none to resolve.
pub(super) fn resolve(
    path: &PathConfig,
    local: IpAddr,
    takes_frames: bool,
    is_tunnel: bool,
) -> Result<Option<SendPath>> {
    let link = interface::link(&path.interface)?;
    let next_hop = next_hop(path, Some(local))?;
    let macs = match link.header {
        LinkHeader::None => Some(([0; 6], [0; 6])),
        LinkHeader::Ethernet | LinkHeader::Other => {
            let interface = interface::find(&path.interface)?;
            let next_hop_mac = interface::follow_neighbour(next_hop, &interface)?;
            next_hop_mac.map(|next_hop_mac| (interface.mac, next_hop_mac))
        }
    };
    let mtu_bytes = match path.mtu_bytes {
        Some(mtu) => mtu,
        None => u16::try_from(link.mtu_bytes).unwrap_or(u16::MAX),
    };
    Ok(macs.map(|(source_mac, next_hop_mac)| SendPath {
        ifindex: link.index,
        local,
        remote: path.remote,
        source_mac,
        next_hop_mac,
        mtu_bytes,
        takes_frames,
        is_tunnel,
    }))
}

/// Returns the next hop of a path: as configured, or by the routing table.
pub(crate) fn next_hop(path: &PathConfig, local: Option<IpAddr>) -> Result<IpAddr> {
    if let Some(address) = path.next_hop {
        return Ok(address);
    }
    let PathConfig {
        remote, interface, ..
    } = path;
    // Uplinks often have a table of their own, chosen by the source address. The kernel finds no
    // route from an address that is not this node's, or not yet.
    let by_source = local.and_then(|local| interface::route_from(local, *remote, interface).ok());
    match by_source {
        Some(found) => Ok(found.next_hop),
        None => Ok(interface::route(*remote, Some(interface))?.next_hop),
    }
}

/// Says that packets for other hosts are not forwarded. The agent does not know whether its flows have
/// such packets, and does not make the machine a router by itself.
pub(super) fn tell_of_forwarding(config: &Config) {
    const KEYS: [&str; 2] = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];
    let is_off = |key: &&&str| sysctl::read(key).is_ok_and(|value| value == "0");
    // The packets of a node with a device are its own.
    if config.device.is_some() {
        return;
    }
    for key in KEYS.iter().filter(is_off) {
        info!(
            "this node does not forward packets ({key} is 0): if the receivers of its flows are other hosts, run \
             `sysctl -w {key}=1`"
        );
    }
}

/// Warns if packets to a destination can be too large for a path with the outer headers. Such
/// packets are sent on the other paths only.
pub(super) fn warn_of_large_packets(prefix: Prefix, sender: &Sender, rules: &[Rule]) {
    let Some(fits) = rules
        .iter()
        .filter_map(|rule| sender.inner_mtu_bytes(rule.flow).ok()?)
        .min()
    else {
        return;
    };
    // A destination without a route is noticed in other ways.
    let Ok(route) = interface::route(prefix.address(), None) else {
        return;
    };
    let Ok(device_mtu_bytes) = interface::mtu_bytes(&route.interface) else {
        return;
    };
    let mtu = route.mtu_bytes.unwrap_or(device_mtu_bytes);
    if mtu > u32::from(fits) {
        warn!(
            destination = %prefix,
            "packets of more than {fits} bytes do not fit all paths, and the route allows {mtu}; give the route \
             `mtu {fits}` (ip route change)"
        );
    }
}
