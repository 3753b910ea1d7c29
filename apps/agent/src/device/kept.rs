//! The device with its addresses and routes, which are restored when another program changes or removes
//! some.

use super::entry::Entry;
use anyhow::Result;
use hawser_io::interface;
use hawser_io::kept::{Item, Problem};
use hawser_io::netlink::{self, Route};
use std::collections::BTreeSet;
use std::net::IpAddr;

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
        // What cannot be read counts as missing, and is installed again.
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
