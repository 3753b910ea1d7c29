//! The settings of the kernel that a server needs beside its device and tables, and that other programs may change.

use crate::config::{Prefix, ServerConfig, networks};
use anyhow::{Context, Result};
use hawser_io::interface;
use hawser_io::kept::{
    DroppingFilter, ForwardedPass, Forwarding, Item, NoReversePathRule, Rules, Traffic, TunnelEnd,
    TunnelRoutes, Watch,
};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// A destination that takes the default route.
const ANYWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The consequence for clients.
const CLIENTS: &str = "clients reach nothing but this server";

/// Returns what packets need to reach clients, beside the device.
pub(super) fn inside(config: &ServerConfig) -> impl Fn() -> Vec<Box<dyn Item>> + use<> {
    let interface = config.common.interface.clone();
    let inside = networks(&config.prefixes);
    move || {
        vec![Box::new(TunnelRoutes {
            interface: interface.clone(),
            inside: inside.clone(),
            outside: Vec::new(),
            end: TunnelEnd::Server,
        })]
    }
}

/// Watches what clients need to arrive, and the forwarding of their packets, which a server without
/// `nat` may not want.
pub(super) fn watch(config: &ServerConfig) -> Result<Watch> {
    let config = config.clone();
    let dropped_before = DroppingFilter::dropped();
    let items = move |rules: &mut Rules| -> Vec<Box<dyn Item>> {
        let device = &config.common.interface;
        let mut items = arrival(beside_default_route(device), dropped_before, rules);
        if config.nat {
            items.extend(forwarding(device, &config.prefixes, rules));
        }
        items
    };
    Watch::start(items).context("cannot start the thread that watches settings of the kernel")
}

/// Returns the interfaces by which clients may arrive although the default route is another one.
fn beside_default_route(device: &str) -> BTreeSet<String> {
    let default = interface::route(ANYWHERE.into(), None).map(|route| route.interface);
    let networks = interface::networks().unwrap_or_default().into_iter();
    let names = networks
        .filter(|own| !own.address.is_loopback())
        .map(|own| own.interface);
    names
        .filter(|name| name != device && Ok(name) != default.as_ref())
        .collect()
}

/// Returns the filters by the route back on these interfaces.
fn arrival(
    interfaces: BTreeSet<String>,
    dropped_before: u64,
    rules: &mut Rules,
) -> Vec<Box<dyn Item>> {
    if interfaces.is_empty() {
        return Vec::new();
    }
    let rule = NoReversePathRule {
        interfaces: interfaces.iter().cloned().collect(),
        peers: None,
        rules: rules.current(),
    };
    let mut items: Vec<Box<dyn Item>> = vec![Box::new(rule)];
    for interface in interfaces {
        items.push(Box::new(DroppingFilter::new(interface, dropped_before)));
    }
    items
}

fn forwarding(device: &str, prefixes: &[Prefix], rules: &mut Rules) -> Vec<Box<dyn Item>> {
    let has = |is_ipv6: &bool| prefixes.iter().any(|prefix| prefix.is_ipv4() != *is_ipv6);
    let families = [false, true].into_iter().filter(has);
    let out = interface::route(ANYWHERE.into(), None).map(|route| route.interface);
    let interfaces: Vec<_> = [device.to_owned()].into_iter().chain(out).collect();
    let forwarding = families.map(|is_ipv6| Forwarding {
        is_ipv6,
        interfaces: interfaces.clone(),
        consequence: CLIENTS.to_owned(),
    });
    let pass = ForwardedPass {
        interface: device.to_owned(),
        traffic: Traffic::OpenedFrom,
        networks: prefixes.iter().map(ToString::to_string).collect(),
        consequence: CLIENTS.to_owned(),
        rules: rules.current(),
    };
    let mut items: Vec<Box<dyn Item>> = vec![Box::new(pass)];
    items.extend(forwarding.map(|item| Box::new(item) as Box<dyn Item>));
    items
}
