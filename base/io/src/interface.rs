//! The interfaces, routes and neighbours of the current network namespace.

use crate::netlink::{self, Error};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage::{
    DelNeighbour, GetAddress, GetLink, GetNeighbour, GetRoute, NewAddress, NewLink, NewNeighbour,
    NewRoute,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
};
use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteVia,
};
use nix::errno::Errno;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Largest IP packet, bytes.
    pub mtu_bytes: u32,
    /// Its link-layer address.
    pub mac: [u8; 6],
}

/// The route of packets to a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The router, or the destination itself if it is on the link.
    pub next_hop: IpAddr,
    /// The interface that they leave by.
    pub interface: String,
    /// The MTU that the route sets, if any.
    pub mtu_bytes: Option<u32>,
    /// The source address that the kernel chooses.
    pub source: Option<IpAddr>,
}

/// Returns whether an interface called `name` is meant by `pattern`: its name, or the beginning of
/// names followed by `*`.
pub fn name_matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

/// Returns whether both patterns mean some interface.
pub fn patterns_meet(one: &str, other: &str) -> bool {
    let beginning = |pattern: &'_ str| pattern.strip_suffix('*').unwrap_or(pattern).to_owned();
    name_matches(one, &beginning(other)) || name_matches(other, &beginning(one))
}

/// Returns whether an address may be reached from other links.
pub fn is_reachable(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(is_link_local || address.is_loopback() || address.is_unspecified())
}

/// Returns the interface called `name`.
pub fn find(name: &str) -> Result<Interface, Error> {
    let Link {
        index,
        mtu_bytes,
        mac,
        ..
    } = link(name)?;
    Ok(Interface {
        name: name.to_owned(),
        index,
        mtu_bytes,
        mac: mac.ok_or_else(|| Error::NotEthernet(name.to_owned()))?,
    })
}

/// Returns the largest IP packet of the interface called `name`, in bytes. The interface need not
/// have an Ethernet address.
pub fn mtu_bytes(name: &str) -> Result<u32, Error> {
    Ok(link(name)?.mtu_bytes)
}

/// An interface, with or without an Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Largest IP packet, bytes.
    pub mtu_bytes: u32,
    /// Its Ethernet address. `None` if its packets have no Ethernet header.
    pub mac: Option<[u8; 6]>,
    /// The header of its packets before the IP header.
    pub header: LinkHeader,
    /// Whether it is set up; it may have no carrier.
    pub is_up: bool,
    /// Whether multicast packets can leave by it.
    pub has_multicast: bool,
}

/// Returns the interface called `name`, which need not have an Ethernet address.
pub fn link(name: &str) -> Result<Link, Error> {
    let description = format_args!("look at interface {name}");
    let mut question = LinkMessage::default();
    question.header.index = netlink::index(name)?;
    let short = LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]);
    question.attributes.push(short);
    let NewLink(found) = netlink::ask(description, GetLink(question))? else {
        return Err(netlink::unexpected(description, "not an interface"));
    };
    let (mut mtu, mut mac) = (None, None);
    for attribute in found.attributes {
        match attribute {
            LinkAttribute::Mtu(bytes) => mtu = Some(bytes),
            LinkAttribute::Address(address) => mac = address.try_into().ok(),
            _ => {}
        }
    }
    Ok(Link {
        index: found.header.index,
        mtu_bytes: mtu.ok_or_else(|| netlink::unexpected(description, "no MTU"))?,
        mac,
        header: LinkHeader::of(found.header.link_layer_type),
        is_up: found.header.flags.contains(LinkFlags::Up),
        has_multicast: found.header.flags.contains(LinkFlags::Multicast),
    })
}

/// An interface of any kind, as the kernel describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Largest IP packet, bytes.
    pub mtu_bytes: u32,
    /// The kind of a virtual interface, such as `veth`. Devices have none.
    pub kind: Option<String>,
    /// The header of its packets before the IP header.
    pub header: LinkHeader,
    /// Whether it is the loopback interface.
    pub is_loopback: bool,
    /// Whether it is up and has a carrier.
    pub is_running: bool,
    /// Its queueing discipline.
    pub queueing: Option<String>,
    /// The number of the interface that it is built on, as a VLAN or macvlan device is; of a veth
    /// device, the number of the other end.
    pub lower: Option<u32>,
    /// The number of the XDP program that is attached.
    pub xdp_program: Option<u32>,
}

/// The header of an interface's packets before the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkHeader {
    /// That of Ethernet.
    #[default]
    Ethernet,
    /// None: LTE modems in raw IP mode, WireGuard, PPP, TUN. Neighbours have no link-layer addresses.
    None,
    /// Any other.
    Other,
}

impl LinkHeader {
    /// The interfaces without a header are those to which the kernel redirects packets without one
    /// (`dev_is_mac_header_xmit` in `linux/if_arp.h`; PPP since Linux 6.11 and its stable versions).
    fn of(kind: LinkLayerType) -> Self {
        match kind {
            LinkLayerType::Ether | LinkLayerType::Loopback => LinkHeader::Ethernet,
            LinkLayerType::None
            | LinkLayerType::Rawip
            | LinkLayerType::Ppp
            | LinkLayerType::Void
            | LinkLayerType::Tunnel
            | LinkLayerType::Tunnel6
            | LinkLayerType::Sit
            | LinkLayerType::Ipgre
            | LinkLayerType::Ip6gre => LinkHeader::None,
            _ => LinkHeader::Other,
        }
    }
}

/// Returns all interfaces, by number.
pub fn all() -> Result<Vec<Described>, Error> {
    let mut question = LinkMessage::default();
    let short = LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]);
    question.attributes.push(short);
    let description = format_args!("list the interfaces");
    let answers = netlink::request(description, GetLink(question), NLM_F_DUMP)?;
    let mut found = answers
        .into_iter()
        .filter_map(|answer| match answer {
            NewLink(link) => Some(described(link)),
            _ => None,
        })
        .collect::<Vec<_>>();
    found.sort_by_key(|interface| interface.index);
    Ok(found)
}

impl Described {
    /// Returns whether it is a VLAN device on the interface with this number.
    pub fn is_vlan_on(&self, number: u32) -> bool {
        self.kind.as_deref() == Some("vlan") && self.lower == Some(number)
    }

    /// Returns whether it leads into a tunnel to another node: a TUN device, whose packets a program takes, or
    /// WireGuard. A TAP device, which has Ethernet headers, is none.
    pub fn is_tunnel(&self) -> bool {
        let may_be = matches!(self.kind.as_deref(), Some("tun" | "wireguard"));
        may_be && self.header == LinkHeader::None
    }

    /// Returns whether it is one end of a veth pair.
    pub fn is_veth(&self) -> bool {
        self.kind.as_deref() == Some("veth")
    }
}

fn described(link: LinkMessage) -> Described {
    let flags = link.header.flags;
    let mut described = Described {
        index: link.header.index,
        header: LinkHeader::of(link.header.link_layer_type),
        is_loopback: flags.contains(LinkFlags::Loopback),
        is_running: flags.contains(LinkFlags::Up | LinkFlags::Running),
        ..Described::default()
    };
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => described.name = name,
            LinkAttribute::Mtu(bytes) => described.mtu_bytes = bytes,
            LinkAttribute::Link(number) => described.lower = Some(number),
            LinkAttribute::Qdisc(name) => described.queueing = Some(name),
            LinkAttribute::Xdp(xdp) => {
                described.xdp_program = xdp.iter().find_map(|xdp| match xdp {
                    LinkXdp::ProgId(number) => Some(*number),
                    _ => None,
                });
            }
            LinkAttribute::LinkInfo(info) => {
                described.kind = info.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    described
}

/// Returns the route to `destination`, by `interface` if given.
pub fn route(destination: IpAddr, interface: Option<&str>) -> Result<Route, Error> {
    find_route(route_question(destination, interface)?, destination)
}

/// Returns whether the routing tables have a route to `destination` by `interface`. Without one, the
/// kernel takes an IPv4 destination for one on the link.
pub fn has_route(destination: IpAddr, interface: &str) -> bool {
    let Ok(mut question) = route_question(destination, Some(interface)) else {
        return false;
    };
    question.header.flags |= RouteFlags::FibMatch;
    let description = format_args!("find the route to {destination}");
    netlink::ask(description, GetRoute(question)).is_ok()
}

/// Returns the route to `destination` by `interface` for packets from `source`, an address of this
/// machine: rules of the routing policy (`ip rule`) may depend on it.
pub fn route_from(source: IpAddr, destination: IpAddr, interface: &str) -> Result<Route, Error> {
    find_route_from(source, destination, Some(interface))
}

/// Returns the route to `destination` for packets from `source`, an address of this machine, by any
/// interface.
///
/// # Errors
/// Also if the kernel drops them (routes of type `blackhole` and the like).
pub fn any_route_from(source: IpAddr, destination: IpAddr) -> Result<Route, Error> {
    find_route_from(source, destination, None)
}

fn find_route_from(
    source: IpAddr,
    destination: IpAddr,
    interface: Option<&str>,
) -> Result<Route, Error> {
    let mut question = route_question(destination, interface)?;
    question.header.source_prefix_length = whole(source);
    let source = RouteAttribute::Source(source.into());
    question.attributes.push(source);
    find_route(question, destination)
}

fn find_route(question: RouteMessage, destination: IpAddr) -> Result<Route, Error> {
    let description = format_args!("find the route to {destination}");
    let question = GetRoute(question);
    let NewRoute(found) = netlink::ask(description, question)? else {
        return Err(netlink::unexpected(description, "not a route"));
    };
    let (mut next_hop, mut index, mut mtu_bytes, mut source) = (destination, None, None, None);
    for attribute in found.attributes {
        match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(v4))
            | RouteAttribute::Via(RouteVia::Inet(v4)) => next_hop = v4.into(),
            RouteAttribute::Gateway(RouteAddress::Inet6(v6))
            | RouteAttribute::Via(RouteVia::Inet6(v6)) => next_hop = v6.into(),
            RouteAttribute::PrefSource(RouteAddress::Inet(v4)) => source = Some(v4.into()),
            RouteAttribute::PrefSource(RouteAddress::Inet6(v6)) => source = Some(v6.into()),
            RouteAttribute::Oif(number) => index = Some(number),
            RouteAttribute::Metrics(metrics) => mtu_bytes = mtu_metric(&metrics),
            _ => {}
        }
    }
    let interface = index.and_then(name);
    Ok(Route {
        next_hop,
        interface: interface.ok_or_else(|| netlink::unexpected(description, "no interface"))?,
        mtu_bytes,
        source,
    })
}

fn route_question(destination: IpAddr, interface: Option<&str>) -> Result<RouteMessage, Error> {
    let mut question = RouteMessage::default();
    question.header.address_family = netlink::family(destination);
    question.header.destination_prefix_length = whole(destination);
    question.header.flags = RouteFlags::LookupTable;
    let wanted = RouteAttribute::Destination(destination.into());
    question.attributes.push(wanted);
    if let Some(name) = interface {
        let interface = RouteAttribute::Oif(netlink::index(name)?);
        question.attributes.push(interface);
    }
    Ok(question)
}

fn mtu_metric(metrics: &[RouteMetric]) -> Option<u32> {
    metrics.iter().find_map(|metric| match metric {
        RouteMetric::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}

/// Returns the name of the interface with this number, if it still exists.
fn name(index: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(index);
    name.ok().and_then(|name| name.into_string().ok())
}

/// Returns the number of the interface called `name`, if it exists.
pub fn index(name: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(name).ok()
}

/// Returns the names of the interfaces that are up and have a carrier.
pub fn running() -> io::Result<BTreeSet<String>> {
    having(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING)
}

/// Returns the names of the interfaces that are up, with or without a carrier.
pub fn up() -> io::Result<BTreeSet<String>> {
    having(InterfaceFlags::IFF_UP)
}

fn having(wanted: InterfaceFlags) -> io::Result<BTreeSet<String>> {
    let entries = nix::ifaddrs::getifaddrs()?;
    Ok(entries
        .filter(|entry| entry.flags.contains(wanted))
        .map(|entry| entry.interface_name)
        .collect())
}

/// An address of an interface, with its network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InNetwork {
    /// The interface.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// The length of the network's prefix, in bits.
    pub prefix_length: u8,
}

impl InNetwork {
    /// Returns whether two addresses are in the same network of more than one address.
    pub fn is_same_network(&self, other: &InNetwork) -> bool {
        let first = |address: IpAddr, length: u8| match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                IpAddr::from(std::net::Ipv4Addr::from(u32::from(v4) & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                IpAddr::from(std::net::Ipv6Addr::from(u128::from(v6) & mask))
            }
        };
        self.prefix_length < whole(self.address)
            && self.prefix_length == other.prefix_length
            && first(self.address, self.prefix_length) == first(other.address, other.prefix_length)
    }
}

/// Returns every address of every interface, with its network.
pub fn networks() -> io::Result<Vec<InNetwork>> {
    let found = nix::ifaddrs::getifaddrs()?.filter_map(|entry| {
        Some(InNetwork {
            address: ip(entry.address.as_ref()?)?,
            prefix_length: entry.netmask.as_ref().and_then(ip).map(leading_ones)?,
            interface: entry.interface_name,
        })
    });
    Ok(found.collect())
}

/// Returns every address of every interface, with the length of its link's prefix.
pub fn addresses() -> io::Result<BTreeSet<(IpAddr, u8)>> {
    let found = nix::ifaddrs::getifaddrs()?.filter_map(|entry| {
        let address = ip(entry.address.as_ref()?)?;
        Some((
            address,
            entry
                .netmask
                .as_ref()
                .and_then(ip)
                .map_or(whole(address), leading_ones),
        ))
    });
    Ok(found.collect())
}

/// Returns the addresses of the interface called `name`.
pub fn addresses_of(name: &str) -> io::Result<BTreeSet<IpAddr>> {
    let entries = nix::ifaddrs::getifaddrs()?.filter(|entry| entry.interface_name == name);
    Ok(entries
        .filter_map(|entry| ip(entry.address.as_ref()?))
        .collect())
}

/// An address of an interface, from which packets can be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnAddress {
    /// The interface.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// Whether its preferred lifetime is over: it is for connections that exist (RFC 4862, section
    /// 5.5.4).
    pub is_deprecated: bool,
    /// Whether it is an IPv6 address for a limited time, for privacy (RFC 8981).
    pub is_temporary: bool,
}

/// Returns the addresses of all interfaces from which packets can be sent, in the kernel's order.
/// These are not IPv6 addresses that are still checked for duplicates, or are duplicates.
pub fn own_addresses() -> Result<Vec<OwnAddress>, Error> {
    let description = format_args!("list the addresses");
    let question = GetAddress(AddressMessage::default());
    let answers = netlink::request(description, question, NLM_F_DUMP)?;
    let usable = answers.into_iter().filter_map(|answer| match answer {
        NewAddress(address) => own_address(&address),
        _ => None,
    });
    Ok(usable.collect())
}

/// Returns whether one of the addresses is of the interface called `name`, of the family of `peer`, and
/// valid beyond the link.
pub fn has_family_of(own: &[OwnAddress], name: &str, peer: IpAddr) -> bool {
    own.iter().any(|own| {
        own.interface == name
            && own.address.is_ipv4() == peer.is_ipv4()
            && is_reachable(own.address)
    })
}

/// Returns an address if packets can be sent from it. `AddressHeaderFlags` are the lower bits of the
/// flags, which contain all that matter here.
fn own_address(message: &AddressMessage) -> Option<OwnAddress> {
    let flags = message.header.flags;
    let is_checked = flags.contains(AddressHeaderFlags::Optimistic)
        || !flags.contains(AddressHeaderFlags::Tentative);
    if !is_checked || flags.contains(AddressHeaderFlags::Dadfailed) {
        return None;
    }
    let (mut local, mut other) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => other = Some(*address),
            _ => {}
        }
    }
    // `Address` is the peer's on a point-to-point interface.
    let address = local.or(other)?;
    Some(OwnAddress {
        interface: name(message.header.index)?,
        address,
        is_deprecated: flags.contains(AddressHeaderFlags::Deprecated),
        // The flag of an IPv4 address says that its network has another one.
        is_temporary: address.is_ipv6() && flags.contains(AddressHeaderFlags::Secondary),
    })
}

/// Returns the link-layer address of a next hop if the kernel knows it, without waiting.
///
/// The kernel probes only neighbours that its own stack sends to. Packets that are sent past the
/// stack do not count, so this asks the kernel to probe a neighbour whose entry is stale.
pub fn follow_neighbour(address: IpAddr, interface: &Interface) -> Result<Option<[u8; 6]>, Error> {
    let found = neighbour(address, interface)?;
    let state = found.as_ref().map(|found| found.header.state);
    if !state.is_some_and(needs_no_probe) {
        probe(address, interface)?;
    }
    // An entry of an interface without resolution has the interface's own address.
    let found = found.filter(|_| state != Some(NeighbourState::Noarp));
    let attributes = found.into_iter().flat_map(|found| found.attributes);
    let mut macs = attributes.filter_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(address) => address.try_into().ok(),
        _ => None,
    });
    Ok(macs.next())
}

/// Makes the kernel resolve the link-layer address of a next hop again, whatever it knows, because
/// packets to it seem to be lost. Returns whether it does: an entry that was set by hand stays.
///
/// A verification would ask only the known address, for seconds.
pub fn renew_neighbour(address: IpAddr, interface: &Interface) -> Result<bool, Error> {
    match neighbour(address, interface)?.map(|found| found.header.state) {
        Some(NeighbourState::Permanent | NeighbourState::Noarp) => return Ok(false),
        Some(NeighbourState::Incomplete) => return Ok(true),
        Some(_) => forget(address, interface)?,
        None => {}
    }
    probe(address, interface)?;
    Ok(true)
}

/// Removes the kernel's entry of a neighbour, if there is one.
fn forget(address: IpAddr, interface: &Interface) -> Result<(), Error> {
    let description = format_args!("forget neighbour {address} dev {}", interface.name);
    let message = DelNeighbour(neighbour_message(address, interface));
    match netlink::request(description, message, 0) {
        Ok(_) => Ok(()),
        Err(error) if error.is(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns whether a neighbour was set by hand, is confirmed, or is being probed.
fn needs_no_probe(state: NeighbourState) -> bool {
    matches!(
        state,
        NeighbourState::Permanent
            | NeighbourState::Reachable
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Incomplete
    )
}

/// Returns the kernel's entry of a neighbour, if there is one.
fn neighbour(address: IpAddr, interface: &Interface) -> Result<Option<NeighbourMessage>, Error> {
    let description = format_args!("look up neighbour {address} dev {}", interface.name);
    let question = GetNeighbour(neighbour_message(address, interface));
    match netlink::ask(description, question) {
        Ok(NewNeighbour(found)) => Ok(Some(found)),
        Ok(_) => Err(netlink::unexpected(description, "not a neighbour")),
        Err(error) if error.is(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the kernel resolve or verify a neighbour's link-layer address.
fn probe(address: IpAddr, interface: &Interface) -> Result<(), Error> {
    let mut message = neighbour_message(address, interface);
    message.header.flags = NeighbourFlags::Use;
    // A new entry does not count towards the kernel's limit of entries that it may discard.
    message.header.state = NeighbourState::Permanent;
    let description = format_args!("probe neighbour {address} dev {}", interface.name);
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    netlink::request(description, NewNeighbour(message), flags).map(drop)
}

fn neighbour_message(address: IpAddr, interface: &Interface) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = netlink::family(address);
    message.header.ifindex = interface.index;
    message.attributes = vec![NeighbourAttribute::Destination(address.into())];
    message
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = || address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4().or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

fn leading_ones(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(v4) => u32::from(v4).leading_ones(),
        IpAddr::V6(v6) => u128::from(v6).leading_ones(),
    };
    ones as u8
}

/// Returns the length of the prefix that contains only `address`, in bits.
fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_meet_if_they_mean_a_common_interface() {
        for (one, other, expected) in [
            ("wwan0", "wwan0", true),
            ("wwan0", "wwan1", false),
            ("wwan*", "wwan0", true),
            ("wwan*", "w*", true),
            ("wwan*", "wlan*", false),
            ("*", "eth0", true),
            ("wwan", "wwan*", true),
            ("wwa", "wwan*", false),
        ] {
            assert_eq!(patterns_meet(one, other), expected, "{one} {other}");
            assert_eq!(patterns_meet(other, one), expected, "{other} {one}");
        }
    }

    #[test]
    fn the_loopback_interface_has_its_address() {
        assert!(addresses().unwrap().contains(&([127, 0, 0, 1].into(), 8)));
    }

    #[test]
    fn the_loopback_interface_runs() {
        assert!(running().unwrap().contains("lo"));
    }

    #[test]
    fn the_loopback_interface_is_found() {
        let loopback = find("lo").unwrap();
        assert_eq!(index("lo"), Some(loopback.index));
        assert_eq!(
            (loopback.mac, loopback.mtu_bytes),
            ([0; 6], mtu_bytes("lo").unwrap())
        );
        let route = route([127, 0, 0, 1].into(), None).unwrap();
        assert_eq!(route.interface, "lo");
    }

    #[test]
    fn the_loopback_interface_is_described() {
        let all = all().unwrap();
        let loopback = all.iter().find(|interface| interface.name == "lo").unwrap();
        assert!(loopback.is_loopback && loopback.header == LinkHeader::Ethernet);
        assert_eq!(Some(loopback.index), index("lo"));
    }

    #[test]
    fn an_error_names_the_interface() {
        let error = find("no-such-device").unwrap_err().to_string();
        assert_eq!(error, "interface no-such-device does not exist");
    }
}
