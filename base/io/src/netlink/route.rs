use super::{Error, added, family, index, request};
use hawser_units::Prefix;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage::{DelRoute, GetRoute, NewRoute};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
    RouteScope, RouteType, RouteVia,
};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `linux/rtnetlink.h`: the bit that locks a route's MTU.
const LOCK_MTU: u32 = 1 << 2;

/// A route of the table `main`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The first address of the destination.
    pub destination: IpAddr,
    /// The length of the destination's prefix, in bits.
    pub prefix_length: u8,
    /// The router, of either IP version if the destination is of IPv4. Without one, the
    /// destination is on the link.
    pub next_hop: Option<IpAddr>,
    /// The interface that packets leave by.
    pub interface: String,
    /// The source address of packets that do not have one yet.
    pub source: Option<IpAddr>,
    /// The route with the smallest metric is used. Without one, it is the kernel's default, and any
    /// metric when a route is deleted.
    pub metric: Option<u32>,
    /// The largest packet, in bytes.
    pub mtu_bytes: Option<u32>,
    /// Whether the MTU stays when path MTU discovery finds a smaller one.
    pub is_mtu_locked: bool,
    /// The number that marks the route as its creator's. Without one, it is that of manual routes,
    /// and any when a route is deleted.
    pub protocol: Option<u8>,
    /// The routing table; the main one without a number.
    pub table: Option<u32>,
}

impl Route {
    /// Returns a route by an interface, with the defaults of the kernel.
    pub fn new(destination: IpAddr, prefix_length: u8, interface: &str) -> Self {
        Route {
            destination,
            prefix_length,
            next_hop: None,
            interface: interface.to_owned(),
            source: None,
            metric: None,
            mtu_bytes: None,
            is_mtu_locked: false,
            protocol: None,
            table: None,
        }
    }

    /// Adds the route, in place of one with the same destination and metric if there is one.
    pub fn replace(&self) -> Result<(), Error> {
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let description = format_args!("replace route {self}");
        request(description, NewRoute(self.added()?), flags).map(drop)
    }

    /// Adds the route if there is no such route. Returns whether there was none. Other routes with the
    /// same destination and metric stay: those of IPv4 come after it, those of IPv6 before it.
    pub fn prepend(&self) -> Result<bool, Error> {
        let description = format_args!("prepend route {self}");
        added(request(description, NewRoute(self.added()?), NLM_F_CREATE))
    }

    /// Removes the first route that has all properties of this one.
    pub fn delete(&self) -> Result<(), Error> {
        let mut message = self.message()?;
        message.header.scope = RouteScope::NoWhere;
        message.header.protocol = self.protocol.unwrap_or_default().into();
        let description = format_args!("delete route {self}");
        request(description, DelRoute(message), 0).map(drop)
    }

    fn added(&self) -> Result<RouteMessage, Error> {
        let mut message = self.message()?;
        message.header.kind = RouteType::Unicast;
        message.header.protocol = self.protocol.map_or(RouteProtocol::Boot, Into::into);
        if self.destination.is_ipv4() && self.next_hop.is_none() {
            message.header.scope = RouteScope::Link;
        }
        Ok(message)
    }

    fn message(&self) -> Result<RouteMessage, Error> {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(self.destination),
            destination_prefix_length: self.prefix_length,
            table: match self.table {
                None => RouteHeader::RT_TABLE_MAIN,
                // The number is in an attribute, which has room for all of them.
                Some(_) => RouteHeader::RT_TABLE_UNSPEC,
            },
            ..RouteHeader::default()
        };
        let source = self
            .source
            .map(|source| RouteAttribute::PrefSource(source.into()));
        let attributes = [
            Some(RouteAttribute::Destination(self.destination.into())),
            Some(RouteAttribute::Oif(index(&self.interface)?)),
            self.next_hop.map(|next_hop| self.gateway(next_hop)),
            source,
            self.metric.map(RouteAttribute::Priority),
            self.mtu_bytes.map(|mtu| self.metrics(mtu)),
            self.table.map(RouteAttribute::Table),
        ];
        message.attributes.extend(attributes.into_iter().flatten());
        Ok(message)
    }

    fn gateway(&self, next_hop: IpAddr) -> RouteAttribute {
        if next_hop.is_ipv4() == self.destination.is_ipv4() {
            RouteAttribute::Gateway(next_hop.into())
        } else {
            RouteAttribute::Via(next_hop.into())
        }
    }

    fn metrics(&self, mtu: u32) -> RouteAttribute {
        let lock = self.is_mtu_locked.then_some(RouteMetric::Lock(LOCK_MTU));
        RouteAttribute::Metrics([RouteMetric::Mtu(mtu)].into_iter().chain(lock).collect())
    }
}

/// The protocol number of a route that the kernel adds with an address (`linux/rtnetlink.h`).
pub const KERNEL_PROTOCOL: u8 = 2;

/// The metric of such a route of IPv6 (`IP6_RT_PRIO_ADDRCONF` in `linux/ipv6_route.h`).
pub const KERNEL_METRIC: u32 = 256;

/// Returns the routes by an interface in all tables, with the numbers of their tables.
pub fn routes_by(interface: &str) -> Result<Vec<Route>, Error> {
    let number = index(interface)?;
    let mut found = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        question.attributes.push(RouteAttribute::Oif(number));
        let description = format_args!("list the routes of {interface}");
        let answers = request(description, GetRoute(question), NLM_F_DUMP)?;
        found.extend(answers.into_iter().filter_map(|answer| match answer {
            NewRoute(route) => listed(route, number, interface),
            _ => None,
        }));
    }
    Ok(found)
}

/// Returns the destinations of the routes of all tables that have a router or drop packets. Routes to the
/// networks of interfaces are none of these.
pub fn gatewayed_or_dropped() -> Result<Vec<Prefix>, Error> {
    let mut found = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        let description = format_args!("list the routes");
        let answers = request(description, GetRoute(question), NLM_F_DUMP)?;
        found.extend(answers.into_iter().filter_map(|answer| match answer {
            NewRoute(route) if has_gateway_or_drops(&route) => destination(&route),
            _ => None,
        }));
    }
    Ok(found)
}

fn has_gateway_or_drops(route: &RouteMessage) -> bool {
    let is_gateway = |attribute: &RouteAttribute| {
        matches!(
            attribute,
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) | RouteAttribute::MultiPath(_)
        )
    };
    match route.header.kind {
        RouteType::Prohibit | RouteType::BlackHole | RouteType::Unreachable => true,
        RouteType::Unicast => route.attributes.iter().any(is_gateway),
        _ => false,
    }
}

/// Returns the destination of a route, which is everything without an attribute.
fn destination(route: &RouteMessage) -> Option<Prefix> {
    let mut attributes = route.attributes.iter();
    let first = attributes.find_map(|attribute| match attribute {
        RouteAttribute::Destination(destination) => ip(destination),
        _ => None,
    });
    let first = first.unwrap_or_else(|| unspecified(route.header.address_family));
    Prefix::new(first, route.header.destination_prefix_length)
}

fn unspecified(family: AddressFamily) -> IpAddr {
    match family {
        AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Returns a route of a listing if it is by the interface with this number.
fn listed(message: RouteMessage, number: u32, interface: &str) -> Option<Route> {
    let header = message.header;
    let first = unspecified(header.address_family);
    let mut route = Route {
        prefix_length: header.destination_prefix_length,
        protocol: Some(header.protocol.into()),
        table: Some(header.table.into()),
        ..Route::new(first, 0, interface)
    };
    let mut is_by = false;
    for attribute in message.attributes {
        match attribute {
            RouteAttribute::Destination(destination) => route.destination = ip(&destination)?,
            RouteAttribute::Gateway(next_hop) => route.next_hop = ip(&next_hop),
            RouteAttribute::Via(RouteVia::Inet(v4)) => route.next_hop = Some(v4.into()),
            RouteAttribute::Via(RouteVia::Inet6(v6)) => route.next_hop = Some(v6.into()),
            RouteAttribute::PrefSource(source) => route.source = ip(&source),
            RouteAttribute::Priority(metric) => route.metric = Some(metric),
            RouteAttribute::Table(table) => route.table = Some(table),
            RouteAttribute::Oif(by) => is_by = by == number,
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    match metric {
                        RouteMetric::Mtu(mtu) => route.mtu_bytes = Some(mtu),
                        RouteMetric::Lock(locks) => route.is_mtu_locked = locks & LOCK_MTU != 0,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    is_by.then_some(route)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

impl fmt::Display for Route {
    /// Writes the route in the syntax of `ip route`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.destination, self.prefix_length)?;
        if let Some(next_hop) = self.next_hop {
            let inet6 = if next_hop.is_ipv6() && self.destination.is_ipv4() {
                "inet6 "
            } else {
                ""
            };
            write!(f, " via {inet6}{next_hop}")?;
        }
        write!(f, " dev {}", self.interface)?;
        if let Some(source) = self.source {
            write!(f, " src {source}")?;
        }
        if let Some(metric) = self.metric {
            write!(f, " metric {metric}")?;
        }
        if let Some(mtu) = self.mtu_bytes {
            let lock = if self.is_mtu_locked { "lock " } else { "" };
            write!(f, " mtu {lock}{mtu}")?;
        }
        if let Some(protocol) = self.protocol {
            write!(f, " proto {protocol}")?;
        }
        self.table
            .map_or(Ok(()), |table| write!(f, " table {table}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_written_as_for_ip_route() {
        let route = Route::new([10, 99, 0, 0].into(), 16, "eth0");
        assert_eq!(route.to_string(), "10.99.0.0/16 dev eth0");
        let route = Route {
            next_hop: Some("fe80::1".parse().unwrap()),
            source: Some([10, 98, 0, 1].into()),
            metric: Some(1000),
            mtu_bytes: Some(1400),
            is_mtu_locked: true,
            protocol: Some(72),
            table: Some(100),
            ..route
        };
        assert_eq!(
            route.to_string(),
            "10.99.0.0/16 via inet6 fe80::1 dev eth0 src 10.98.0.1 metric 1000 mtu lock 1400 proto 72 table 100"
        );
    }
}
