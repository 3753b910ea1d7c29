//! Uplinks: interfaces over which a machine reaches others without help of its default route.

use super::{Item, Problem};
use crate::interface::{self, Described};
use crate::sysctl;
use std::net::IpAddr;

/// The state of an uplink, which should be up and have a carrier.
#[derive(Debug)]
pub struct UplinkState {
    /// The interface.
    pub interface: String,
}

impl Item for UplinkState {
    fn name(&self) -> String {
        format!("state of {}", self.interface)
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.interface)
    }

    fn examine(&self) -> Option<Problem> {
        let name = &self.interface;
        let all = interface::all().ok()?;
        let described: Option<&Described> = all.iter().find(|known| known.name == *name);
        let is_up = interface::link(name).is_ok_and(|link| link.is_up);
        let (what, advice) = match described {
            None => (
                "does not exist",
                "look at the names in the output of `ip link`".to_owned(),
            ),
            Some(_) if !is_up => ("is down", format!("run `ip link set {name} up`")),
            Some(known) if !known.is_running => (
                "has no carrier",
                "look at the cable or the modem".to_owned(),
            ),
            Some(_) => return None,
        };
        Some(Problem {
            what: format!("uplink {name} {what}"),
            advice,
        })
    }
}

/// The routes to peers by an uplink, which should lead to at least one of them.
#[derive(Debug)]
pub struct UplinkRoute {
    /// The interface.
    pub interface: String,
    /// The addresses of the peers.
    pub peers: Vec<IpAddr>,
}

impl Item for UplinkRoute {
    fn name(&self) -> String {
        format!("route over {}", self.interface)
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.interface)
    }

    fn examine(&self) -> Option<Problem> {
        let name = &self.interface;
        let is_up = interface::running().is_ok_and(|running| running.contains(name));
        let own = interface::own_addresses().ok()?;
        // Others than these are not tried.
        let has_family = |peer: &&IpAddr| interface::has_family_of(&own, name, **peer);
        let mut peers = self.peers.iter().filter(has_family);
        let first = *peers.clone().next()?;
        if !is_up || peers.any(|peer| interface::has_route(*peer, name)) {
            return None;
        }
        Some(Problem {
            what: format!("uplink {name} has no route to {first}"),
            advice: format!(
                "add one, such as `ip route add default via ROUTER dev {name} metric 200`, with a metric that no other \
                 uplink has"
            ),
        })
    }
}

/// The answers to ARP requests on uplinks of one network: each should answer for its own addresses
/// only (`arp_ignore` in Documentation/networking/ip-sysctl.rst).
#[derive(Debug)]
pub struct OwnArp {
    /// The interface.
    pub interface: String,
    /// All uplinks.
    pub uplinks: Vec<String>,
}

impl Item for OwnArp {
    fn name(&self) -> String {
        format!("net.ipv4.conf.{}.arp_ignore", self.interface)
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.interface)
    }

    fn examine(&self) -> Option<Problem> {
        let name = &self.interface;
        let setting = |scope: &str| sysctl::of_interface("arp_ignore", scope).unwrap_or(0);
        if setting("all").max(setting(name)) > 0 {
            return None;
        }
        let networks = interface::networks().ok()?;
        let is_shared = |other: &&String| {
            let of = |wanted: &str| {
                let networks = networks
                    .iter()
                    .filter(|network| network.interface == *wanted);
                networks
                    .filter(|network| network.address.is_ipv4())
                    .collect::<Vec<_>>()
            };
            let others = of(other);
            *other != name
                && of(name)
                    .iter()
                    .any(|own| others.iter().any(|other| own.is_same_network(other)))
        };
        let other = self.uplinks.iter().find(is_shared)?;
        Some(Problem {
            what: format!(
                "{name} and {other} have addresses of one network: if they are on one switch, each answers ARP requests for \
                 the other one's address, and packets arrive on the wrong one for seconds after a change"
            ),
            advice: format!(
                "run `sysctl -w net.ipv4.conf.{name}.arp_ignore=1 net.ipv4.conf.{other}.arp_ignore=1`"
            ),
        })
    }
}
