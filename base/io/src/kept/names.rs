//! Name servers, which should be asked through a tunnel if other packets to them go there.

use super::{Item, Problem};
use crate::interface::{self, InNetwork};
use std::fs;
use std::net::IpAddr;

/// The file with the name servers of this machine, and the one that takes its place if it names
/// systemd-resolved.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const OF_RESOLVED: &str = "/run/systemd/resolve/resolv.conf";
const RESOLVED_STUB: &str = "nameserver 127.0.0.53";

/// A name server, and the tunnel's device through which it should be asked. The network of an uplink can
/// have the same addresses, and is nearer than `routes` of the tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameServer {
    /// The address.
    pub address: IpAddr,
    /// The link on which a link-local address is.
    pub link: Option<String>,
    /// The device of the tunnel.
    pub interface: String,
    /// Whether the device gets a route to this address alone.
    pub has_route: bool,
    /// Whether packets to it are blocked outside the tunnel.
    pub is_blocked: bool,
}

impl NameServer {
    /// Returns the name servers of a tunnel client with the device `interface`: `dns` of its configuration,
    /// or without that those of this machine that should be asked through it.
    pub fn of_client(
        interface: &str,
        dns: &[IpAddr],
        is_routed: impl Fn(IpAddr) -> bool,
        is_blocked: bool,
    ) -> Vec<NameServer> {
        let server = |address, link, has_route| NameServer {
            address,
            link,
            interface: interface.to_owned(),
            has_route,
            is_blocked,
        };
        if dns.is_empty() {
            let found = of_this_machine().into_iter();
            let found = found.filter(|(address, _)| is_routed(*address));
            return found
                .map(|(address, link)| server(address, link, false))
                .collect();
        }
        let set = dns.iter();
        set.map(|address| server(*address, None, is_routed(*address)))
            .collect()
    }

    /// Returns whether the device has an address of the server's family, and thereby its routes.
    fn is_reached_by_device(&self) -> bool {
        let own = interface::addresses_of(&self.interface).unwrap_or_default();
        own.iter()
            .any(|own| own.is_ipv4() == self.address.is_ipv4() && interface::is_reachable(*own))
    }

    /// Returns the interface in whose network the server is.
    fn neighbour(&self) -> Option<String> {
        let networks = interface::networks().ok()?;
        if networks.iter().any(|own| own.address == self.address) {
            return None;
        }
        let has_server = |own: &&InNetwork| {
            let server = InNetwork {
                address: self.address,
                ..(*own).clone()
            };
            own.address.is_ipv4() == self.address.is_ipv4() && own.is_same_network(&server)
        };
        let own = networks.iter().find(has_server);
        own.map(|own| own.interface.clone())
    }
}

impl Item for NameServer {
    fn name(&self) -> String {
        format!("name server {}", self.address)
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.interface)
    }

    fn examine(&self) -> Option<Problem> {
        let by = match &self.link {
            Some(link) => link.clone(),
            None if self.is_reached_by_device() => {
                interface::route(self.address, None).ok()?.interface
            }
            None if self.has_route => return None,
            None => self.neighbour()?,
        };
        let address = self.address;
        if by == self.interface || by == "lo" {
            return None;
        }
        let what = match self.is_blocked {
            false => format!(
                "name server {address} is asked outside the tunnel, over {by}, whose network learns the names"
            ),
            true => format!(
                "packets to name server {address} leave over {by}, where `kill_switch` blocks them: no names are resolved"
            ),
        };
        Some(Problem {
            what,
            advice: format!(
                "set `dns` to servers in `routes`, or put {address} into `bypass` if it is to be asked outside the tunnel"
            ),
        })
    }
}

/// Returns the name servers that this machine asks, each with the link of a link-local address.
fn of_this_machine() -> Vec<(IpAddr, Option<String>)> {
    let text = fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let is_of_resolved = text.lines().any(|line| line.trim() == RESOLVED_STUB);
    let text = match is_of_resolved {
        true => fs::read_to_string(OF_RESOLVED).unwrap_or_default(),
        false => text,
    };
    servers(&text)
}

/// Returns the servers in the text of a `resolv.conf`, apart from those on this machine.
fn servers(text: &str) -> Vec<(IpAddr, Option<String>)> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let text = (words.next() == Some("nameserver")).then(|| words.next())??;
        let (address, link) = match text.split_once('%') {
            Some((address, link)) => (address, Some(link.to_owned())),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        (!address.is_loopback()).then_some((address, link))
    };
    text.lines().filter_map(server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_of_a_file_are_read() {
        let text = "# nameserver 192.0.2.9\nsearch lan\nnameserver 127.0.0.1\n nameserver\t192.0.2.1 \n\
                    nameserver fe80::1%wan0\nnameserver\nnameserver names.example\noptions edns0\n";
        let link = Some("wan0".to_owned());
        let expected = [
            ("192.0.2.1".parse().unwrap(), None),
            ("fe80::1".parse().unwrap(), link),
        ];
        assert_eq!(servers(text), expected);
    }
}
