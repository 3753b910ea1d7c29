use super::{Error, added, family, index, request};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage::{DelAddress, GetAddress, NewAddress};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use nix::errno::Errno;
use std::fmt;
use std::net::IpAddr;

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The address.
    pub address: IpAddr,
    /// The length of the prefix of its network, in bits.
    pub prefix_length: u8,
    /// The interface.
    pub interface: String,
}

impl Address {
    /// Adds the address, or updates it if the interface has it. IPv6 addresses are usable at once,
    /// without duplicate address detection.
    pub fn replace(&self) -> Result<(), Error> {
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let description = format_args!("replace address {self}");
        request(description, NewAddress(self.message()?), flags).map(drop)
    }

    /// Adds the address if the interface does not have it. Returns whether it did not. IPv6 addresses
    /// are usable at once.
    pub fn add(&self) -> Result<bool, Error> {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let description = format_args!("add address {self}");
        added(request(description, NewAddress(self.message()?), flags))
    }

    /// Removes the address.
    pub fn delete(&self) -> Result<(), Error> {
        let description = format_args!("delete address {self}");
        request(description, DelAddress(self.message()?), 0).map(drop)
    }

    fn message(&self) -> Result<AddressMessage, Error> {
        let mut message = AddressMessage::default();
        message.header.family = family(self.address);
        message.header.prefix_len = self.prefix_length;
        message.header.index = index(&self.interface)?;
        if self.address.is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        message.attributes = vec![
            AddressAttribute::Local(self.address),
            AddressAttribute::Address(self.address),
        ];
        Ok(message)
    }
}

impl fmt::Display for Address {
    /// Writes the address in the syntax of `ip address`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address {
            address,
            prefix_length,
            interface,
        } = self;
        write!(f, "{address}/{prefix_length} dev {interface}")?;
        if address.is_ipv6() {
            f.write_str(" nodad")?;
        }
        Ok(())
    }
}

/// Removes all addresses of an interface.
pub fn flush_addresses(interface: &str) -> Result<(), Error> {
    let index = index(interface)?;
    let description = format_args!("list the addresses of {interface}");
    let answers = request(
        description,
        GetAddress(AddressMessage::default()),
        NLM_F_DUMP,
    )?;
    for answer in answers {
        let NewAddress(address) = answer else {
            continue;
        };
        if address.header.index != index {
            continue;
        }
        let description = format_args!("flush the addresses of {interface}");
        match request(description, DelAddress(address), 0) {
            // The kernel removes secondary addresses with their primary one.
            Err(error) if error.is(Errno::EADDRNOTAVAIL) => {}
            result => drop(result?),
        }
    }
    Ok(())
}
