//! The interfaces that the client can use, as the kernel reports them.

use super::settings;
use crate::config::{ClientConfig, UplinkRule};
use crate::interfaces;
use anyhow::{Context, Result};
use hawser_io::interface::{OwnAddress, is_reachable, mtu_bytes, own_addresses, route, running};
use hawser_io::sources::source;
use hawser_uplinks::{Uplink, is_unique_local};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tokio::sync::watch;

/// The smallest MTU that QUIC and IPv6 allow, in bytes; assumed of interfaces that report less.
const MIN_MTU: u16 = 1280;

/// The largest number of further addresses of an uplink that are tried.
const MAX_OTHERS: usize = 3;

/// Destinations of which the kernel is asked for the source if the configuration has no server of the
/// family: the prefixes for documentation, which take the default route.
const ANYWHERE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// Watches the usable interfaces that match the rules of the configuration.
pub(crate) fn watch(config: &ClientConfig) -> Result<watch::Receiver<Vec<Uplink>>> {
    let rules = config.uplinks.clone();
    let servers = config.servers.iter();
    let servers = servers.flat_map(|server| server.addresses.iter().map(|address| address.ip()));
    let destinations: Vec<IpAddr> = servers.chain(anywhere()).collect();
    interfaces::watch(move || {
        let running = running().context("cannot list the interfaces")?;
        let sources = sources(&rules, &running, &destinations);
        // An interface that has disappeared since then has no MTU.
        let mtus = running.into_iter().filter_map(|name| {
            let mtu = u16::try_from(mtu_bytes(&name).ok()?).unwrap_or(u16::MAX);
            Some((name, mtu.max(MIN_MTU)))
        });
        let mtus = mtus.collect();
        Ok(usable_uplinks(&rules, &mtus, own_addresses()?, &sources))
    })
}

/// Returns a destination of each family that takes the default route.
pub(super) fn anywhere() -> [IpAddr; 2] {
    ANYWHERE.map(|address| address.parse().expect("an address"))
}

/// Returns the addresses that the kernel chooses as the sources of packets over the uplinks.
fn sources(
    rules: &[UplinkRule],
    running: &BTreeSet<String>,
    destinations: &[IpAddr],
) -> BTreeSet<IpAddr> {
    let is_uplink = |name: &&String| rules.iter().any(|rule| rule.matches(name));
    let uplinks = running.iter().filter(is_uplink);
    let of_uplink = |name: &String| {
        let first = |is_ipv4| {
            let mut of_family = destinations.iter().filter(|to| to.is_ipv4() == is_ipv4);
            // An interface without a route has no source either.
            of_family.find_map(|to| route(*to, Some(name)).ok()?.source)
        };
        [first(true), first(false)].into_iter().flatten()
    };
    uplinks.flat_map(of_uplink).collect()
}

/// Returns the interfaces of `mtus` that have an address and match a rule. The first matching rule
/// applies. `mtus` are the MTUs, in bytes, of those that are up and have a carrier.
///
/// An uplink prefers one address of each scope: one that is not deprecated (RFC 6724, section 5, rule 3),
/// then one that is not temporary, and then one of `sources`, which the kernel chooses. Rule 7 prefers
/// temporary ones; here the server knows the client anyway, and the connection would have to move with
/// each change.
fn usable_uplinks(
    rules: &[UplinkRule],
    mtus: &BTreeMap<String, u16>,
    mut addresses: Vec<OwnAddress>,
    sources: &BTreeSet<IpAddr>,
) -> Vec<Uplink> {
    // The kernel may choose any of the addresses of a /64, in which there are temporary ones.
    let networks: BTreeSet<IpAddr> = sources.iter().copied().map(source).collect();
    addresses.sort_by_key(|own| {
        let is_local = is_unique_local(own.address);
        let is_chosen = networks.contains(&source(own.address));
        (is_local, own.is_deprecated, own.is_temporary, !is_chosen)
    });
    let mut uplinks = BTreeMap::new();
    for OwnAddress {
        interface, address, ..
    } in addresses
    {
        let Some(rule) = rules.iter().find(|rule| rule.matches(&interface)) else {
            continue;
        };
        let wanted = rule.address.is_none_or(|wanted| wanted == address);
        let Some(mtu) = mtus
            .get(&interface)
            .filter(|_| wanted && is_reachable(address))
        else {
            continue;
        };
        let uplink = uplinks
            .entry(interface.clone())
            .or_insert_with_key(|interface| without_address(interface, *mtu, rule));
        let is_local = is_unique_local(address);
        let mut known = uplink.ipv6.iter();
        if address.is_ipv4() && uplink.ipv4.is_none() {
            uplink.ipv4 = Some(address);
        } else if address.is_ipv6() && known.all(|known| is_unique_local(*known) != is_local) {
            uplink.ipv6.push(address);
        } else if uplink.others.len() < MAX_OTHERS {
            uplink.others.push(address);
        }
    }
    uplinks.into_values().collect()
}

fn without_address(interface: &str, mtu: u16, rule: &UplinkRule) -> Uplink {
    let mut uplink = Uplink {
        interface: interface.to_owned(),
        ipv4: None,
        ipv6: Vec::new(),
        others: Vec::new(),
        mtu,
        cost: 0,
        monthly_cap: None,
    };
    settings::apply(&rule.settings, &mut uplink);
    uplink
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_model::tunnel::UplinkSettings;

    #[test]
    fn of_each_scope_the_address_that_lasts_is_used() {
        let rules = [UplinkRule {
            address: None,
            settings: UplinkSettings {
                interface: "wan*".to_owned(),
                ..UplinkSettings::default()
            },
        }];
        let own = |address: &str, is_deprecated, is_temporary| OwnAddress {
            interface: "wan0".to_owned(),
            address: address.parse().unwrap(),
            is_deprecated,
            is_temporary,
        };
        let addresses = vec![
            own("fe80::1", false, false),
            own("fd01::d", true, false),
            own("fd01::1", false, false),
            own("2001:db8::d", true, false),
            own("2001:db8::7", false, true),
            own("2001:db8::1", false, false),
            own("2001:db8::2", false, false),
            own("192.0.2.1", false, false),
            own("192.0.2.2", false, false),
        ];
        let mtus = BTreeMap::from([("wan0".to_owned(), 1500)]);
        let none = BTreeSet::new();
        let uplinks = usable_uplinks(&rules, &mtus, addresses.clone(), &none);
        assert_eq!(uplinks.len(), 1);
        let ip = |text: &str| text.parse().unwrap();
        assert_eq!(uplinks[0].ipv4, Some(ip("192.0.2.1")));
        assert_eq!(uplinks[0].ipv6, [ip("2001:db8::1"), ip("fd01::1")]);
        // A deprecated one is better than none.
        let few = addresses[..2].to_vec();
        let uplinks = usable_uplinks(&rules, &mtus, few, &none);
        assert_eq!(uplinks[0].ipv6, [ip("fd01::d")]);
        assert!(usable_uplinks(&rules, &BTreeMap::new(), addresses.clone(), &none).is_empty());
        // The kernel's choice is preferred, or what has its network and lasts.
        let chosen = [ip("192.0.2.2"), ip("2001:db8:2::7")].into();
        let more = own("2001:db8:2::1", false, false);
        let addresses = [addresses, vec![more]].concat();
        let uplinks = usable_uplinks(&rules, &mtus, addresses, &chosen);
        assert_eq!(uplinks[0].ipv4, Some(ip("192.0.2.2")));
        assert_eq!(uplinks[0].ipv6, [ip("2001:db8:2::1"), ip("fd01::1")]);
        assert_eq!(uplinks[0].others.len(), MAX_OTHERS);
    }
}
