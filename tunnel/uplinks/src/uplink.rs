//! Uplinks and servers, and the addresses between which they are connected.

use std::net::{IpAddr, SocketAddr};

/// A usable interface of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uplink {
    /// The name of the interface.
    pub interface: String,
    /// Its IPv4 address, if any.
    pub ipv4: Option<IpAddr>,
    /// Its IPv6 addresses, the preferred one of each scope: global and unique local (RFC 4193). The
    /// global one is the first.
    pub ipv6: Vec<IpAddr>,
    /// Its further addresses, for servers that do not answer to the preferred ones: one may be an alias
    /// for a modem's page, or of a network that the interface has left.
    pub others: Vec<IpAddr>,
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
    /// Its addresses; an uplink prefers the first one whose family it has.
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
    /// Returns the routes to those addresses of the server whose family the uplink has, the preferred
    /// one first. Like RFC 6724 (section 6, rule 5), it prefers addresses for which the uplink has one
    /// of the same kind: a unique local address rarely reaches a global one.
    pub fn routes(&self, server: &Server) -> Vec<Route> {
        let remotes = server.addresses.iter();
        let routes = remotes.filter_map(|remote| {
            Some(Route {
                own: self.own(*remote)?,
                remote: *remote,
            })
        });
        let (preferred, others): (Vec<_>, Vec<_>) = routes
            .partition(|route| is_unique_local(route.own) == is_unique_local(route.remote.ip()));
        [preferred, others, self.further_routes(server)].concat()
    }

    fn further_routes(&self, server: &Server) -> Vec<Route> {
        let of_family = |own: IpAddr| {
            let mut remotes = server.addresses.iter();
            let remote = remotes.find(|remote| remote.is_ipv4() == own.is_ipv4())?;
            Some(Route {
                own,
                remote: *remote,
            })
        };
        self.others.iter().copied().filter_map(of_family).collect()
    }

    /// Returns whether both are the same uplink in the same network, of any MTU.
    pub(crate) fn is_like(&self, other: &Uplink) -> bool {
        let mtu = other.mtu;
        Uplink {
            mtu,
            ..self.clone()
        } == *other
    }

    /// Returns the preferred route to the server; none if they have no family in common.
    pub fn route(&self, server: &Server) -> Option<Route> {
        self.routes(server).into_iter().next()
    }

    /// Returns the address of the uplink from which packets to `remote` are sent, if it has one of
    /// this family.
    pub fn own(&self, remote: SocketAddr) -> Option<IpAddr> {
        if remote.is_ipv4() {
            return self.ipv4;
        }
        let has_same_scope = |own: &&IpAddr| is_unique_local(**own) == is_unique_local(remote.ip());
        let same = self.ipv6.iter().find(has_same_scope);
        same.or(self.ipv6.first()).copied()
    }
}

/// Returns whether an address is an IPv6 one that is valid in private networks only (RFC 4193).
pub fn is_unique_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unique_local())
}

#[cfg(test)]
pub(crate) fn uplink(interface: &str, cost: u8) -> Uplink {
    Uplink {
        interface: interface.to_owned(),
        ipv4: Some([192, 0, 2, 1].into()),
        ipv6: Vec::new(),
        others: Vec::new(),
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
        uplink.ipv6 = vec![ipv6];
        assert_eq!(uplink.route(&server).unwrap().remote, server.addresses[0]);
        (uplink.ipv4, uplink.ipv6) = (None, Vec::new());
        assert_eq!(uplink.route(&server), None);
    }

    #[test]
    fn further_addresses_are_used_after_the_preferred_ones() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let mut server = server("a");
        server
            .addresses
            .insert(0, (ip("2001:db8::9"), 14752).into());
        let mut uplink = uplink("eth0", 0);
        uplink.ipv6 = vec![ip("2001:db8::1")];
        uplink.others = vec![ip("192.168.100.5"), ip("2001:db8:1::1")];
        let routes = uplink.routes(&server);
        let own: Vec<_> = routes.iter().map(|route| route.own).collect();
        let preferred = [uplink.ipv6[0], uplink.ipv4.unwrap()];
        assert_eq!(own, [&preferred[..], &uplink.others].concat());
        let is_possible = |route: &Route| route.own.is_ipv4() == route.remote.is_ipv4();
        assert!(routes.iter().all(is_possible));
    }

    #[test]
    fn an_uplinks_address_has_the_scope_of_the_servers() {
        let [global, local]: [IpAddr; 2] = ["2001:db8::1", "fd01::1"].map(|ip| ip.parse().unwrap());
        let to = |remote: &str| Server {
            addresses: vec![
                SocketAddr::new(remote.parse().unwrap(), 14752),
                ([203, 0, 113, 1], 14752).into(),
            ],
            ..server("a")
        };
        let (to_global, to_local) = (to("2001:db8::9"), to("fd09::9"));
        let mut uplink = uplink("eth0", 0);
        let routes = |uplink: &Uplink, server| -> Vec<IpAddr> {
            uplink
                .routes(server)
                .iter()
                .map(|route| route.own)
                .collect()
        };
        let ipv4 = uplink.ipv4.unwrap();
        uplink.ipv6 = vec![global, local];
        assert_eq!(routes(&uplink, &to_global), [global, ipv4]);
        assert_eq!(routes(&uplink, &to_local), [local, ipv4]);
        // The other scope is better than nothing, and IPv4 is better.
        uplink.ipv6 = vec![local];
        assert_eq!(routes(&uplink, &to_global), [ipv4, local]);
        uplink.ipv6 = vec![global];
        assert_eq!(routes(&uplink, &to_local), [ipv4, global]);
    }
}
