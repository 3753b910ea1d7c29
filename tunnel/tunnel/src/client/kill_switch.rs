//! Keeps traffic that should go through the tunnel from leaving outside it, by nftables rules that
//! outlive this process.

use super::portal;
use crate::config::{ClientConfig, MARK, Prefix};
use crate::nat::table_of;
use crate::session::canonical;
use crate::tables::{self, Table};
use anyhow::{Context, Result, ensure};
use hawser_io::interface;
use hawser_uplinks::Server;
use nix::unistd::geteuid;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tracing::{info, warn};

/// The suffix of the names of kill switch tables.
const TABLES: &str = "_kill_switch";

/// The kill switch of a client. Its rules stay when this value is dropped.
pub(crate) struct KillSwitch {
    config: ClientConfig,
    table: Arc<Table>,
    /// Where the tunnel's own packets may go to.
    destinations: Mutex<BTreeSet<Destination>>,
}

/// A port of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Destination {
    address: IpAddr,
    protocol: &'static str,
    port: u16,
}

/// Returns the ports of a server that a client talks to: that of QUIC, its substitute over TCP, and
/// the one at which a captive portal shows itself.
fn destinations(
    addresses: &[SocketAddr],
    tcp_port: Option<u16>,
) -> impl Iterator<Item = Destination> {
    addresses.iter().flat_map(move |address| {
        let address = canonical(*address);
        let tcp = [Some(portal::PORT), tcp_port].into_iter().flatten();
        let tcp = tcp.map(|port| ("tcp", port));
        let ports = [("udp", address.port())].into_iter().chain(tcp);
        ports.map(move |(protocol, port)| Destination {
            address: address.ip(),
            protocol,
            port,
        })
    })
}

/// Installs the kill switch if the configuration has one; otherwise removes the one that an earlier
/// configuration installed.
pub(crate) fn apply(config: &ClientConfig) -> Result<Option<KillSwitch>> {
    let table = Table::named(table(config));
    warn_of_others(table.name());
    if config.kill_switch {
        return KillSwitch::install(config, table).map(Some);
    }
    info!("kill_switch off: without a session, traffic routed into the tunnel leaves outside it");
    match table.remove() {
        // Without nftables no rules can have been installed.
        Err(error) if !is_missing(&error) => {
            warn!(
                "cannot remove the rules of an earlier kill_switch, which may still block traffic: {error:#}"
            );
        }
        _ => {}
    }
    Ok(None)
}

/// Installs the kill switch like [`apply`], unless the client is running: its rules are equivalent,
/// and also allow the servers that a controller has named.
pub(crate) fn close(config: &ClientConfig) -> Result<()> {
    let tun = &config.common.interface;
    if client_runs(config) {
        info!("{tun} exists, so the client is running: its kill switch stays unchanged");
        return Ok(());
    }
    apply(config).map(drop)
}

/// Removes the kill switch.
///
/// # Errors
///
/// If the client is running, because it would install the rules again.
pub(crate) fn release(config: &ClientConfig) -> Result<()> {
    let tun = &config.common.interface;
    ensure!(
        !client_runs(config),
        "{tun} exists, so the client is running and would install the kill switch again: stop it first"
    );
    Table::named(table(config)).remove()
}

/// Returns whether the client is running. The kernel removes its device when the client exits for
/// any reason.
fn client_runs(config: &ClientConfig) -> bool {
    interface::index(&config.common.interface).is_some()
}

impl KillSwitch {
    fn install(config: &ClientConfig, table: Table) -> Result<KillSwitch> {
        let servers = config.servers.iter();
        let destinations: BTreeSet<_> = servers
            .flat_map(|server| destinations(&server.addresses, server.tcp_port))
            .collect();
        table
            .create(rules(config, &destinations))
            .context("kill_switch")?;
        let controllers = config.controllers.iter();
        for controller in controllers.filter(|controller| controller.address().is_none()) {
            warn!(
                %controller,
                "kill_switch: a controller with a host name is reached only through the tunnel, unless `bypass` \
                 contains its address and that of a name server"
            );
        }
        info!(
            table = table.name(),
            "kill_switch on: traffic routed into the tunnel cannot leave outside it, even after this process has exited"
        );
        Ok(KillSwitch {
            config: config.clone(),
            table: Arc::new(table),
            destinations: Mutex::new(destinations),
        })
    }

    /// Returns the nftables table that holds the rules.
    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }

    /// Allows the tunnel's own packets to these servers. Runs nftables if one of them is new.
    pub(crate) fn allow_servers(&self, servers: &[Server]) -> Result<()> {
        let new = servers
            .iter()
            .flat_map(|server| destinations(&server.addresses, server.tcp_port));
        let mut allowed = self.destinations.lock();
        let mut more = allowed.clone();
        more.extend(new);
        if more.len() > allowed.len() {
            self.table
                .create(rules(&self.config, &more))
                .context("kill_switch")?;
            *allowed = more;
        }
        Ok(())
    }
}

/// Warns of kill switches of other interfaces: `interface` may have been changed since they were
/// installed.
fn warn_of_others(own: &str) {
    for table in tables::names()
        .into_iter()
        .filter(|table| is_of_another(table, own))
    {
        warn!(
            table,
            "there is a kill switch of another interface; if no client with that `interface` needs it, remove it with \
             `nft delete table inet {table}`"
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

/// Returns rules that accept packets to servers with the mark and the user of this process.
fn own_packets(destinations: &BTreeSet<Destination>) -> String {
    let user = geteuid();
    let rule = |destination: &Destination| {
        let Destination {
            address,
            protocol,
            port,
        } = destination;
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        format!(
            "    meta mark {MARK} meta skuid {user} {family} daddr {address} {protocol} dport {port} accept\n"
        )
    };
    destinations.iter().map(rule).collect()
}

/// Returns the rules for packets that leave through other devices than the tunnel's. They accept
/// packets to `bypass`, with a mark in `bypass_marks`, and those of this node that an uplink needs to
/// work. They accept its multicast, which does not leave the networks that it is in unless they forward
/// it, and by which nodes on one network find each other. Their priority puts them after all rules that may change the route or mark of a packet.
fn rules(config: &ClientConfig, destinations: &BTreeSet<Destination>) -> String {
    let tun = &config.common.interface;
    let own = own_packets(destinations);
    let controllers = to_controllers(config);
    let bypass = with_marks(&config.bypass_marks) + &to_prefixes(&config.bypass, "accept");
    let closed = to_prefixes(&blocked_prefixes(config), "goto refused");
    format!(
        "  chain output {{
    type filter hook output priority 300;
    oifname {{ \"lo\", \"{tun}\" }} accept
{own}    udp sport 68 udp dport 67 accept
    udp sport 546 udp dport 547 accept
    ip6 hoplimit 255 icmpv6 type {{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }} accept
    ip daddr {{ 169.254.0.0/16, 224.0.0.0/4, 255.255.255.255 }} accept
    ip6 daddr {{ fe80::/10, ff00::/8 }} accept
{controllers}    jump closed
  }}
  chain forward {{
    type filter hook forward priority 300;
    oifname \"{tun}\" accept
    iifname \"{tun}\" accept
    jump closed
  }}
  chain closed {{
{bypass}{closed}  }}
  chain refused {{
    counter reject with icmpx admin-prohibited
  }}
"
    )
}

/// Returns rules that accept packets to the controllers whose addresses are known.
fn to_controllers(config: &ClientConfig) -> String {
    let rule = |address: SocketAddr| {
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        format!(
            "    {family} daddr {} tcp dport {} accept\n",
            address.ip(),
            address.port()
        )
    };
    let controllers = config.controllers.iter();
    controllers
        .filter_map(|controller| controller.address())
        .map(rule)
        .collect()
}

/// Returns rules that accept packets with these firewall marks.
fn with_marks(marks: &[u32]) -> String {
    let rule = |mark: &u32| format!("    meta mark {mark} accept\n");
    marks.iter().map(rule).collect()
}

/// Returns a rule with this verdict for packets to each of the prefixes.
fn to_prefixes(prefixes: &[Prefix], verdict: &str) -> String {
    let rule = |prefix: &Prefix| format!("    {} {verdict}\n", destination_match(*prefix));
    prefixes.iter().map(rule).collect()
}

/// Returns `routes`, and all addresses of a family without routes: otherwise applications would
/// fall back to that family.
fn blocked_prefixes(config: &ClientConfig) -> Vec<Prefix> {
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

/// Returns a match for packets to these addresses.
fn destination_match(prefix: Prefix) -> String {
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
