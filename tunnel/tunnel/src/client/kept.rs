//! The settings of the kernel that a client needs beside its device and tables, and that other programs may change.

use super::uplinks::anywhere;
use crate::config::{ClientConfig, Prefix, networks};
use anyhow::{Context, Result};
use hawser_io::interface;
use hawser_io::kept::{
    Deviation, Filters, ForwardedPass, Forwarding, InnerFamily, Item, LooseFilter, NameServer,
    NoReversePathRule, Rules, Traffic, TunnelEnd, TunnelRoutes, UplinkRoute, UplinkState, Watch,
};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// The consequence for hosts behind a client.
const BEHIND: &str = "hosts behind this client, for which `masquerade` and `lan` are, reach nothing through the tunnel";

/// Keeps what a client needs until it has ended.
#[derive(Debug)]
pub(super) struct Kept {
    /// `None` when the client has ended.
    watch: Mutex<Option<Watch>>,
    device: Mutex<Option<Watch>>,
    filters: Arc<Mutex<Filters>>,
}

impl Kept {
    pub(super) fn watch(config: &ClientConfig) -> Result<Kept> {
        let status = config.common.status_file();
        let folder = status.parent().unwrap_or(Path::new("."));
        let filters = Arc::new(Mutex::new(Filters::read(folder)));
        let (config, used) = (config.clone(), Arc::clone(&filters));
        let watch = Watch::start(move |rules| items(&config, &used, rules))
            .context("cannot start the thread that restores settings of the kernel")?;
        Ok(Kept {
            watch: Mutex::new(Some(watch)),
            device: Mutex::default(),
            filters,
        })
    }

    /// Takes the watch of the client's device.
    pub(super) fn watch_device(&self, watch: Watch) {
        *self.device.lock() = Some(watch);
    }

    /// Returns the deviations since the client was started.
    pub(super) fn deviations(&self) -> Vec<Deviation> {
        let (watch, device) = (self.watch.lock(), self.device.lock());
        let watches = [watch.as_ref(), device.as_ref()].into_iter().flatten();
        watches.flat_map(Watch::deviations).collect()
    }

    /// Returns how often the device was restored.
    pub(super) fn device_restored(&self) -> u64 {
        let device = self.device.lock();
        device.as_ref().map_or(0, Watch::restored)
    }

    /// Returns what keeps answers from arriving over an uplink now, if that is known.
    pub(super) fn problem_of(&self, uplink: &str) -> Option<String> {
        problem_of(uplink, self.deviations())
    }

    /// Puts back what was found when the client was started.
    pub(super) fn end(&self) {
        (*self.watch.lock(), *self.device.lock()) = (None, None);
        self.filters.lock().restore_except(&BTreeSet::new());
    }
}

/// Returns what is wrong with an uplink, or with what concerns all uplinks.
fn problem_of(uplink: &str, deviations: Vec<Deviation>) -> Option<String> {
    let unresolved = deviations.iter().filter(|found| !found.restored);
    let is_own = |found: &&Deviation| found.interface.as_deref() == Some(uplink);
    let is_of_all = |found: &&Deviation| found.name == NoReversePathRule::NAME;
    let own = unresolved.clone().find(is_own);
    let found = own.or_else(|| unresolved.clone().find(is_of_all));
    found.map(|found| found.what.clone())
}

fn items(
    config: &ClientConfig,
    filters: &Arc<Mutex<Filters>>,
    rules: &mut Rules,
) -> Vec<Box<dyn Item>> {
    let uplinks = uplinks(config);
    let mut loose = uplinks.clone();
    // By the main table, sources inside are not routed into the device.
    let device = &config.common.interface;
    if config.table.is_some() && interface::index(device).is_some() {
        loose.insert(device.clone());
    }
    filters.lock().set_used(loose.clone());
    let loose = loose.iter().map(|interface| LooseFilter {
        interface: interface.clone(),
        filters: Some(Arc::clone(filters)),
    });
    let mut items: Vec<Box<dyn Item>> = loose.map(boxed).collect();
    let named = config
        .uplinks
        .iter()
        .map(|rule| rule.settings.interface.clone());
    // A pattern may match nothing.
    let named = named.filter(|rule| !rule.contains('*'));
    items.extend(named.map(|interface| boxed(UplinkState { interface })));
    let peers: Vec<IpAddr> = peers(config).collect();
    // A controller may name servers of any address.
    let arriving = match config.servers.is_empty() {
        true => anywhere().to_vec(),
        false => peers.clone(),
    };
    items.extend(uplinks.iter().map(|interface| {
        boxed(NoReversePathRule {
            interfaces: vec![interface.clone()],
            peers: Some(arriving.clone()),
            rules: rules.current(),
        })
    }));
    items.extend(name_servers(config).into_iter().map(boxed));
    items.extend(uplinks.into_iter().map(|interface| {
        let peers = peers.clone();
        boxed(UplinkRoute { interface, peers })
    }));
    if config.masquerade || !config.lan.is_empty() {
        items.push(boxed(ForwardedPass {
            interface: config.common.interface.clone(),
            traffic: Traffic::OpenedTo,
            networks: config.lan.iter().map(ToString::to_string).collect(),
            consequence: BEHIND.to_owned(),
            rules: rules.current(),
        }));
    }
    items.extend(forwarding(config).map(boxed));
    items
}

/// Returns what packets need to enter the tunnel, beside its device.
pub(super) fn inside(config: &ClientConfig) -> Vec<Box<dyn Item>> {
    let (interface, inside) = (&config.common.interface, networks(&config.routes));
    let families = InnerFamily::of_routes(interface, &inside, config.kill_switch);
    let mut items: Vec<Box<dyn Item>> = families.map(boxed).collect();
    let mut outside = config.bypass.clone();
    // These may have routes of their own, which the tunnel uses.
    outside.extend(peers(config).map(Prefix::host));
    items.push(boxed(TunnelRoutes {
        interface: interface.clone(),
        inside,
        outside: networks(&outside),
        end: TunnelEnd::Client {
            table: config.table,
            is_blocked: config.kill_switch,
        },
    }));
    items
}

fn boxed<I: Item + 'static>(item: I) -> Box<dyn Item> {
    Box::new(item)
}

/// Returns the interfaces that match a rule, whether they are up or not.
fn uplinks(config: &ClientConfig) -> BTreeSet<String> {
    // The next check lists them again.
    let all = interface::all().unwrap_or_default();
    let names = all.into_iter().map(|interface| interface.name);
    let matches = |name: &String| config.uplinks.iter().any(|rule| rule.matches(name));
    names
        .filter(|name| *name != config.common.interface && matches(name))
        .collect()
}

/// Returns the addresses of the configuration that uplinks connect to.
fn peers(config: &ClientConfig) -> impl Iterator<Item = IpAddr> {
    let servers = config.servers.iter().flat_map(|server| &server.addresses);
    let servers = servers.map(|address| address.ip().to_canonical());
    let controllers = config.controllers.iter();
    servers.chain(controllers.filter_map(|controller| Some(controller.address()?.ip())))
}

/// Returns the name servers that should be asked through the tunnel.
fn name_servers(config: &ClientConfig) -> Vec<NameServer> {
    let mut routes = config.routes.iter();
    let routes_all = config.table.is_none() && routes.any(|prefix| prefix.length() == 0);
    let is_routed = |address| {
        let mut routes = config.routes.iter();
        config.table.is_none() && (routes_all || routes.any(|prefix| prefix.contains(address)))
    };
    let (device, is_blocked) = (&config.common.interface, config.kill_switch);
    let mut servers = NameServer::of_client(device, &config.dns, is_routed, is_blocked);
    let is_bypassed = |address| config.bypass.iter().any(|prefix| prefix.contains(address));
    servers.retain(|server| !is_bypassed(server.address));
    servers
}

/// Returns the forwarding that hosts behind the client need.
fn forwarding(config: &ClientConfig) -> impl Iterator<Item = Forwarding> {
    let has_hosts = |is_ipv6: bool| {
        let routed = config
            .routes
            .iter()
            .any(|prefix| prefix.is_ipv4() != is_ipv6);
        let lan = config.lan.iter().any(|prefix| prefix.is_ipv4() != is_ipv6);
        lan || config.masquerade && routed
    };
    let families = [false, true]
        .into_iter()
        .filter(move |is_ipv6| has_hosts(*is_ipv6));
    families.map(|is_ipv6| Forwarding {
        is_ipv6,
        interfaces: hosts_and_tunnel(config),
        consequence: BEHIND.to_owned(),
    })
}

/// Returns the interfaces that packets of hosts behind the client, and those to them, arrive on.
fn hosts_and_tunnel(config: &ClientConfig) -> Vec<String> {
    let mut networks = interface::networks().unwrap_or_default();
    networks.retain(|own| config.lan.iter().any(|lan| lan.contains(own.address)));
    let hosts = networks.into_iter().map(|own| own.interface);
    hosts.chain([config.common.interface.clone()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_answer_is_not_put_down_to_forwarding() {
        let deviation = |name: &str, interface: Option<&str>, restored| Deviation {
            name: name.to_owned(),
            interface: interface.map(str::to_owned),
            what: format!("{name} is wrong"),
            restored,
            since_unix_ms: 0,
            count: 1,
            restorations: 0,
        };
        let forwarding = deviation("net.ipv4.ip_forward", None, false);
        let rule = deviation(NoReversePathRule::NAME, None, false);
        let [other, own] = ["wan1", "wan0"]
            .map(|uplink| deviation(&format!("route over {uplink}"), Some(uplink), false));
        let resolved = deviation("state of wan0", Some("wan0"), true);
        let of = |deviations: &[&Deviation]| {
            let deviations = deviations.iter().copied().cloned().collect();
            problem_of("wan0", deviations)
        };
        assert_eq!(of(&[&forwarding, &other, &resolved]), None);
        assert_eq!(of(&[&forwarding, &rule]), Some(rule.what.clone()));
        assert_eq!(of(&[&forwarding, &rule, &own]), Some(own.what.clone()));
    }
}
