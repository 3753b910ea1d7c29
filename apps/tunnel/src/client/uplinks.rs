//! The interfaces that the client can use, as the kernel reports them.

use crate::config::UplinkRule;
use crate::interfaces;
use anyhow::{Context, Result};
use hawser_io::interface::{OwnAddress, is_reachable, mtu_bytes, own_addresses, running};
use hawser_uplinks::{Uplink, is_unique_local};
use std::collections::BTreeMap;
use tokio::sync::watch;

/// The smallest MTU that QUIC and IPv6 allow, in bytes; assumed of interfaces that report less.
const MIN_MTU: u16 = 1280;

/// Watches the usable interfaces that match the rules.
pub(crate) fn watch(rules: Vec<UplinkRule>) -> Result<watch::Receiver<Vec<Uplink>>> {
    interfaces::watch(move || {
        let running = running().context("cannot list the interfaces")?;
        // An interface that has disappeared since then has no MTU.
        let mtus = running.into_iter().filter_map(|name| {
            let mtu = u16::try_from(mtu_bytes(&name).ok()?).unwrap_or(u16::MAX);
            Some((name, mtu.max(MIN_MTU)))
        });
        Ok(usable_uplinks(&rules, &mtus.collect(), own_addresses()?))
    })
}

/// Returns the interfaces of `mtus` that have an address and match a rule. The first matching rule
/// applies. `mtus` are the MTUs, in bytes, of those that are up and have a carrier.
///
/// An uplink has at most one address of each scope. One that is not deprecated is preferred (RFC 6724,
/// section 5, rule 3), and then one that is not temporary. Rule 7 prefers temporary ones; here the
/// server knows the client anyway, and the connection would have to move with each change.
fn usable_uplinks(
    rules: &[UplinkRule],
    mtus: &BTreeMap<String, u16>,
    mut addresses: Vec<OwnAddress>,
) -> Vec<Uplink> {
    addresses.sort_by_key(|own| {
        let is_local = is_unique_local(own.address);
        (is_local, own.is_deprecated, own.is_temporary)
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
        if address.is_ipv4() {
            uplink.ipv4.get_or_insert(address);
        } else {
            let is_local = is_unique_local(address);
            let mut known = uplink.ipv6.iter();
            if known.all(|known| is_unique_local(*known) != is_local) {
                uplink.ipv6.push(address);
            }
        }
    }
    uplinks.into_values().collect()
}

fn without_address(interface: &str, mtu: u16, rule: &UplinkRule) -> Uplink {
    Uplink {
        interface: interface.to_owned(),
        ipv4: None,
        ipv6: Vec::new(),
        mtu: rule.mtu.map_or(mtu, |configured| configured.min(mtu)),
        cost: rule.cost,
        monthly_cap: rule.monthly_cap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_scope_the_address_that_lasts_is_used() {
        let rules = [UplinkRule {
            interface: "wan*".to_owned(),
            address: None,
            mtu: None,
            cost: 0,
            monthly_cap: None,
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
        let uplinks = usable_uplinks(&rules, &mtus, addresses.clone());
        assert_eq!(uplinks.len(), 1);
        let ip = |text: &str| text.parse().unwrap();
        assert_eq!(uplinks[0].ipv4, Some(ip("192.0.2.1")));
        assert_eq!(uplinks[0].ipv6, [ip("2001:db8::1"), ip("fd01::1")]);
        // A deprecated one is better than none.
        let few = addresses[..2].to_vec();
        let uplinks = usable_uplinks(&rules, &mtus, few);
        assert_eq!(uplinks[0].ipv6, [ip("fd01::d")]);
        assert!(usable_uplinks(&rules, &BTreeMap::new(), addresses).is_empty());
    }
}
