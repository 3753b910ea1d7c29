//! The settings of the kernel that a server needs beside its device and tables, and that other programs may change.

use crate::config::{ServerConfig, networks};
use anyhow::{Context, Result};
use hawser_io::kept::{ForwardedPass, Forwarding, Item, Rules, TunnelEnd, TunnelRoutes, Watch};

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

/// Watches the forwarding of clients' packets, which a server without `nat` may not want.
pub(super) fn watch(config: &ServerConfig) -> Result<Watch> {
    let (nat, prefixes) = (config.nat, config.prefixes.clone());
    let interface = config.common.interface.clone();
    let items = move |rules: &mut Rules| -> Vec<Box<dyn Item>> {
        if !nat {
            return Vec::new();
        }
        let has = |is_ipv6: &bool| prefixes.iter().any(|prefix| prefix.is_ipv4() != *is_ipv6);
        let families = [false, true].into_iter().filter(has);
        let forwarding = families.map(|is_ipv6| Forwarding {
            is_ipv6,
            interfaces: vec![interface.clone()],
            consequence: CLIENTS.to_owned(),
        });
        let pass = ForwardedPass {
            interface: interface.clone(),
            networks: prefixes.iter().map(ToString::to_string).collect(),
            consequence: CLIENTS.to_owned(),
            rules: rules.current(),
        };
        let mut items: Vec<Box<dyn Item>> = vec![Box::new(pass)];
        items.extend(forwarding.map(|item| Box::new(item) as Box<dyn Item>));
        items
    };
    Watch::start(items).context("cannot start the thread that watches settings of the kernel")
}
