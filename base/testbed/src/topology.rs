//! A source, an ingress edge, up to eight paths, an egress edge and a viewer, each in a network
//! namespace.
//!
//! ```text
//! source        ingress                network                egress        viewer
//! edge0 ── source0  path1 ── in1  [emulator]  out1 ── path1  viewer0 ── edge0
//!                   path2 ── in2  [emulator]  out2 ── path2
//! ```
//!
//! A device is named after the node that it leads to. The emulator moves Ethernet frames between
//! `inN` and `outN`; without it the paths are cut. By default traffic takes path 1 in both
//! directions. Optionally there is a sixth namespace for a controller, linked to both edges, and an
//! address of the viewer for each path.
//!
//! ```no_run
//! use hawser_testbed::topology::Topology;
//!
//! let lab = Topology { paths: 2, ..Topology::default() }.build()?;
//! println!("{lab}");
//! let inside = lab.viewer().run(|| std::net::UdpSocket::bind((lab.viewer_v4(), 4711)))?;
//! # anyhow::Ok(())
//! ```

mod addressing;
mod bridge;
mod control;
mod edge;
mod multihoming;
mod registry;
mod stop;
mod uplinks;

pub use addressing::{Addressing, End, Link, Mac};
pub use edge::Edge;
pub use registry::{Claim, clear_abandoned};
pub use stop::Stop;
pub use uplinks::name_uplinks;

use crate::netns::Namespace;
use addressing::V6_LENGTH;
use anyhow::{Context, Result};
use hawser_units::PathId;
use registry::PINS;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

/// The MTU of every link.
pub const LINK_MTU: u32 = 1500;

/// The offloads of the devices at edges and in the network.
const OFF: [(&str, bool); 4] = [
    ("tx", false),
    ("tso", false),
    ("gso", false),
    ("gro", false),
];

/// The offloads of the hosts' devices.
const HOST: [(&str, bool); 4] = [("tx", false), ("tso", false), ("gso", false), ("gro", true)];

/// The parameters of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Topology {
    /// Number of paths between the edges, 1 to 8; five as in the paper.
    pub paths: usize,
    /// The MTU of the edges' routes to the source and to the viewer, for both IP versions, in
    /// bytes. Encapsulation over IPv6 adds 76 bytes, so the default is 1424.
    pub route_mtu: u32,
    /// Whether there is a control network: a namespace for a controller, linked to each edge
    /// outside the paths.
    pub control: bool,
    /// Whether the viewer has an IPv4 address on each path, so that MPTCP creates a subflow over
    /// each. The hosts are configured for MPTCP too.
    pub multihomed: bool,
}

impl Default for Topology {
    fn default() -> Self {
        Topology {
            paths: 5,
            route_mtu: LINK_MTU - 76,
            control: false,
            multihomed: false,
        }
    }
}

impl Topology {
    /// The parameters of a lab with the given number of paths.
    pub fn with_paths(paths: usize) -> Self {
        Topology {
            paths,
            ..Topology::default()
        }
    }

    /// Builds the lab, after removing the labs of killed processes.
    pub fn build(&self) -> Result<Lab> {
        let addressing = Addressing::new(self)?;
        let claim = Claim::new()?;
        let namespace = |role| claim.namespace(role);
        let lab = Lab {
            source: namespace("source")?,
            ingress: namespace("ingress")?,
            network: namespace("network")?,
            egress: namespace("egress")?,
            viewer: namespace("viewer")?,
            control: self.control.then(|| namespace("control")).transpose()?,
            addressing,
            claim,
        };
        lab.connect(self.route_mtu)?;
        Ok(lab)
    }
}

/// An emulated network. Dropping it kills the processes that still run in it and removes
/// everything.
///
/// Threads that entered its namespaces have to exit before: a namespace exists as long as a thread
/// is inside.
#[derive(Debug)]
pub struct Lab {
    source: Namespace,
    ingress: Namespace,
    network: Namespace,
    egress: Namespace,
    viewer: Namespace,
    control: Option<Namespace>,
    addressing: Addressing,
    claim: Claim,
}

impl Lab {
    /// The identifier of this lab. Namespaces are named `hawser-<id>-<role>`.
    pub fn id(&self) -> &str {
        self.claim.id()
    }

    /// The namespace of the stream's sender.
    pub fn source(&self) -> &Namespace {
        &self.source
    }

    /// The namespace of the edge at the source.
    pub fn ingress(&self) -> &Namespace {
        &self.ingress
    }

    /// The namespace of the emulated paths.
    pub fn network(&self) -> &Namespace {
        &self.network
    }

    /// The namespace of the edge at the viewer.
    pub fn egress(&self) -> &Namespace {
        &self.egress
    }

    /// The namespace of the stream's receiver.
    pub fn viewer(&self) -> &Namespace {
        &self.viewer
    }

    /// The namespace of the controller; `None` in a lab without a control network.
    pub fn control(&self) -> Option<&Namespace> {
        self.control.as_ref()
    }

    /// Returns all addresses. They are displayed as a table.
    pub fn addressing(&self) -> &Addressing {
        &self.addressing
    }

    /// The paths, in order.
    pub fn paths(&self) -> impl Iterator<Item = PathId> {
        PathId::all().take(self.addressing.paths.len())
    }

    /// Returns the ends of a path at the edges: `near` at the ingress, `far` at the egress.
    ///
    /// # Panics
    /// If the lab has no such path.
    pub fn path(&self, path: PathId) -> &Link {
        &self.addressing.paths[path.index()]
    }

    /// The source's IPv4 address.
    pub fn source_v4(&self) -> Ipv4Addr {
        self.addressing.source.near.v4
    }

    /// The source's IPv6 address.
    pub fn source_v6(&self) -> Ipv6Addr {
        self.addressing.source.near.v6
    }

    /// The viewer's IPv4 address.
    pub fn viewer_v4(&self) -> Ipv4Addr {
        self.addressing.viewer.far.v4
    }

    /// The viewer's IPv6 address.
    pub fn viewer_v6(&self) -> Ipv6Addr {
        self.addressing.viewer.far.v6
    }

    /// Returns the folder in which the process in `role` pins its eBPF objects, so that they are
    /// removed with the lab. The folder is not created.
    pub fn pins(&self, role: &str) -> PathBuf {
        PathBuf::from(format!("{PINS}/{}-{role}", self.id()))
    }

    /// Connects the namespaces of a new lab.
    fn connect(&self, route_mtu: u32) -> Result<()> {
        let id = self.id();
        self.set_parameters()
            .with_context(|| format!("cannot set the kernel parameters of lab {id}"))?;
        self.add_links()
            .with_context(|| format!("cannot add the links of lab {id}"))?;
        self.add_addresses(route_mtu)
            .with_context(|| format!("cannot add the addresses of lab {id}"))?;
        self.add_control()
            .with_context(|| format!("cannot add the control network of lab {id}"))?;
        self.add_multihoming(route_mtu)
            .with_context(|| format!("cannot add the viewer's additional addresses to lab {id}"))?;
        self.set_offloads()
            .with_context(|| format!("cannot switch off the offloads of lab {id}"))
    }

    fn set_parameters(&self) -> Result<()> {
        for edge in [&self.ingress, &self.egress] {
            edge.sysctl("net.ipv4.ip_forward", "1")?;
            edge.sysctl("net.ipv6.conf.all.forwarding", "1")?;
            // A replica may arrive by a path that the reverse route does not use.
            edge.sysctl("net.ipv4.conf.all.rp_filter", "0")?;
            edge.sysctl("net.ipv4.conf.default.rp_filter", "0")?;
        }
        for host in [&self.source, &self.viewer] {
            // The network has to be the bottleneck, not the hosts: 64 MiB hold 400 Mb/s over a
            // second.
            host.sysctl("net.ipv4.tcp_rmem", "4096 131072 67108864")?;
            host.sysctl("net.ipv4.tcp_wmem", "4096 65536 67108864")?;
        }
        // Frames pass through the network; it sends none of its own.
        self.network.sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
        self.network
            .sysctl("net.ipv6.conf.default.disable_ipv6", "1")?;
        Ok(())
    }

    fn add_links(&self) -> Result<()> {
        let Addressing { source, viewer, .. } = &self.addressing;
        let mut at_ingress = veth(&source.far, &source.near.device, &self.source);
        let mut at_egress = veth(&viewer.near, &viewer.far.device, &self.viewer);
        let mut at_network = String::new();
        for id in self.paths() {
            let (path, inward, outward) = (self.path(id), network_ingress(id), network_egress(id));
            at_ingress += &veth(&path.near, &inward, &self.network);
            at_egress += &veth(&path.far, &outward, &self.network);
            let _ = writeln!(at_network, "link set {inward} up\nlink set {outward} up");
        }
        self.ingress.ip(&at_ingress)?;
        self.egress.ip(&at_egress)?;
        self.source.ip(&format!(
            "link set {} address {}",
            source.near.device, source.near.mac
        ))?;
        self.viewer.ip(&format!(
            "link set {} address {}",
            viewer.far.device, viewer.far.mac
        ))?;
        Ok(self.network.ip(&at_network)?)
    }

    fn add_addresses(&self, route_mtu: u32) -> Result<()> {
        let Addressing { source, viewer, .. } = &self.addressing;
        self.source
            .ip(&host_commands(&source.near, &source.far, source.v4_length))?;
        self.ingress.ip(&self.ingress_commands(route_mtu))?;
        self.egress.ip(&self.egress_commands(route_mtu))?;
        Ok(self
            .viewer
            .ip(&host_commands(&viewer.far, &viewer.near, viewer.v4_length))?)
    }

    /// Returns commands that set the addresses of the ingress edge and its route to the viewer.
    fn ingress_commands(&self, route_mtu: u32) -> String {
        let Addressing {
            source,
            paths,
            viewer,
            ..
        } = &self.addressing;
        let mut commands = connect(&source.far, &source.near, source.v4_length);
        for path in paths {
            commands += &connect(&path.near, &path.far, path.v4_length);
        }
        let (v4, v6) = (viewer.v4_prefix(), viewer.v6_prefix());
        let Link { near, far, .. } = &paths[0];
        commands + &route(&v4, &v6, near, far, Some(route_mtu))
    }

    /// Returns commands that set the addresses of the egress edge and its route to the source.
    fn egress_commands(&self, route_mtu: u32) -> String {
        let Addressing {
            source,
            paths,
            viewer,
            ..
        } = &self.addressing;
        let mut commands = connect(&viewer.near, &viewer.far, viewer.v4_length);
        for path in paths {
            commands += &connect(&path.far, &path.near, path.v4_length);
        }
        let (v4, v6) = (source.v4_prefix(), source.v6_prefix());
        let Link { near, far, .. } = &paths[0];
        commands + &route(&v4, &v6, far, near, Some(route_mtu))
    }

    /// Switches offloads off, so that every frame is one packet with its checksums in place: the
    /// emulator and XDP programs see packets as they would be on a wire. The hosts receive with
    /// GRO, which also makes their end of a veth pair accept frames that XDP redirects.
    fn set_offloads(&self) -> Result<()> {
        let Addressing {
            source,
            paths,
            viewer,
            ..
        } = &self.addressing;
        self.source.offloads(&source.near.device, &HOST)?;
        self.ingress.offloads(&source.far.device, &OFF)?;
        for (path, id) in paths.iter().zip(self.paths()) {
            self.ingress.offloads(&path.near.device, &OFF)?;
            self.network.offloads(&network_ingress(id), &OFF)?;
            self.network.offloads(&network_egress(id), &OFF)?;
            self.egress.offloads(&path.far.device, &OFF)?;
        }
        self.egress.offloads(&viewer.near.device, &OFF)?;
        self.viewer.offloads(&viewer.far.device, &HOST)?;
        Ok(())
    }
}

impl fmt::Display for Lab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lab {}\n{}", self.id(), self.addressing)
    }
}

/// The device in the network that faces the ingress edge on a path: `in1` to `in8`.
pub fn network_ingress(path: PathId) -> String {
    format!("in{}", path.number())
}

/// The device in the network that faces the egress edge on a path: `out1` to `out8`.
pub fn network_egress(path: PathId) -> String {
    format!("out{}", path.number())
}

fn veth(end: &End, peer: &str, peers_namespace: &Namespace) -> String {
    let (End { device, mac, .. }, namespace) = (end, peers_namespace.name());
    format!(
        "link add {device} address {mac} mtu {LINK_MTU} type veth peer name {peer} mtu {LINK_MTU} netns {namespace}\n"
    )
}

/// Returns commands that set the addresses of a host and its default route via an edge.
fn host_commands(host: &End, edge: &End, v4_length: u8) -> String {
    connect(host, edge, v4_length) + &route("0.0.0.0/0", "::/0", host, edge, None)
}

/// Returns commands that set the addresses of one end, and permanent neighbour entries for the
/// other, so that no packet waits for a reply that a lossy link drops.
fn connect(end: &End, peer: &End, v4_length: u8) -> String {
    let (
        End { device, v4, v6, .. },
        End {
            v4: peer_v4,
            v6: peer_v6,
            mac,
            ..
        },
    ) = (end, peer);
    format!(
        "link set {device} up
addr add {v4}/{v4_length} dev {device}
addr add {v6}/{V6_LENGTH} dev {device} nodad
neigh replace {peer_v4} lladdr {mac} nud permanent dev {device}
neigh replace {peer_v6} lladdr {mac} nud permanent dev {device}
"
    )
}

fn route(v4: &str, v6: &str, end: &End, via: &End, mtu: Option<u32>) -> String {
    // The kernel respects a route's MTU for forwarded IPv6 only if it is locked.
    let (v4_mtu, v6_mtu) = mtu
        .map(|mtu| (format!("mtu {mtu}"), format!("mtu lock {mtu}")))
        .unwrap_or_default();
    let End { device, .. } = end;
    format!(
        "route add {v4} via {} dev {device} {v4_mtu}\nroute add {v6} via {} dev {device} {v6_mtu}\n",
        via.v4, via.v6
    )
}
