//! Keeps what should go through the tunnel from leaving past it: rules of the kernel that outlive this process.

use crate::config::{ClientConfig, Prefix};
use crate::nat::table_of;
use crate::session::canonical;
use crate::tables::{self, Table};
use anyhow::{Context, Result, ensure};
use hawser_io::interface;
use nix::unistd::geteuid;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::{info, warn};

/// The mark of the tunnel's own packets. Other processes need CAP_NET_ADMIN or CAP_NET_RAW to set it.
pub(crate) const MARK: u32 = 14752;

/// The last part of a kill switch table's name.
const TABLES: &str = "_kill_switch";

/// Rules that close what the configuration closes. They stay when this value goes.
pub(crate) struct KillSwitch {
    config: ClientConfig,
    table: Arc<Table>,
    /// Where the tunnel's own packets may go.
    servers: Mutex<BTreeSet<SocketAddr>>,
}

/// Closes what the configuration closes, or opens what an earlier one closed and this one does not.
pub(crate) fn apply(config: &ClientConfig) -> Result<Option<KillSwitch>> {
    let table = Table::named(table(config));
    warn_of_others(table.name());
    if config.kill_switch {
        let servers = config.servers.iter().flat_map(|server| &server.addresses);
        let servers: BTreeSet<_> = servers.copied().map(canonical).collect();
        table.make(rules(config, &servers)).context("kill_switch")?;
        let unnamed = config
            .controllers
            .iter()
            .filter(|controller| controller.address().is_none());
        for controller in unnamed {
            warn!(
                %controller,
                "kill_switch: a controller that is known by a name is reached through the tunnel alone, unless `bare` has \
                 its address and that of a name server"
            );
        }
        info!(
            table = table.name(),
            "kill_switch: what is routed into the tunnel does not leave past it, also after the end"
        );
        let (config, table, servers) = (config.clone(), Arc::new(table), Mutex::new(servers));
        return Ok(Some(KillSwitch {
            config,
            table,
            servers,
        }));
    }
    info!("kill_switch is off: without a session, what is routed into the tunnel leaves past it");
    match table.remove() {
        // Without nftables nothing can have been closed.
        Err(error) if !is_missing(&error) => {
            warn!("what an earlier kill_switch closed may be closed still: {error:#}");
        }
        _ => {}
    }
    Ok(None)
}

/// Closes what the configuration closes, as [`apply`] does, unless the client runs: that keeps rules which are as good, and let
/// out the servers that a controller has named, too.
pub(crate) fn close(config: &ClientConfig) -> Result<()> {
    let tun = &config.common.interface;
    if client_runs(config) {
        info!("{tun} is there: the client runs and keeps its own rules, which stay as they are");
        return Ok(());
    }
    apply(config).map(drop)
}

/// Opens what is closed.
///
/// # Errors
/// While the client runs, which would close it again.
pub(crate) fn release(config: &ClientConfig) -> Result<()> {
    let tun = &config.common.interface;
    ensure!(
        !client_runs(config),
        "{tun} is there: stop the client first, which keeps this closed"
    );
    Table::named(table(config)).remove()
}

/// The device is gone as soon as the client has ended, however it did.
fn client_runs(config: &ClientConfig) -> bool {
    interface::index(&config.common.interface).is_some()
}

impl KillSwitch {
    /// The table of nftables that holds the rules.
    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }

    /// Lets the tunnel's own packets to servers out; waits for nftables if one of them is new.
    pub(crate) fn let_out(&self, new: impl IntoIterator<Item = SocketAddr>) -> Result<()> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut more = servers.clone();
        more.extend(new.into_iter().map(canonical));
        if more.len() > servers.len() {
            self.table
                .make(rules(&self.config, &more))
                .context("kill_switch")?;
            *servers = more;
        }
        Ok(())
    }
}

/// The `interface` may have been another one when they were made.
fn warn_of_others(own: &str) {
    for table in tables::names()
        .into_iter()
        .filter(|table| is_of_another(table, own))
    {
        warn!(
            table,
            "another kill_switch is closed; if no client with that `interface` is to keep it so, `nft delete table inet \
             {table}` opens it"
        );
    }
}

fn is_of_another(table: &str, own: &str) -> bool {
    table.starts_with("hawser_") && table.ends_with(TABLES) && table != own
}

fn is_missing(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

fn table(config: &ClientConfig) -> String {
    format!("{}{TABLES}", table_of(&config.common.interface))
}

/// Lets out the packets that have the mark, are of this process's user and go to a server.
fn own_packets(servers: &BTreeSet<SocketAddr>) -> String {
    let user = geteuid();
    let rule = |server: &SocketAddr| {
        let family = if server.is_ipv4() { "ip" } else { "ip6" };
        format!(
            "    meta mark {MARK} meta skuid {user} {family} daddr {} udp dport {} accept\n",
            server.ip(),
            server.port()
        )
    };
    servers.iter().map(rule).collect()
}

/// What leaves by another device than the tunnel's: of this node itself no more than what an uplink needs to be one, and
/// what goes to `bare`. The rules come after all others that may change where a packet goes.
fn rules(config: &ClientConfig, servers: &BTreeSet<SocketAddr>) -> String {
    let tun = &config.common.interface;
    let mut controllers = String::new();
    for address in config
        .controllers
        .iter()
        .filter_map(|controller| controller.address())
    {
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        let _ = writeln!(
            controllers,
            "    {family} daddr {} tcp dport {} accept",
            address.ip(),
            address.port()
        );
    }
    let own = own_packets(servers);
    let closed: String = closed(config)
        .iter()
        .map(|prefix| format!("    {} goto refused\n", to(*prefix)))
        .collect();
    let bare: String = config
        .bare
        .iter()
        .map(|prefix| format!("    {} accept\n", to(*prefix)))
        .collect();
    format!(
        "  chain output {{
    type filter hook output priority 300;
    oifname {{ \"lo\", \"{tun}\" }} accept
{own}    udp sport 68 udp dport 67 accept
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
    let everything =
        ["0.0.0.0/0", "::/0"].map(|prefix| prefix.parse::<Prefix>().expect("a prefix"));
    let is_missing = |all: &Prefix| {
        !config
            .routes
            .iter()
            .any(|prefix| prefix.is_ipv4() == all.is_ipv4())
    };
    config
        .routes
        .iter()
        .copied()
        .chain(everything.into_iter().filter(is_missing))
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_switches_of_other_interfaces_are_noticed() {
        let own = format!("{}{TABLES}", table_of("hawser-tun"));
        let tables = [
            "hawser_tun0_kill_switch",
            "hawser_hawser_tun_kill_switch",
            "hawser_tun0",
            "my_kill_switch",
        ];
        let others: Vec<_> = tables
            .into_iter()
            .filter(|table| is_of_another(table, &own))
            .collect();
        assert_eq!(others, ["hawser_tun0_kill_switch"]);
    }
}
