//! Uplinks and servers, and the addresses between which they are connected.

use std::net::{IpAddr, SocketAddr};

/// A usable interface of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uplink {
    /// The name of the interface.
    pub interface: String,
    /// Its IPv4 address, if any.
    pub ipv4: Option<IpAddr>,
    /// Its IPv6 address, if any.
    pub ipv6: Option<IpAddr>,
    /// The largest packet of the interface and of the network behind it, in bytes.
    pub mtu: u16,
    /// The cost class; uplinks of higher classes are on standby while lower ones suffice.
    pub cost: u8,
    /// The bytes that it may carry in a calendar month.
    pub monthly_cap: Option<u64>,
}

/// A tunnel server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The name in its certificate.
    pub name: String,
    /// Its addresses; an uplink uses the first one whose family it has.
    pub addresses: Vec<SocketAddr>,
    /// The TCP port at the same addresses, for networks that block UDP.
    pub tcp_port: Option<u16>,
}

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The address of the uplink.
    pub own: IpAddr,
    /// The address of the server.
    pub remote: SocketAddr,
}

impl Uplink {
    /// Returns the first address of the server whose family the uplink has, with the uplink's own;
    /// none if they have no family in common.
    pub fn route(&self, server: &Server) -> Option<Route> {
        server.addresses.iter().find_map(|remote| {
            let own = match remote {
                SocketAddr::V4(_) => self.ipv4,
                SocketAddr::V6(_) => self.ipv6,
            };
            Some(Route {
                own: own?,
                remote: *remote,
            })
        })
    }
}

#[cfg(test)]
pub(crate) fn uplink(interface: &str, cost: u8) -> Uplink {
    Uplink {
        interface: interface.to_owned(),
        ipv4: Some([192, 0, 2, 1].into()),
        ipv6: None,
        mtu: 1500,
        cost,
        monthly_cap: None,
    }
}

#[cfg(test)]
pub(crate) fn server(name: &str) -> Server {
    Server {
        name: name.to_owned(),
        addresses: vec![([203, 0, 113, 1], 14752).into()],
        tcp_port: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uplink_uses_the_first_address_whose_family_it_has() {
        let ipv6: IpAddr = "2001:db8::1".parse().unwrap();
        let mut server = server("a");
        server.addresses.insert(0, (ipv6, 14752).into());
        let mut uplink = uplink("eth0", 0);
        assert_eq!(uplink.route(&server).unwrap().remote, server.addresses[1]);
        uplink.ipv6 = Some(ipv6);
        assert_eq!(uplink.route(&server).unwrap().remote, server.addresses[0]);
        (uplink.ipv4, uplink.ipv6) = (None, None);
        assert_eq!(uplink.route(&server), None);
    }
}
