//! The interface that the agent makes for the node's own traffic, and the way around it for when no agent runs.
//!
//! The kernel removes the interface with its process, and the routes by it. The node's inner addresses and a worse route by
//! each uplink stay, so that traffic goes on over an uplink, without copies, until there is an agent again. Where the machine
//! has other routes to the same prefix, such as a default route to `0.0.0.0/0`, the one of the least metric is taken then.

mod heard;
mod kept;

use crate::config::{Config, DeviceConfig, DeviceRoute, PathConfig};
use crate::node::Node;
use anyhow::{Context, Result};
use hawser_bpf::{Fallback, FallbackStats, Prefix};
use hawser_io::interface;
use hawser_io::segmenter::Segmenter;
use hawser_io::tap::Tap;
use hawser_units::{Instant, PathId};
use heard::Heard;
use kept::Kept;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tracing::{info, warn};

/// Metric of the routes by the interface; other routes to the same prefixes need a greater one.
const METRIC: u32 = 50;

/// Least metric of the routes by uplinks that deliver, in their order.
const FALLBACK_METRIC: u32 = 1_000;

/// Least metric of the routes by uplinks that seem not to deliver.
const LAST_RESORT_METRIC: u32 = 2_000;

/// How often everything is put in place again: other programs may have removed it.
const REPEAT_EVERY: Duration = Duration::from_secs(5);

/// Marks routes as the agent's (`ip route show proto 72`); of the numbers that rtnetlink(7) leaves to users.
const PROTOCOL: u8 = 72;

/// An interface that is there as long as this value, or the process.
pub(crate) struct Device {
    config: DeviceConfig,
    tap: Tap,
    /// Whether traffic is routed to the interface.
    open: bool,
    /// Destinations for which the kernel refused the route to the interface.
    refused_routes: BTreeSet<Prefix>,
    /// For what is not replicated.
    program: Fallback,
    kept: Kept,
    heard: Heard,
    repeat_at: Instant,
}

/// A path that traffic may take past the programs.
struct Uplink {
    metric: u32,
    interface: String,
    next_hop: IpAddr,
    /// The kernel's route by it.
    route: String,
}

impl Device {
    /// Makes the interface of the configuration, if there is one. No route leads to it yet.
    pub(crate) fn create(config: &Config) -> Result<Option<Self>> {
        let Some(device) = config.device.clone() else { return Ok(None) };
        // The interface of a killed agent had another number than the new one will have.
        Segmenter::remove_orphans()?;
        Ok(Some(Device {
            kept: Kept::read(&config.directory()),
            program: Fallback::load()?,
            tap: make(&device)?,
            config: device,
            open: false,
            refused_routes: BTreeSet::new(),
            heard: Heard::default(),
            repeat_at: Instant::ZERO,
        }))
    }

    /// Takes away what stays when an agent ends.
    pub(crate) fn remove(config: &Config) {
        Kept::read(&config.directory()).set(BTreeSet::new());
    }

    /// Makes the interface again after it was deleted.
    pub(crate) fn restore(&mut self) -> Result<()> {
        if !self.tap.exists() {
            warn!(interface = self.config.name, "it was deleted; the agent makes it again");
            self.open = false;
            self.tap = make(&self.config)?;
        }
        Ok(())
    }

    /// Orders the uplinks by what is known of them, and leads traffic to the interface as soon as `node` replicates there.
    /// To be called every second or so.
    pub(crate) fn follow(&mut self, node: &Node, now: Instant) -> Result<()> {
        let repeats = now >= self.repeat_at;
        if repeats {
            self.repeat_at = now + REPEAT_EVERY;
        }
        self.heard.look(copies(node)?);
        let (up, running) = (interface::up()?, interface::running()?);
        let uplinks: Vec<_> =
            self.config.routes.iter().map(|route| self.uplinks(node, route, &up, &running)).collect();
        let mut lasting: BTreeSet<_> = self.config.addresses.iter().map(address).collect();
        lasting.extend(uplinks.iter().flatten().map(|uplink| uplink.route.clone()));
        if repeats || !self.kept.is(&lasting) {
            self.kept.set(lasting);
        }
        self.lead_past(&uplinks)?;
        if node.replicates_local(&self.config.name, self.tap.index()) && (repeats || !self.open) {
            self.open()?;
        }
        Ok(())
    }

    /// Has what is not replicated take the best uplink, by route. One by which the kernel refuses a route is none: it cannot
    /// reach its next hop.
    fn lead_past(&self, uplinks: &[Vec<Uplink>]) -> Result<()> {
        for (route, uplinks) in self.config.routes.iter().zip(uplinks) {
            let usable = uplinks.iter().filter(|uplink| !self.kept.is_refused(&uplink.route));
            let best = usable.min_by_key(|uplink| uplink.metric);
            let best = best.and_then(|uplink| Some((interface::index(&uplink.interface)?, uplink.next_hop)));
            self.program.set(route.destination, best)?;
        }
        Ok(())
    }

    /// Counts packets that left by the interface without being replicated.
    pub(crate) fn stats(&self) -> Result<FallbackStats> {
        Ok(self.program.stats()?)
    }

    /// Leads traffic to the interface. A destination for which the kernel refuses the route goes on by its fallback.
    fn open(&mut self) -> Result<()> {
        let name = &self.config.name;
        if !self.open {
            // Behind the one that replicates, which is there by now.
            self.program.attach(self.tap.index())?;
            self.open = true;
            info!(interface = name, "traffic takes the agent's interface");
        }
        for DeviceRoute { destination, source, .. } in &self.config.routes {
            let route = format!(
                "route replace {destination} dev {name} src {source} metric {METRIC} proto {PROTOCOL}"
            );
            match interface::change(&route) {
                Ok(()) => drop(self.refused_routes.remove(destination)),
                Err(error) if self.refused_routes.insert(*destination) => {
                    warn!(interface = name, %destination, "no route to the agent's interface: {error}");
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The paths of a route that are up.
    fn uplinks(
        &self,
        node: &Node,
        route: &DeviceRoute,
        up: &BTreeSet<String>,
        running: &BTreeSet<String>,
    ) -> Vec<Uplink> {
        let uplink = |(place, path): (u32, &PathId)| {
            let PathConfig { interface, remote, .. } = &node.config().paths[path];
            let delivers = running.contains(interface) && node.is_up(*path) && !self.heard.is_quiet(*path);
            let metric = place + if delivers { FALLBACK_METRIC } else { LAST_RESORT_METRIC };
            up.contains(interface).then(|| Uplink {
                metric,
                interface: interface.clone(),
                next_hop: *remote,
                route: self.fallback(route, interface, *remote, metric),
            })
        };
        (0..).zip(&route.fallback).filter_map(uplink).collect()
    }

    fn fallback(&self, route: &DeviceRoute, interface: &str, next_hop: IpAddr, metric: u32) -> String {
        let DeviceRoute { destination, source, .. } = route;
        let inet6 = if destination.address().is_ipv4() && next_hop.is_ipv6() { "inet6 " } else { "" };
        // As by the interface: connections do not notice which one they take.
        let mtu = self.config.mtu_bytes;
        format!(
            "route {destination} via {inet6}{next_hop} dev {interface} src {source} metric {metric} mtu {mtu} \
             proto {PROTOCOL}"
        )
    }
}

/// `lo` outlives everything, and an address on it is the node's whatever comes in by which interface.
fn address(address: &IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("address {v4}/32 dev lo"),
        IpAddr::V6(v6) => format!("address {v6}/128 dev lo nodad"),
    }
}

fn make(config: &DeviceConfig) -> Result<Tap> {
    let DeviceConfig { name, mtu_bytes, .. } = config;
    let tap = Tap::create(name).with_context(|| {
        format!("the agent makes {name} itself (`ip link delete {name}` removes another one)")
    })?;
    // Nobody would answer questions for link-layer addresses.
    interface::change(&format!("link set {name} mtu {mtu_bytes} addrgenmode none arp off up"))?;
    Ok(tap)
}

/// Copies that have arrived by each path.
fn copies(node: &Node) -> Result<BTreeMap<PathId, u64>> {
    let Some(receiver) = node.receiver() else { return Ok(BTreeMap::new()) };
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
