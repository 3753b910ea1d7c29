//! The properties, addresses and routes of a device, which are restored when another program changes or
//! removes some.

use super::Device;
use hawser_io::interface;
use hawser_io::kept::{Item, Problem};
use hawser_io::netlink::{self, Address, Error, LinkChange, Route};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// The properties, addresses and routes of a device.
#[derive(Debug)]
pub(super) struct Configured {
    interface: String,
    /// The largest packet, in bytes.
    mtu: u16,
    addresses: Vec<Address>,
    /// Routes beside which others to the same destinations stay.
    routes: Vec<Route>,
    /// A server's routes to its clients.
    clients: BTreeMap<IpAddr, Route>,
    /// Whether IPv6 is enabled on the host.
    has_ipv6: bool,
}

/// The properties, addresses and routes of a device that are missing in the kernel.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    link: LinkChange,
    addresses: Vec<Address>,
    routes: Vec<Route>,
    clients: Vec<Route>,
    /// Whether the device has the kernel's route for multicast of IPv6, which it should not.
    routes_multicast: bool,
}

/// The smallest MTU for IPv6 (RFC 8200, section 5), in bytes.
pub(super) const MIN_IPV6_MTU: u16 = 1280;

/// The numbers of the routing tables `main` and `local`.
const MAIN: u32 = 254;
const LOCAL: u32 = 255;

impl Configured {
    pub(super) fn of(interface: &str, mtu: u16, has_ipv6: bool) -> Configured {
        Configured {
            interface: interface.to_owned(),
            mtu,
            addresses: Vec::new(),
            routes: Vec::new(),
            clients: BTreeMap::new(),
            has_ipv6,
        }
    }

    /// Returns whether the kernel has IPv6 addresses and routes on the device. It removes them where the
    /// MTU is too small.
    pub(super) fn takes_ipv6(&self) -> bool {
        self.has_ipv6 && self.mtu >= MIN_IPV6_MTU
    }

    /// Replaces the addresses and the routes. If the addresses stay, routes that stay are never
    /// missing.
    pub(super) fn replace(
        &mut self,
        addresses: Vec<Address>,
        routes: Vec<Route>,
    ) -> Result<(), Error> {
        for route in self.routes.iter().filter(|route| !routes.contains(route)) {
            // Another program may have removed it.
            let _ = route.delete();
        }
        if self.addresses != addresses {
            netlink::flush_addresses(&self.interface)?;
        }
        (self.addresses, self.routes) = (addresses, routes);
        self.restore()
    }

    /// Sets the MTU.
    pub(super) fn set_mtu(&mut self, mtu: u16) -> Result<(), Error> {
        self.mtu = mtu;
        self.restore()
    }

    /// Sets a route to a client, or removes it.
    pub(super) fn set_client(&mut self, address: IpAddr, route: Route) -> Result<(), Error> {
        let set = route.replace();
        self.clients.insert(address, route);
        set
    }

    pub(super) fn remove_client(&mut self, address: IpAddr, route: &Route) {
        self.clients.remove(&address);
        // A missing route was removed together with the device's addresses.
        let _ = route.delete();
    }

    /// Adds what is missing. Returns the first error; the rest is added nevertheless.
    pub(super) fn restore(&self) -> Result<(), Error> {
        let link = self.missing()?.link;
        if link != LinkChange::default() {
            link.apply(&self.interface)?;
        }
        // The kernel removes routes when a device is set down, and those of IPv6 when its MTU is too
        // small.
        let missing = self.missing()?;
        let addresses = missing
            .addresses
            .iter()
            .map(|address| address.add().map(drop));
        let routes = missing.routes.iter().map(|route| route.prepend().map(drop));
        let clients = missing.clients.iter().map(Route::replace);
        let added = addresses.chain(routes).chain(clients);
        let mut added: Vec<_> = added.collect();
        // The kernel adds it with an address.
        if self.missing()?.routes_multicast {
            added.push(self.multicast().delete());
        }
        added.into_iter().collect()
    }

    /// Returns the route by which multicast of IPv6 would enter the tunnel.
    fn multicast(&self) -> Route {
        Route {
            table: Some(LOCAL),
            ..Route::new([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8, &self.interface)
        }
    }

    /// Returns what the kernel lacks.
    pub(super) fn missing(&self) -> Result<Missing, Error> {
        let link = interface::link(&self.interface)?;
        let has_other_mtu = link.mtu_bytes != u32::from(self.mtu);
        let networks = interface::networks().unwrap_or_default().into_iter();
        let own = networks.filter(|own| own.interface == self.interface);
        let own: BTreeSet<_> = own.map(|own| (own.address, own.prefix_length)).collect();
        let routes = netlink::routes_by(&self.interface)?;
        let key = |route: &Route| {
            let table = route.table.unwrap_or(MAIN);
            let Route {
                destination,
                prefix_length,
                mtu_bytes,
                ..
            } = route;
            (table, *destination, *prefix_length, *mtu_bytes)
        };
        let known: BTreeSet<_> = routes.iter().map(key).collect();
        let is_missing = |wanted: &&Route| {
            let takes = self.takes_ipv6() || wanted.destination.is_ipv4();
            takes && !known.contains(&key(wanted))
        };
        let addresses = self.addresses.iter().filter(|address| {
            let takes = self.takes_ipv6() || address.address.is_ipv4();
            takes && !own.contains(&(address.address, address.prefix_length))
        });
        Ok(Missing {
            link: LinkChange {
                up: !link.is_up,
                no_multicast: link.has_multicast,
                mtu_bytes: has_other_mtu.then_some(self.mtu.into()),
                ..LinkChange::default()
            },
            addresses: addresses.cloned().collect(),
            routes: self.routes.iter().filter(is_missing).cloned().collect(),
            clients: self.clients.values().filter(is_missing).cloned().collect(),
            routes_multicast: known.contains(&key(&self.multicast())),
        })
    }
}

impl Missing {
    /// Returns the differences, in words.
    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.link.up {
            words.push("it was down".to_owned());
        }
        if self.link.mtu_bytes.is_some() {
            words.push("it had another MTU".to_owned());
        }
        if self.link.no_multicast || self.routes_multicast {
            words.push("it took multicast".to_owned());
        }
        let addresses = self.addresses.iter();
        words.extend(addresses.map(|own| format!("the address {} was missing", own.address)));
        let routes: Vec<_> = self.routes.iter().chain(&self.clients).collect();
        match routes.as_slice() {
            [] => {}
            [route] => words.push(format!(
                "the route `{route}` was missing or had another MTU"
            )),
            [first, rest @ ..] => words.push(format!(
                "the route `{first}` and {} others were missing or had another MTU",
                rest.len()
            )),
        }
        words
    }
}

/// A device, which should be as it was configured.
pub(super) struct KeptDevice(pub(super) Arc<Device>);

impl Item for KeptDevice {
    fn name(&self) -> String {
        format!("device {}", self.0.name())
    }

    fn examine(&self) -> Option<Problem> {
        // The device may have been removed, which its reader notices.
        let missing = self.0.configured.lock().missing().ok()?;
        let words = missing.words();
        (!words.is_empty()).then(|| Problem {
            what: format!(
                "another program has changed {}, which carries the tunnel: {}",
                self.0.name(),
                words.join(", ")
            ),
            advice: "restart the program that owns the device".to_owned(),
        })
    }

    fn restore(&mut self) -> Result<bool, String> {
        let restored = self.0.configured.lock().restore();
        restored.map(|()| true).map_err(|error| error.to_string())
    }
}

/// An item that is examined while nothing of the device is missing, and not while its addresses and
/// routes are replaced.
pub(super) struct WhileComplete(pub(super) Arc<Device>, pub(super) Box<dyn Item>);

impl Item for WhileComplete {
    fn name(&self) -> String {
        self.1.name()
    }

    fn interface(&self) -> Option<&str> {
        self.1.interface()
    }

    fn examine(&self) -> Option<Problem> {
        let configured = self.0.configured.lock();
        let missing = configured.missing().ok()?;
        (missing == Missing::default()).then(|| self.1.examine())?
    }
}
