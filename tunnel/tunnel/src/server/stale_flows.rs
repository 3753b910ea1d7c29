//! Flows of clients that began while their source was not translated, or was translated to an address
//! that this machine had then. Replies to them reach nobody.

use super::Server;
use crate::config::Prefix;
use crate::interfaces::Networks;
use crate::stale_flows;
use hawser_io::netlink::TrackedFlow;

/// The flows that leave by another interface than the server's device.
struct Outside {
    /// The networks of the clients.
    clients: Vec<Prefix>,
    /// The networks of this machine.
    networks: Networks,
}

impl Outside {
    /// Returns whether packets of the flow leave with a source that is not this machine's.
    fn is_stale(&self, flow: &TrackedFlow) -> bool {
        let is_client = |address| self.clients.iter().any(|prefix| prefix.contains(address));
        is_client(flow.source)
            && !is_client(flow.destination)
            && !self.networks.receives(flow.destination)
            && !self.networks.receives(flow.translated_source)
    }
}

impl Server {
    /// Has the source of packets that leave translated, also in flows that were there before.
    pub(super) fn forget_stale_flows(&self) {
        if !self.config.nat {
            return;
        }
        let outside = Outside {
            clients: self.config.prefixes.clone(),
            networks: self.networks.borrow().clone(),
        };
        stale_flows::forget(
            "flows of clients that had another source",
            "may get no replies (`nat`)",
            move |flow| outside.is_stale(flow),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn flows_that_leave_with_a_source_of_nobody_are_stale() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let outside = Outside {
            clients: vec!["10.77.0.0/16".parse().unwrap()],
            networks: Networks::of(&[("203.0.113.1", "255.255.255.0")]),
        };
        let is_stale = |source, destination, translated_source| {
            outside.is_stale(&TrackedFlow {
                source: ip(source),
                destination: ip(destination),
                translated_source: ip(translated_source),
            })
        };
        let client = "10.77.0.2";
        assert!(is_stale(client, "9.8.7.9", client), "not translated");
        assert!(is_stale(client, "9.8.7.9", "203.0.114.1"), "former address");
        assert!(!is_stale(client, "9.8.7.9", "203.0.113.1"), "translated");
        assert!(!is_stale(client, "10.77.0.1", client), "to the server");
        assert!(!is_stale(client, "203.0.113.1", client), "to the machine");
        assert!(!is_stale("9.8.7.9", client, "9.8.7.9"), "to a client");
        assert!(!is_stale("9.8.7.9", "9.8.7.8", "9.8.7.9"), "of others");
    }
}
