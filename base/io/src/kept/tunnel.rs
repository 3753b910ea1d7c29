//! The packets that should enter a tunnel: those of an IP version for which it has an address inside, to
//! destinations to which the kernel has no other route.

use super::{Item, Problem};
use crate::interface::{self, InNetwork};
use crate::netlink;
use hawser_units::Prefix;
use std::net::IpAddr;

/// An IP version whose packets are routed into a tunnel, so that its device should have an address of it
/// as soon as it has any.
#[derive(Debug)]
pub struct InnerFamily {
    /// The device of the tunnel.
    pub interface: String,
    /// Whether it is IPv6.
    pub is_ipv6: bool,
    /// Whether such packets are blocked outside the tunnel.
    pub is_blocked: bool,
}

impl InnerFamily {
    /// Returns those that routes into a device are for.
    pub fn of_routes(
        interface: &str,
        routes: &[Prefix],
        is_blocked: bool,
    ) -> impl Iterator<Item = InnerFamily> {
        let has_routes = |is_ipv6: &bool| {
            let mut routes = routes.iter();
            routes.any(|route| route.address().is_ipv6() == *is_ipv6)
        };
        let families = [false, true].into_iter().filter(has_routes);
        families.map(move |is_ipv6| InnerFamily {
            interface: interface.to_owned(),
            is_ipv6,
            is_blocked,
        })
    }
}

impl Item for InnerFamily {
    fn name(&self) -> String {
        format!("{} inside {}", family(self.is_ipv6), self.interface)
    }

    fn examine(&self) -> Option<Problem> {
        let networks = interface::networks().ok()?;
        let has = |is_inside: bool, is_ipv6: bool| {
            networks.iter().any(|own| {
                let is_own = (own.interface == self.interface) == is_inside;
                let is_used = !is_inside || interface::is_reachable(own.address);
                is_own && is_used && own.address.is_ipv6() == is_ipv6
            })
        };
        let has_session = has(true, !self.is_ipv6);
        // Without an address outside, also of loopback, the version is switched off on this machine.
        if !has_session || has(true, self.is_ipv6) || !has(false, self.is_ipv6) {
            return None;
        }
        let family = family(self.is_ipv6);
        let consequence = match self.is_blocked {
            false => format!("{family} packets to `routes` leave outside it"),
            true => format!("`kill_switch` blocks {family} packets"),
        };
        Some(Problem {
            what: format!("the tunnel has no {family} address inside: {consequence}"),
            advice: format!(
                "add an {family} prefix to `addresses` of the server, whose uplinks have to carry 1280 bytes inside for \
                 IPv6, or take {family} out of `routes`"
            ),
        })
    }
}

fn family(is_ipv6: bool) -> &'static str {
    if is_ipv6 { "IPv6" } else { "IPv4" }
}

/// The routes by a tunnel's device, which the kernel should use. Routes and rules of other programs can
/// precede them.
#[derive(Debug)]
pub struct TunnelRoutes {
    /// The device of the tunnel.
    pub interface: String,
    /// The destinations.
    pub inside: Vec<Prefix>,
    /// Those of them that may have other routes.
    pub outside: Vec<Prefix>,
    /// The end of the tunnel.
    pub end: TunnelEnd,
}

/// The end of a tunnel that has routes.
#[derive(Debug)]
pub enum TunnelEnd {
    /// A client.
    Client {
        /// The routing table, if it is not the main one.
        table: Option<u32>,
        /// Whether packets to the destinations are blocked outside the tunnel.
        is_blocked: bool,
    },
    /// A server, whose destinations are the networks of its clients.
    Server,
}

/// The most routes of others that are examined, each by a question to the kernel.
const MAX_OTHERS: usize = 1000;

/// A destination to which packets do not enter the tunnel.
struct Diverted {
    to: Prefix,
    address: IpAddr,
    /// The interface that they leave by; none if a route drops them.
    by: Option<String>,
}

impl Item for TunnelRoutes {
    fn name(&self) -> String {
        format!("routes by {}", self.interface)
    }

    fn examine(&self) -> Option<Problem> {
        match &self.end {
            TunnelEnd::Client {
                table: Some(table), ..
            } => self.without_rule(*table),
            _ => self.diversion(),
        }
    }
}

impl TunnelRoutes {
    /// Returns the destinations for whose IP version the device has an address.
    fn carried(&self) -> Option<Vec<Prefix>> {
        let own = interface::addresses_of(&self.interface).ok()?;
        let has_family = |prefix: &&Prefix| {
            own.iter().any(|own| {
                own.is_ipv4() == prefix.address().is_ipv4() && interface::is_reachable(*own)
            })
        };
        Some(self.inside.iter().filter(has_family).copied().collect())
    }

    fn without_rule(&self, table: u32) -> Option<Problem> {
        let carried = self.carried()?;
        let is_missing = |is_ipv6: &bool| {
            let mut carried = carried.iter();
            carried.any(|prefix| prefix.address().is_ipv6() == *is_ipv6)
                && netlink::rule_tables(*is_ipv6).is_ok_and(|tables| !tables.contains(&table))
        };
        let is_ipv6 = [false, true].into_iter().find(is_missing)?;
        let option = if is_ipv6 { "-6 " } else { "" };
        Some(Problem {
            what: format!(
                "no rule of the routing policy looks up table {table}: no {} packets enter the tunnel",
                family(is_ipv6)
            ),
            advice: format!("add one, such as `ip {option}rule add fwmark 16 lookup {table}`"),
        })
    }

    fn diversion(&self) -> Option<Problem> {
        let carried = self.carried()?;
        let others = match self.end {
            TunnelEnd::Client { .. } => netlink::gatewayed_or_dropped().ok()?,
            TunnelEnd::Server => Vec::new(),
        };
        let is_finer = |other: &Prefix| carried.iter().any(|prefix| prefix.contains(*other));
        let others = others.into_iter().filter(is_finer).take(MAX_OTHERS);
        let networks = interface::networks().ok()?;
        let examined = carried.iter().copied().chain(others);
        let mut diverted: Vec<_> = examined
            .filter_map(|to| self.diverted(to, &networks))
            .collect();
        diverted.sort_by_key(|found| found.to);
        diverted.dedup_by_key(|found| found.to);
        let (first, rest) = diverted.split_first()?;
        Some(self.problem(first, rest.len()))
    }

    /// Asks the kernel for the route to an address of a network.
    fn diverted(&self, to: Prefix, networks: &[InNetwork]) -> Option<Diverted> {
        let addresses = samples(to).into_iter();
        let mut addresses = addresses.filter(|address| self.is_expected_inside(*address, networks));
        let address = addresses.next()?;
        let route = interface::route(address, None).ok();
        // Routes of IPv6 that drop packets have the loopback interface.
        let by = route.map(|route| route.interface);
        let by = by.filter(|name| name != "lo");
        (by.as_ref() != Some(&self.interface)).then_some(Diverted { to, address, by })
    }

    /// Returns whether an address is neither left out, nor multicast, nor in a network of another
    /// interface.
    fn is_expected_inside(&self, address: IpAddr, networks: &[InNetwork]) -> bool {
        let host = Prefix::host(address);
        let is_near = |own: &InNetwork| {
            own.interface != self.interface
                && Prefix::new(own.address, own.prefix_length)
                    .is_some_and(|network| network.contains(host))
        };
        let is_left_out = self.outside.iter().any(|prefix| prefix.contains(host));
        !(is_left_out || address.is_multicast() || networks.iter().any(is_near))
    }

    fn problem(&self, Diverted { to, address, by }: &Diverted, others: usize) -> Problem {
        let networks = match others {
            0 => to.to_string(),
            _ => format!("{to} and {others} other networks"),
        };
        let consequence = match (by, &self.end) {
            (None, _) => "dropped by a route of this machine".to_owned(),
            (
                Some(by),
                TunnelEnd::Client {
                    is_blocked: true, ..
                },
            ) => {
                format!("routed over {by}, where `kill_switch` blocks them")
            }
            (Some(by), _) => format!("routed over {by}, outside the tunnel"),
        };
        let bypass = match self.end {
            TunnelEnd::Client { .. } => ", or put the network into `bypass`",
            TunnelEnd::Server => "",
        };
        Problem {
            what: format!("packets to {networks} do not enter the tunnel: they are {consequence}"),
            advice: format!(
                "remove the route or the rule that `ip route get {address}` and `ip rule` show{bypass}"
            ),
        }
    }
}

/// Returns addresses in the middle of a network and of its halves, which are not special ones.
fn samples(network: Prefix) -> [IpAddr; 3] {
    let half = |address| Prefix::new(address, network.bits() + 1).unwrap_or(network);
    let [lower, upper] = [network.address(), network.last()].map(half);
    [network, lower, upper].map(middle)
}

/// Returns the first address of the upper half of a network, or its only one.
fn middle(network: Prefix) -> IpAddr {
    let upper = Prefix::new(network.last(), network.bits() + 1);
    upper.unwrap_or(network).address()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_samples_of_a_network_are_in_it() {
        for (network, expected) in [
            ("0.0.0.0/0", ["128.0.0.0", "64.0.0.0", "192.0.0.0"]),
            ("8.0.0.0/6", ["10.0.0.0", "9.0.0.0", "11.0.0.0"]),
            ("9.8.7.8/31", ["9.8.7.9", "9.8.7.8", "9.8.7.9"]),
            ("9.8.7.9/32", ["9.8.7.9"; 3]),
            ("::/0", ["8000::", "4000::", "c000::"]),
        ] {
            let expected = expected.map(|address| address.parse::<IpAddr>().unwrap());
            assert_eq!(samples(network.parse().unwrap()), expected);
        }
    }
}
