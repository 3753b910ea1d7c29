use super::{Error, index, request};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage::{DelLink, NewLink};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkFlags, LinkInfo, LinkMessage,
};
use std::fmt;

/// Changes of an interface, applied together. By default it stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkChange {
    /// The largest IP packet, in bytes.
    pub mtu_bytes: Option<u32>,
    /// The interface group, which firewall rules can match.
    pub group: Option<u32>,
    /// The length of the transmit queue, in packets.
    pub queue_packets: Option<u32>,
    /// Whether to switch off the IPv6 addresses that the kernel generates.
    pub no_generated_addresses: bool,
    /// Whether to switch off the resolution of link-layer addresses.
    pub no_arp: bool,
    /// Whether to switch off multicast.
    pub no_multicast: bool,
    /// Whether to set the interface up.
    pub up: bool,
}

impl LinkChange {
    /// Changes an interface.
    pub fn apply(&self, interface: &str) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = index(interface)?;
        message
            .header
            .change_mask
            .set(LinkFlags::Noarp, self.no_arp);
        message.header.change_mask.set(LinkFlags::Up, self.up);
        message.header.flags = message.header.change_mask;
        // Not among the flags: this one is cleared.
        message
            .header
            .change_mask
            .set(LinkFlags::Multicast, self.no_multicast);
        message.attributes.extend(self.attributes());
        let description = format_args!("set interface {interface}{self}");
        request(description, NewLink(message), 0).map(drop)
    }

    fn attributes(&self) -> impl Iterator<Item = LinkAttribute> {
        let none = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        let no_addresses = LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![none])]);
        let attributes = [
            self.no_generated_addresses.then_some(no_addresses),
            self.mtu_bytes.map(LinkAttribute::Mtu),
            self.group.map(LinkAttribute::Group),
            self.queue_packets.map(LinkAttribute::TxQueueLen),
        ];
        attributes.into_iter().flatten()
    }
}

impl fmt::Display for LinkChange {
    /// Writes the changes in the syntax of `ip link`, each after a space.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = [
            ("mtu", self.mtu_bytes),
            ("group", self.group),
            ("txqueuelen", self.queue_packets),
        ];
        for (name, value) in numbers {
            value.map_or(Ok(()), |value| write!(f, " {name} {value}"))?;
        }
        let switches = [
            ("addrgenmode none", self.no_generated_addresses),
            ("arp off", self.no_arp),
            ("multicast off", self.no_multicast),
            ("up", self.up),
        ];
        for (name, _) in switches.into_iter().filter(|(_, is_set)| *is_set) {
            write!(f, " {name}")?;
        }
        Ok(())
    }
}

/// Creates a pair of connected virtual Ethernet devices, down, with this MTU in bytes.
pub fn create_veth(names: [&str; 2], mtu_bytes: u32) -> Result<(), Error> {
    let [mut device, peer] = names.map(|name| {
        let mut device = LinkMessage::default();
        device.attributes = vec![
            LinkAttribute::Mtu(mtu_bytes),
            LinkAttribute::IfName(name.to_owned()),
        ];
        device
    });
    device.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    let flags = NLM_F_CREATE | NLM_F_EXCL;
    let [one, other] = names;
    let description = format_args!("create the pair of interfaces {one} and {other}");
    request(description, NewLink(device), flags).map(drop)
}

/// Deletes an interface.
pub fn delete_link(interface: &str) -> Result<(), Error> {
    let mut message = LinkMessage::default();
    message.header.index = index(interface)?;
    let description = format_args!("delete interface {interface}");
    request(description, DelLink(message), 0).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_written_as_for_ip_link() {
        assert_eq!(LinkChange::default().to_string(), "");
        let change = LinkChange {
            mtu_bytes: Some(1400),
            no_arp: true,
            up: true,
            ..LinkChange::default()
        };
        assert_eq!(change.to_string(), " mtu 1400 arp off up");
    }
}
