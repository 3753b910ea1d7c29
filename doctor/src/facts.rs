use hawser_io::interface::{Described, Route};
use hawser_io::kept::Problem;
use hawser_io::netlink::XdpFeatures;
use hawser_io::xdp::Wanted;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// A fact of the machine, or the reason that it is not known.
pub type Fact<T> = Result<T, String>;

/// The state of a machine, as far as Hawser depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The kernel's major and minor version.
    pub kernel: Fact<(u32, u32)>,
    /// Whether the kernel has its type information.
    pub has_btf: bool,
    /// Whether `/sys/fs/bpf` is a bpf file system.
    pub has_bpf_file_system: Fact<bool>,
    /// Whether `/dev/net/tun` exists, or the reason that this process may not use it.
    pub has_tun: Fact<bool>,
    /// Whether the program `ethtool` is in `PATH`.
    pub has_ethtool: bool,
    /// Whether the program `nft` is in `PATH`.
    pub has_nft: bool,
    /// The effective capabilities of this process, as a bit mask.
    pub capabilities: Fact<u64>,
    /// The interfaces to check.
    pub interfaces: Fact<Vec<InterfaceFacts>>,
    /// The interfaces that were named and do not exist.
    pub missing_interfaces: Vec<String>,
    /// The number of interfaces with an IPv4 default route.
    pub default_routes: Fact<usize>,
    /// Whether packets are forwarded, by kernel parameter.
    pub forwarding: Vec<(&'static str, Fact<bool>)>,
    /// The largest buffers of sockets in bytes, by kernel parameter.
    pub buffers: Vec<(&'static str, Fact<usize>)>,
    /// Whether parameters cannot be set because `/proc/sys` is mounted read-only.
    pub is_proc_read_only: Fact<bool>,
    /// The reverse path filter for IPv6 of firewalld (`IPv6_rpfilter`), if it runs.
    pub firewalld: Option<Fact<String>>,
    /// The settings of the kernel that programs need, examined by the code with which they keep them.
    pub kept: Vec<KeptFacts>,
    /// Whether the kernel has the queueing discipline `fq`.
    pub has_fq: Fact<bool>,
    /// Whether the clock is synchronized.
    pub is_synchronized: Fact<bool>,
    /// The ports to check.
    pub ports: Vec<PortFacts>,
    /// The XDP mode that the configuration asks for.
    pub wanted_xdp: Wanted,
    /// The paths that the running agent of the configuration does not use, by number, with the reason.
    pub unused_paths: BTreeMap<String, String>,
    /// The settings of the kernel that the configuration's running agent cannot restore, by name.
    pub deviations: BTreeMap<String, String>,
    /// The peer, if one was named.
    pub peer: Option<PeerFacts>,
}

/// The state of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceFacts {
    /// Its description.
    pub interface: Described,
    /// Whether the command line or the configuration named it.
    pub is_named: bool,
    /// The XDP features of its driver.
    pub xdp: Fact<XdpFeatures>,
    /// The offloads that are switched on, by the names of `ethtool -k`.
    pub offloads: Fact<BTreeSet<String>>,
    /// Whether there are VLAN devices on it.
    pub has_vlans: bool,
    /// The reverse path filter that is in force.
    pub reverse_path_filter: u8,
}

/// Something that a program needs in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptFacts {
    /// The check.
    pub id: &'static str,
    /// The interface or parameter, if the check has several.
    pub subject: Option<String>,
    /// The parts that need it.
    pub parts: &'static [crate::Part],
    /// Whether the configuration makes it necessary.
    pub is_needed: bool,
    /// The difference from what should be.
    pub problem: Option<Problem>,
    /// The finding if there is no difference.
    pub fine: String,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// UDP
    Udp,
    /// TCP
    Tcp,
}

impl Protocol {
    /// Returns the name, in capitals.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Udp => "UDP",
            Protocol::Tcp => "TCP",
        }
    }
}

/// A port that a part of Hawser uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// The protocol.
    pub protocol: Protocol,
    /// The number.
    pub number: u16,
    /// The part that uses it.
    pub part: crate::Part,
    /// The purpose.
    pub purpose: &'static str,
}

/// The state of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortFacts {
    /// The port.
    pub port: Port,
    /// The process that uses it, if any.
    pub holder: Fact<Option<Holder>>,
}

/// The process that uses a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A process with its name and ID.
    Process(String, u32),
    /// A process that this one cannot see.
    Hidden,
}

/// The way to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerFacts {
    /// The name that was given.
    pub name: String,
    /// Its addresses.
    pub addresses: Fact<Vec<SocketAddr>>,
    /// The way to its first address with a route, or to its first one.
    pub way: Option<Way>,
}

/// The way to an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// The address.
    pub address: SocketAddr,
    /// The route.
    pub route: Fact<Route>,
    /// The address that packets there are sent from.
    pub source: Fact<IpAddr>,
    /// The largest packet, in bytes.
    pub mtu_bytes: Fact<u32>,
    /// The answer.
    pub answer: Answer,
}

/// The answer to the opening of a TCP connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The connection was accepted.
    Accepted,
    /// The connection was refused: the machine is there, and no program listens to TCP on the port.
    Refused,
    /// Nothing, in time.
    Silence,
    /// The network or this machine said that the peer cannot be reached.
    Unreachable(String),
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Part;
    use hawser_io::interface::LinkHeader;

    /// Returns an interface on which everything works.
    pub(crate) fn interface(name: &str) -> InterfaceFacts {
        InterfaceFacts {
            interface: Described {
                name: name.to_owned(),
                index: 2,
                mtu_bytes: 1500,
                kind: None,
                header: LinkHeader::Ethernet,
                is_loopback: false,
                is_running: true,
                queueing: Some("fq_codel".to_owned()),
                xdp_program: None,
                lower: None,
            },
            is_named: false,
            xdp: Ok(XdpFeatures {
                native: true,
                redirect: true,
                is_target: true,
            }),
            offloads: Ok(["rx-gro", "rx-udp-gro-forwarding"]
                .map(str::to_owned)
                .into()),
            has_vlans: false,
            reverse_path_filter: 2,
        }
    }

    /// Returns a machine on which almost everything works.
    pub(crate) fn machine() -> Facts {
        let port = |protocol, number, part, purpose| PortFacts {
            port: Port {
                protocol,
                number,
                part,
                purpose,
            },
            holder: Ok(None),
        };
        Facts {
            kernel: Ok((6, 18)),
            has_btf: true,
            has_bpf_file_system: Ok(true),
            has_tun: Ok(true),
            has_ethtool: true,
            has_nft: true,
            capabilities: Ok(u64::MAX),
            interfaces: Ok(vec![interface("eth0")]),
            missing_interfaces: Vec::new(),
            default_routes: Ok(1),
            forwarding: vec![("net.ipv4.ip_forward", Ok(true))],
            buffers: vec![("net.core.rmem_max", Ok(212_992))],
            is_proc_read_only: Ok(false),
            firewalld: None,
            kept: vec![KeptFacts {
                id: "firewall.rules",
                subject: None,
                parts: &[Part::Agent, Part::Tunnel],
                is_needed: false,
                problem: None,
                fine: "No rule of nftables filters by the route back.".to_owned(),
            }],
            has_fq: Ok(true),
            is_synchronized: Ok(true),
            ports: vec![port(Protocol::Udp, 14747, Part::Agent, "replicas")],
            wanted_xdp: Wanted::Best,
            unused_paths: BTreeMap::new(),
            deviations: BTreeMap::new(),
            peer: None,
        }
    }
}
