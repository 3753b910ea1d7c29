use crate::config::UplinkRule;
use crate::interfaces::{self, ip};
use anyhow::{Context, Result};
use hawser_io::interface::{self, is_reachable};
use hawser_uplinks::Uplink;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use tokio::sync::watch;

/// The smallest MTU that QUIC and IPv6 allow, in bytes; assumed of interfaces that report less.
const MIN_MTU: u16 = 1280;

/// Watches the usable interfaces that match the rules.
pub(crate) fn watch(rules: Vec<UplinkRule>) -> Result<watch::Receiver<Vec<Uplink>>> {
    interfaces::watch(move || usable_uplinks(&rules))
}

/// Returns the interfaces that are up, have a carrier and an address, and match a rule. The first
/// matching rule applies.
fn usable_uplinks(rules: &[UplinkRule]) -> Result<Vec<Uplink>> {
    let usable = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    let mut uplinks = BTreeMap::new();
    for entry in getifaddrs().context("cannot list the interfaces")? {
        let rule = rules
            .iter()
            .find(|rule| rule.matches(&entry.interface_name));
        let (Some(rule), Some(address)) = (rule, entry.address.as_ref().and_then(ip)) else {
            continue;
        };
        let wanted = rule.address.is_none_or(|wanted| wanted == address);
        if !entry.flags.contains(usable) || !wanted || !is_reachable(address) {
            continue;
        }
        let uplink = match uplinks.entry(entry.interface_name) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let uplink = without_address(new.key(), rule)?;
                new.insert(uplink)
            }
        };
        let slot = if address.is_ipv4() {
            &mut uplink.ipv4
        } else {
            &mut uplink.ipv6
        };
        slot.get_or_insert(address);
    }
    Ok(uplinks.into_values().collect())
}

fn without_address(interface: &str, rule: &UplinkRule) -> Result<Uplink> {
    let own = interface::mtu_bytes(interface)?;
    let own = u16::try_from(own).unwrap_or(u16::MAX).max(MIN_MTU);
    Ok(Uplink {
        interface: interface.to_owned(),
        ipv4: None,
        ipv6: None,
        mtu: rule.mtu.map_or(own, |mtu| mtu.min(own)),
        cost: rule.cost,
        monthly_cap: rule.monthly_cap,
    })
}
