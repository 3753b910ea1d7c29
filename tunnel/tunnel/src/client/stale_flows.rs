//! Flows that began while their packets left outside the tunnel. The kernel's connection tracking keeps
//! the source that it chose then, which the server does not accept, for as long as they have packets.

use super::Client;
use crate::config::Prefix;
use crate::interfaces::Networks;
use crate::stale_flows;
use hawser_io::netlink::TrackedFlow;
use std::net::IpAddr;

/// The flows that now leave through the tunnel, and the sources that they have there.
struct Inside {
    routes: Vec<Prefix>,
    own: Vec<IpAddr>,
    /// The networks of this node, which no route leads into the tunnel.
    networks: Networks,
    /// The servers and controllers, which are reached over uplinks.
    peers: Vec<IpAddr>,
}

impl Inside {
    /// Returns whether packets of the flow now enter the tunnel with a source that is not its own.
    fn is_stale(&self, flow: &TrackedFlow) -> bool {
        let to = flow.destination;
        let has_own = || self.own.iter().any(|own| own.is_ipv4() == to.is_ipv4());
        self.routes.iter().any(|route| route.contains(to))
            && has_own()
            && !self.own.contains(&flow.translated_source)
            && !self.networks.contains(to)
            && !self.peers.contains(&to)
    }
}

impl Client {
    /// Forgets stale flows after another program's removals of routes or rules were undone.
    pub(super) fn follow_restorations(&mut self) {
        let tables = self.tables.iter().map(|table| table.restored());
        let restored = self.kept.device_restored() + tables.sum::<u64>();
        if std::mem::replace(&mut self.flows_forgotten_at, restored) != restored {
            self.forget_stale_flows();
        }
    }

    /// Has the source of packets that now enter the tunnel translated, also in flows that were there
    /// before.
    pub(super) fn forget_stale_flows(&self) {
        if !self.config.masquerade {
            return;
        }
        let routes = self.routes(&self.addresses);
        let inside = Inside {
            routes: routes.into_iter().map(|(prefix, _)| prefix).collect(),
            own: self.addresses.own.clone(),
            networks: self.networks.borrow().clone(),
            peers: self.peers(),
        };
        stale_flows::forget(
            "flows that were outside the tunnel",
            "may be dropped by the server (`masquerade`)",
            move |flow| inside.is_stale(flow),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_into_the_tunnel_with_another_source_are_stale() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let inside = Inside {
            routes: vec!["0.0.0.0/1".parse().unwrap(), "::/1".parse().unwrap()],
            own: vec![ip("10.77.0.2")],
            networks: Networks::of(&[("10.9.0.1", "255.255.255.0")]),
            peers: vec![ip("20.0.0.1")],
        };
        let is_stale = |destination, translated_source| {
            inside.is_stale(&TrackedFlow {
                source: ip("10.9.0.2"),
                destination: ip(destination),
                translated_source: ip(translated_source),
            })
        };
        assert!(is_stale("9.8.7.9", "10.9.0.2"), "not translated");
        assert!(
            is_stale("9.8.7.9", "192.168.8.100"),
            "translated for an uplink"
        );
        assert!(
            !is_stale("9.8.7.9", "10.77.0.2"),
            "translated for the tunnel"
        );
        assert!(
            !is_stale("10.9.0.7", "10.9.0.2"),
            "in a network of this node"
        );
        assert!(!is_stale("20.0.0.1", "192.168.8.100"), "the tunnel's own");
        assert!(
            !is_stale("200.0.0.1", "10.9.0.2"),
            "not routed into the tunnel"
        );
        assert!(!is_stale("1::1", "fd09::2"), "no IPv6 inside");
    }
}
