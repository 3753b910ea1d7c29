//! The interface that the agent creates for the node's own traffic, and the fallback routes for
//! when no agent runs.
//!
//! The kernel removes the interface and its routes when the process exits. The node's inner
//! addresses and a route of a greater metric through each uplink stay, so that traffic continues
//! over an uplink, without replication, until an agent runs again. If the machine has other routes
//! to the same prefix, such as a default route for `0.0.0.0/0`, the kernel then uses the one with
//! the smallest metric.

mod entry;
mod installed;
mod kept;
mod quiet;

use crate::config::{Config, DeviceConfig, DeviceRoute, PathConfig, Remains};
use crate::node::Node;
use anyhow::{Context, Result};
use entry::Entry;
use hawser_io::interface;
use hawser_io::kept::{Deviation, Item, Keeper};
use hawser_io::netlink::{Address, LinkChange, Route};
use hawser_io::segmenter::Segmenter;
use hawser_io::tap::Tap;
use hawser_replication_bpf::{Fallback, FallbackStats};
use hawser_units::{Instant, PathId};
use installed::InstalledEntries;
use kept::{KeptEntry, KeptLink, Present, UsedRoute};
use quiet::QuietPaths;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tracing::info;

/// Metric of the routes through the interface. Other routes to the same prefixes need a greater
/// one.
const METRIC: u32 = 50;

/// Smallest metric of the routes through uplinks that deliver, in the order of the uplinks.
const FALLBACK_METRIC: u32 = 1_000;

/// Smallest metric of the routes through uplinks that seem not to deliver.
const LAST_RESORT_METRIC: u32 = 2_000;

/// Interval at which all addresses and routes are checked, because other programs may have removed or
/// changed them.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// Protocol number that marks routes as the agent's (`ip route show proto 72`). One of the numbers
/// that rtnetlink(7) leaves to users.
pub(crate) const PROTOCOL: u8 = 72;

/// An interface that exists until this value is dropped or the process exits.
pub(crate) struct Device {
    config: DeviceConfig,
    tap: Tap,
    /// The MTU of the interface, bytes.
    mtu_bytes: u16,
    /// Whether traffic is routed to the interface.
    is_routed: bool,
    link: Keeper,
    /// The routes through the interface.
    routes: Keeper,
    /// Forwards the packets that are not replicated.
    program: Fallback,
    installed: InstalledEntries,
    quiet_paths: QuietPaths,
    /// The paths that deliver. Where none to a peer does, those that did last.
    delivering: BTreeSet<PathId>,
    check_at: Instant,
}

/// An uplink that traffic can take without replication.
struct Uplink {
    metric: u32,
    interface: String,
    next_hop: IpAddr,
    /// The route through the uplink.
    route: Entry,
}

impl Device {
    /// Creates the interface of the configuration, if there is one. No route leads to it yet.
    pub(crate) fn create(config: &Config) -> Result<Option<Self>> {
        let Some(device) = config.device.clone() else {
            return Ok(None);
        };
        // The interface of a killed agent had another index than the new one will have.
        Segmenter::remove_orphans()?;
        Ok(Some(Device {
            installed: InstalledEntries::read(&config.directory()),
            program: Fallback::load()?,
            tap: make(&device)?,
            mtu_bytes: device.mtu_bytes,
            config: device,
            is_routed: false,
            link: Keeper::default(),
            routes: Keeper::default(),
            quiet_paths: QuietPaths::default(),
            delivering: BTreeSet::new(),
            check_at: Instant::ZERO,
        }))
    }

    /// Removes the addresses and routes that outlive an agent.
    pub(crate) fn remove(remains: &Remains) {
        InstalledEntries::read(&remains.directory()).set(BTreeSet::new());
    }

    /// Restores the interface if another program has deleted it, set it down or changed its MTU.
    pub(crate) fn restore(&mut self) {
        let Device {
            config,
            tap,
            mtu_bytes,
            is_routed,
            link,
            ..
        } = self;
        let (exists, mtu) = (tap.exists(), *mtu_bytes);
        let config = &*config;
        let mut restore = || -> Result<()> {
            if exists {
                let change = LinkChange {
                    mtu_bytes: Some(mtu.into()),
                    up: true,
                    ..LinkChange::default()
                };
                return Ok(change.apply(&config.name)?);
            }
            *is_routed = false;
            *tap = make(config)?;
            *mtu_bytes = config.mtu_bytes;
            Ok(())
        };
        link.keep(&mut [Box::new(KeptLink {
            name: &config.name,
            mtu_bytes: mtu,
            exists,
            restore: &mut restore,
        })]);
    }

    /// Returns what other programs have changed of the interface, its addresses and its routes since the
    /// agent was started.
    pub(crate) fn deviations(&self) -> Vec<Deviation> {
        [
            self.link.deviations(),
            self.installed.deviations(),
            self.routes.deviations(),
        ]
        .concat()
    }

    /// Updates the order of the uplinks, and routes traffic to the interface as soon as `node`
    /// replicates there. Call this about once a second.
    pub(crate) fn follow(&mut self, node: &Node, now: Instant) -> Result<()> {
        self.restore();
        let checks = now >= self.check_at;
        if checks {
            self.check_at = now + CHECK_EVERY;
        }
        self.quiet_paths.update(copies(node)?);
        self.follow_delivering(node);
        let uplinks = self.all_uplinks(node)?;
        let mut wanted: BTreeSet<_> = self.config.addresses.iter().map(address).collect();
        wanted.extend(uplinks.iter().flatten().map(|uplink| uplink.route.clone()));
        if checks || !self.installed.is(&wanted) {
            self.installed.set(wanted);
        }
        self.set_fallback(&uplinks)?;
        self.follow_mtu(node)?;
        if node.replicates_local(&self.config.name, self.tap.index()) && (checks || !self.is_routed)
        {
            self.add_routes()?;
        }
        Ok(())
    }

    /// Updates the paths that deliver. When a peer becomes silent on all paths, its packets take one that
    /// delivered until then.
    fn follow_delivering(&mut self, node: &Node) {
        let quiet = &self.quiet_paths;
        let delivers = |path: &&PathId| node.is_up(**path) && !quiet.contains(**path);
        for DeviceRoute { fallback, .. } in &self.config.routes {
            let now: Vec<_> = fallback.iter().filter(delivers).copied().collect();
            if !now.is_empty() {
                self.delivering.retain(|path| !fallback.contains(path));
                self.delivering.extend(now);
            }
        }
    }

    /// Gives the interface the MTU of the narrowest path, so that senders make packets that fit all of
    /// them.
    fn follow_mtu(&mut self, node: &Node) -> Result<()> {
        let Some(narrowest) = node.inner_mtu_bytes() else {
            return Ok(());
        };
        let mtu_bytes = self.config.mtu_for(narrowest);
        if mtu_bytes == self.mtu_bytes {
            return Ok(());
        }
        let change = LinkChange {
            mtu_bytes: Some(mtu_bytes.into()),
            ..LinkChange::default()
        };
        change.apply(&self.config.name)?;
        info!(
            interface = self.config.name,
            "the MTU is {mtu_bytes} instead of {}, as the paths allow", self.mtu_bytes
        );
        self.mtu_bytes = mtu_bytes;
        Ok(())
    }

    /// Forwards packets that are not replicated through the best uplink of their route. An uplink
    /// whose route the kernel rejects is not used, because its next hop cannot be reached.
    fn set_fallback(&self, uplinks: &[Vec<Uplink>]) -> Result<()> {
        for (route, uplinks) in self.config.routes.iter().zip(uplinks) {
            let usable = uplinks
                .iter()
                .filter(|uplink| !self.installed.is_refused(&uplink.route));
            let best = usable.min_by_key(|uplink| uplink.metric);
            let best = best
                .and_then(|uplink| Some((interface::index(&uplink.interface)?, uplink.next_hop)));
            self.program.set(route.destination, best)?;
        }
        Ok(())
    }

    /// Returns the counts of packets that left through the interface without being replicated.
    pub(crate) fn stats(&self) -> Result<FallbackStats> {
        Ok(self.program.stats()?)
    }

    /// Routes traffic to the interface. Where the kernel refuses the route, traffic continues to
    /// use the fallback routes.
    fn add_routes(&mut self) -> Result<()> {
        let name = &self.config.name;
        if !self.is_routed {
            // Attached after the program that replicates, which is attached by now.
            self.program.attach(self.tap.index())?;
            self.is_routed = true;
            info!(
                interface = name,
                "traffic is routed to the agent's interface"
            );
        }
        let routes = self.config.routes.iter();
        let entries: Vec<_> = routes
            .map(|route| Entry::Route(through(name, route)))
            .collect();
        let present = Present::read(entries.iter());
        let items = entries.iter().map(|entry| KeptEntry {
            entry,
            present: &present,
        });
        let items = items.map(|item| Box::new(item) as Box<dyn Item>);
        let own = interface::own_addresses()?;
        let own: BTreeSet<_> = own.into_iter().map(|own| own.address).collect();
        let used = self.config.routes.iter().map(|route| UsedRoute {
            interface: name,
            route,
            own: &own,
        });
        let used = used.map(|item| Box::new(item) as Box<dyn Item>);
        self.routes.keep(&mut items.chain(used).collect::<Vec<_>>());
        Ok(())
    }

    /// Returns the uplinks of each route that are up.
    fn all_uplinks(&self, node: &Node) -> Result<Vec<Vec<Uplink>>> {
        let (up, running) = (interface::up()?, interface::running()?);
        let routes = self.config.routes.iter();
        Ok(routes
            .map(|route| self.uplinks(node, route, &up, &running))
            .collect())
    }

    /// Returns the uplinks of a route that are up.
    fn uplinks(
        &self,
        node: &Node,
        route: &DeviceRoute,
        up: &BTreeSet<String>,
        running: &BTreeSet<String>,
    ) -> Vec<Uplink> {
        let uplink = |(rank, path): (u32, &PathId)| {
            let PathConfig {
                interface, remote, ..
            } = &node.config().paths[path];
            // The other end of a tunnel may accept packets from the tunnel's own addresses only.
            let delivers = running.contains(interface)
                && self.delivering.contains(path)
                && !node.is_tunnel(*path);
            let metric = rank + metric_of_first(delivers);
            up.contains(interface).then(|| Uplink {
                metric,
                interface: interface.clone(),
                next_hop: *remote,
                route: self.fallback(route, interface, *remote, metric),
            })
        };
        (0..).zip(&route.fallback).filter_map(uplink).collect()
    }

    fn fallback(
        &self,
        route: &DeviceRoute,
        interface: &str,
        next_hop: IpAddr,
        metric: u32,
    ) -> Entry {
        let DeviceRoute {
            destination,
            source,
            ..
        } = route;
        Entry::Route(Route {
            next_hop: Some(next_hop),
            source: Some(*source),
            metric: Some(metric),
            // As that of the interface, so that connections do not notice a change.
            mtu_bytes: Some(self.config.mtu_bytes.into()),
            protocol: Some(PROTOCOL),
            ..Route::new(destination.address(), destination.bits(), interface)
        })
    }
}

/// Returns the metric of the most preferred uplink among those that deliver, or among the others.
fn metric_of_first(delivers: bool) -> u32 {
    if delivers {
        FALLBACK_METRIC
    } else {
        LAST_RESORT_METRIC
    }
}

/// Returns the route to a destination through the agent's own interface.
fn through(interface: &str, route: &DeviceRoute) -> Route {
    let destination = route.destination;
    Route {
        source: Some(route.source),
        metric: Some(METRIC),
        protocol: Some(PROTOCOL),
        ..Route::new(destination.address(), destination.bits(), interface)
    }
}

/// Returns an address on `lo`. That interface always exists, and the node accepts packets to its
/// addresses on any interface.
fn address(address: &IpAddr) -> Entry {
    Entry::Address(Address {
        address: *address,
        prefix_length: if address.is_ipv4() { 32 } else { 128 },
        interface: "lo".to_owned(),
    })
}

fn make(config: &DeviceConfig) -> Result<Tap> {
    let DeviceConfig {
        name, mtu_bytes, ..
    } = config;
    let tap = Tap::create(name).with_context(|| {
        format!("the agent creates {name} itself (`ip link delete {name}` removes an existing one)")
    })?;
    let usable = LinkChange {
        mtu_bytes: Some((*mtu_bytes).into()),
        no_generated_addresses: true,
        // No host answers ARP or neighbour solicitations on this interface.
        no_arp: true,
        up: true,
        ..LinkChange::default()
    };
    usable.apply(name)?;
    Ok(tap)
}

/// Returns the number of copies that arrived on each path.
fn copies(node: &Node) -> Result<BTreeMap<PathId, u64>> {
    let Some(receiver) = node.receiver() else {
        return Ok(BTreeMap::new());
    };
    let mut copies = BTreeMap::new();
    for path in node.config().paths.keys() {
        let mut sum = 0;
        for flow in node.flows().receive.keys() {
            sum += receiver.stats(*flow, *path)?.packets;
        }
        copies.insert(*path, sum);
    }
    Ok(copies)
}
