//! The device with its addresses and routes, which are restored when another program changes or removes
//! some; routes and rules that take precedence are named.

use super::entry::Entry;
use crate::config::DeviceRoute;
use anyhow::Result;
use hawser_io::interface;
use hawser_io::kept::{Item, Problem};
use hawser_io::netlink::{self, Route};
use hawser_replication_bpf::Prefix;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The number of the routing table `main`.
const MAIN: u32 = 254;

/// The agent's interface, which should be as it was created.
pub(super) struct KeptLink<'a> {
    pub(super) name: &'a str,
    pub(super) mtu_bytes: u16,
    pub(super) exists: bool,
    /// Creates the interface if there is none, brings it up and sets its MTU.
    pub(super) restore: &'a mut dyn FnMut() -> Result<()>,
}

impl Item for KeptLink<'_> {
    fn name(&self) -> String {
        format!("device {}", self.name)
    }

    fn examine(&self) -> Option<Problem> {
        let what = match interface::link(self.name) {
            _ if !self.exists => "another program has deleted it",
            Ok(link) if !link.is_up => "it was set down",
            Ok(link) if link.mtu_bytes != u32::from(self.mtu_bytes) => "it had another MTU",
            _ => return None,
        };
        Some(Problem {
            what: format!(
                "{}, which takes this node's own traffic: {what}",
                self.name()
            ),
            advice: "restart the agent".to_owned(),
        })
    }

    fn restore(&mut self) -> Result<bool, String> {
        let restored = (self.restore)();
        restored
            .map(|()| true)
            .map_err(|error| format!("{error:#}"))
    }
}

/// The addresses and routes of the kernel, as far as they are compared with entries.
#[derive(Debug, Default)]
pub(super) struct Present {
    addresses: BTreeSet<(String, IpAddr, u8)>,
    routes: BTreeSet<Route>,
}

impl Present {
    /// Reads what the kernel has on the interfaces of these entries.
    pub(super) fn read<'e>(entries: impl Iterator<Item = &'e Entry>) -> Present {
        // Entries that cannot be read count as missing, and are installed again.
        let networks = interface::networks().unwrap_or_default();
        let addresses = networks
            .into_iter()
            .map(|own| (own.interface, own.address, own.prefix_length));
        let interfaces: BTreeSet<_> = entries.filter_map(Entry::route).map(by).collect();
        let routes = interfaces
            .into_iter()
            .flat_map(|interface| netlink::routes_by(interface).unwrap_or_default());
        Present {
            addresses: addresses.collect(),
            routes: routes.collect(),
        }
    }

    fn has(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Address(own) => {
                let key = (own.interface.clone(), own.address, own.prefix_length);
                self.addresses.contains(&key)
            }
            Entry::Route(route) => self.routes.contains(&Route {
                table: Some(route.table.unwrap_or(MAIN)),
                ..route.clone()
            }),
        }
    }
}

fn by(route: &Route) -> &str {
    &route.interface
}

/// An address or a route that should be installed.
pub(super) struct KeptEntry<'a> {
    pub(super) entry: &'a Entry,
    pub(super) present: &'a Present,
}

impl Item for KeptEntry<'_> {
    fn name(&self) -> String {
        self.entry.to_string()
    }

    fn examine(&self) -> Option<Problem> {
        (!self.present.has(self.entry)).then(|| Problem {
            what: format!("the {} is missing or was changed", self.entry),
            advice: "look at the routes to its next hop".to_owned(),
        })
    }

    fn restore(&mut self) -> Result<bool, String> {
        let restored = self.entry.replace();
        restored.map(|()| true).map_err(|error| error.to_string())
    }
}

/// The packets to a routed prefix, which should leave by the agent's interface. Rules of the routing
/// policy and other routes may take precedence over its route.
pub(super) struct UsedRoute<'a> {
    pub(super) interface: &'a str,
    pub(super) route: &'a DeviceRoute,
    /// The node's addresses.
    pub(super) own: &'a BTreeSet<IpAddr>,
}

impl Item for UsedRoute<'_> {
    fn name(&self) -> String {
        format!("packets to {}", self.route.destination)
    }

    fn examine(&self) -> Option<Problem> {
        let (source, destination) = (
            self.route.source,
            example(self.route.destination, self.own)?,
        );
        let takes = match interface::any_route_from(source, destination) {
            Ok(route) if route.interface == self.interface => return None,
            // Routes of IPv6 that drop packets have the loopback interface.
            Ok(route) if route.interface != "lo" => format!("sends them by {}", route.interface),
            _ => "drops them".to_owned(),
        };
        Some(Problem {
            what: format!(
                "{} do not leave by {} and are not replicated: another route, or a rule of the routing policy, {takes}",
                self.name(),
                self.interface
            ),
            advice: format!(
                "remove it, or give it a lower priority than the route by {}; `ip route get {destination} from {source}` and \
                 `ip rule` show what precedes",
                self.interface
            ),
        })
    }
}

/// Returns an address of a prefix that packets can be sent to: the first one that is neither the
/// network's nor this node's.
fn example(prefix: Prefix, own: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let next = |first: IpAddr, count: u8| -> IpAddr {
        match first {
            // Packets to 0.0.0.0/8 and to ::1 leave no machine.
            IpAddr::V4(v4) if v4.is_unspecified() => [1, 0, 0, count].into(),
            IpAddr::V6(v6) if v6.is_unspecified() => {
                [0x2000, 0, 0, 0, 0, 0, 0, count.into()].into()
            }
            IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4) + u32::from(count)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) + u128::from(count)).into(),
        }
    };
    let width = if prefix.address().is_ipv4() { 32 } else { 128 };
    let counts = match width - prefix.bits() {
        0 => 0..=0,
        1 => 0..=1,
        _ => 1..=2,
    };
    let mut addresses = counts.map(|count| next(prefix.address(), count));
    addresses.find(|address| !own.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_can_be_sent_to_the_example_of_a_prefix() {
        let own = ["10.99.0.1", "fd99::1"].map(|own| own.parse().unwrap());
        for (prefix, address) in [
            ("10.99.0.2/32", "10.99.0.2"),
            ("10.99.0.0/31", "10.99.0.0"),
            ("10.99.0.0/24", "10.99.0.2"),
            ("10.98.0.0/16", "10.98.0.1"),
            ("0.0.0.0/0", "1.0.0.1"),
            ("fd99::2/128", "fd99::2"),
            ("fd99::/64", "fd99::2"),
            ("::/0", "2000::1"),
        ] {
            let found = example(prefix.parse().unwrap(), &own.into());
            assert_eq!(found, address.parse().ok(), "{prefix}");
        }
    }
}
