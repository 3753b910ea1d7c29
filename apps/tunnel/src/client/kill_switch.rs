//! Keeps what should go through the tunnel from leaving past it: rules of the kernel that outlive this process.

use crate::config::{ClientConfig, Prefix};
use crate::nat::{remove_table, replace_table, table_of};
use anyhow::{Context, Result};
use std::fmt::Write;
use std::io::ErrorKind;
use tracing::{info, warn};

/// Of the tunnel's own packets, which no other process without CAP_NET_ADMIN can give itself.
pub(crate) const MARK: u32 = 14752;

/// Closes what the configuration closes, or opens what an earlier one closed and this one does not.
pub(crate) fn apply(config: &ClientConfig) -> Result<()> {
    let table = table(config);
    if config.kill_switch {
        replace_table(&table, &rules(config)).context("kill_switch")?;
        let unnamed = config.controllers.iter().filter(|controller| controller.address().is_none());
        for controller in unnamed {
            warn!(
                %controller,
                "kill_switch: a controller that is known by a name is reached through the tunnel alone, unless `bare` has \
                 its address and that of a name server"
            );
        }
        info!(
            table,
            "kill_switch: what is routed into the tunnel does not leave past it, also after the end"
        );
        return Ok(());
    }
    info!("kill_switch is off: without a session, what is routed into the tunnel leaves past it");
    match remove_table(&table) {
        // Without nftables nothing can have been closed.
        Err(error) if !is_missing(&error) => {
            warn!("what an earlier kill_switch closed may be closed still: {error:#}");
        }
        _ => {}
    }
    Ok(())
}

/// Opens what is closed.
pub(crate) fn release(config: &ClientConfig) -> Result<()> {
    remove_table(&table(config))
}

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

fn table(config: &ClientConfig) -> String {
    format!("{}_kill_switch", table_of(&config.common.interface))
}

/// What leaves by another device than the tunnel's: of this node itself no more than what an uplink needs to be one, and
/// what goes to `bare`. The rules come after all others that may change where a packet goes.
fn rules(config: &ClientConfig) -> String {
    let tun = &config.common.interface;
    let mut controllers = String::new();
    for address in config.controllers.iter().filter_map(|controller| controller.address()) {
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        let _ =
            writeln!(controllers, "    {family} daddr {} tcp dport {} accept", address.ip(), address.port());
    }
    let closed: String =
        closed(config).iter().map(|prefix| format!("    {} goto refused\n", to(*prefix))).collect();
    let bare: String = config.bare.iter().map(|prefix| format!("    {} accept\n", to(*prefix))).collect();
    format!(
        "  chain output {{
    type filter hook output priority 300;
    oifname {{ \"lo\", \"{tun}\" }} accept
    meta mark {MARK} accept
    udp sport 68 udp dport 67 accept
    udp sport 546 udp dport 547 accept
    ip6 hoplimit 255 icmpv6 type {{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }} accept
    ip daddr {{ 169.254.0.0/16, 224.0.0.0/24, 255.255.255.255 }} accept
    ip6 daddr {{ fe80::/10, ff02::/16 }} accept
{controllers}    jump closed
  }}
  chain forward {{
    type filter hook forward priority 300;
    oifname \"{tun}\" accept
    iifname \"{tun}\" accept
    jump closed
  }}
  chain closed {{
{bare}{closed}  }}
  chain refused {{
    counter reject with icmpx admin-prohibited
  }}
"
    )
}

/// What `routes` covers, and families that it has nothing of: an application prefers the one that is left.
fn closed(config: &ClientConfig) -> Vec<Prefix> {
    let everything = ["0.0.0.0/0", "::/0"].map(|prefix| prefix.parse::<Prefix>().expect("a prefix"));
    let is_missing = |all: &Prefix| !config.routes.iter().any(|prefix| prefix.is_ipv4() == all.is_ipv4());
    config.routes.iter().copied().chain(everything.into_iter().filter(is_missing)).collect()
}

/// Matches packets to these addresses.
fn to(prefix: Prefix) -> String {
    match (prefix.is_ipv4(), prefix.length()) {
        (true, 0) => "meta nfproto ipv4".to_owned(),
        (false, 0) => "meta nfproto ipv6".to_owned(),
        (true, _) => format!("ip daddr {prefix}"),
        (false, _) => format!("ip6 daddr {prefix}"),
    }
}
