//! The settings of the kernel that an agent needs beside its programs, and that other programs may change.

use crate::node::Node;
use anyhow::{Context, Result};
use hawser_io::interface;
use hawser_io::kept::{
    Deviation, Filters, ForwardedPass, Forwarding, Item, LooseFilter, NoReversePathRule, Rules,
    Traffic, Watch,
};
use hawser_units::FlowId;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// The consequence for hosts behind a node.
const BEHIND: &str = "receivers on other hosts get nothing";

/// Keeps what the node needs until it is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    watch: Watch,
    forwarded: Arc<Mutex<Forwarded>>,
}

/// The received flows that have brought packets for other hosts, and whether these were IPv6.
#[derive(Debug, Default)]
struct Forwarded(BTreeSet<(FlowId, bool)>);

impl Kept {
    pub(crate) fn watch(node: &Node) -> Result<Kept> {
        let (filters, forwarded) = (node.filters(), Arc::<Mutex<Forwarded>>::default());
        let noted = Arc::clone(&forwarded);
        let items = move |rules: &mut Rules| {
            // The lock is not held while the rules are read.
            let versions = noted.lock().versions();
            items(&filters, &versions, rules)
        };
        let watch = Watch::start(items)
            .context("cannot start the thread that restores settings of the kernel")?;
        Ok(Kept { watch, forwarded })
    }

    /// Returns the deviations since the agent was started.
    pub(crate) fn deviations(&self) -> Vec<Deviation> {
        self.watch.deviations()
    }

    /// Notes whether received packets are for other hosts. Call this every second.
    pub(crate) fn follow(&self, node: &Node) {
        let destinations = node.last_destinations();
        // The next call asks again.
        let Ok(own) = interface::own_addresses() else {
            return;
        };
        let own = own.into_iter().map(|own| own.address).collect();
        self.forwarded.lock().follow(&destinations, &own);
    }
}

impl Forwarded {
    /// `destinations`: those of the last packets of all received flows.
    fn follow(&mut self, destinations: &[(FlowId, Option<IpAddr>)], own: &BTreeSet<IpAddr>) {
        let is_received = |flow| destinations.iter().any(|(received, _)| *received == flow);
        self.0.retain(|(flow, _)| is_received(*flow));
        for (flow, destination) in destinations {
            let is_foreign = |to: &IpAddr| !own.contains(to) && !to.is_multicast();
            if let Some(to) = destination.filter(is_foreign) {
                self.0.insert((*flow, to.is_ipv6()));
            }
        }
    }

    fn versions(&self) -> BTreeSet<bool> {
        self.0.iter().map(|(_, is_ipv6)| *is_ipv6).collect()
    }
}

/// `versions`: the IP versions of packets for other hosts, true for IPv6.
fn items(
    filters: &Arc<Mutex<Filters>>,
    versions: &BTreeSet<bool>,
    rules: &mut Rules,
) -> Vec<Box<dyn Item>> {
    let used = filters.lock().used().clone();
    if used.is_empty() {
        return Vec::new();
    }
    let rules = rules.current();
    let mut items: Vec<Box<dyn Item>> = vec![Box::new(NoReversePathRule {
        interfaces: used.iter().cloned().collect(),
        peers: None,
        rules: Arc::clone(&rules),
    })];
    for is_ipv6 in versions {
        items.push(Box::new(Forwarding {
            is_ipv6: *is_ipv6,
            interfaces: used.iter().cloned().collect(),
            consequence: BEHIND.to_owned(),
        }));
    }
    for interface in used {
        if !versions.is_empty() {
            items.push(Box::new(ForwardedPass {
                interface: interface.clone(),
                traffic: Traffic::Arriving,
                networks: Vec::new(),
                consequence: BEHIND.to_owned(),
                rules: Arc::clone(&rules),
            }));
        }
        items.push(Box::new(LooseFilter {
            interface,
            filters: Some(Arc::clone(filters)),
        }));
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_for_this_host_need_no_forwarding() {
        let own = BTreeSet::from(["192.0.2.1", "2001:db8::1"].map(|own| own.parse().unwrap()));
        let flow = |index| FlowId::try_from(index).unwrap();
        let to = |index, address: &str| (flow(index), Some(address.parse().unwrap()));
        let mut forwarded = Forwarded::default();
        let local = [to(1, "192.0.2.1"), to(2, "2001:db8::1"), to(3, "239.1.1.1")];
        forwarded.follow(&local, &own);
        assert!(forwarded.0.is_empty());
        forwarded.follow(&[to(1, "192.0.2.1"), to(2, "2001:db8::2")], &own);
        // The last packet is an example of the flow's packets.
        forwarded.follow(&[to(1, "192.0.2.1"), to(2, "2001:db8::1")], &own);
        assert_eq!(forwarded.0, BTreeSet::from([(flow(2), true)]));
        forwarded.follow(&[(flow(1), None)], &own);
        assert!(forwarded.0.is_empty(), "it is received no longer");
    }
}
