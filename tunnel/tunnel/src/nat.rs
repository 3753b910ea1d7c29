use crate::config::Prefix;
use crate::tables::Table;
use anyhow::{Context, Result, ensure};
use hawser_io::sysctl;
use std::sync::Arc;

/// The interface group of the servers' TUN devices. No packets are forwarded between devices of
/// this group.
pub(crate) const SERVER_GROUP: u32 = 14752;

/// An nftables table that masquerades forwarded packets and keeps the clients of a machine's
/// servers apart. Dropping the value removes the table; a table left by a killed process is
/// replaced.
#[derive(Debug)]
pub(crate) struct Nat {
    table: Arc<Table>,
}

impl Nat {
    /// Creates the table of a client, which masquerades all packets that leave through its device.
    pub(crate) fn for_client(tun: &str) -> Result<Nat> {
        Nat::install(
            tun,
            &postrouting(&format!("    oifname \"{tun}\" masquerade\n")),
        )
    }

    /// Creates the table of a server. It masquerades packets from `sources` that leave through any
    /// device but the server's, and drops packets between that device and those of other servers.
    /// `max_connections`, if given, limits the concurrent connections of a client.
    pub(crate) fn for_server(
        tun: &str,
        sources: &[Prefix],
        max_connections: Option<u32>,
    ) -> Result<Nat> {
        let forward = format!(
            "  chain forward {{\n    type filter hook forward priority filter;\n    \
             iifname \"{tun}\" oifgroup {SERVER_GROUP} counter drop\n    \
             iifgroup {SERVER_GROUP} oifname \"{tun}\" counter drop\n  }}\n"
        );
        let rules: String = sources.iter().map(|prefix| rule(tun, *prefix)).collect();
        let nat = if sources.is_empty() {
            String::new()
        } else {
            postrouting(&rules)
        };
        let limit = max_connections
            .map(|max| connection_limit(tun, max))
            .unwrap_or_default();
        Nat::install(tun, &(limit + &forward + &nat))
    }

    fn install(tun: &str, chains: &str) -> Result<Nat> {
        let table = Table::named(table_of(tun));
        table.create(chains.to_owned())?;
        Ok(Nat {
            table: Arc::new(table),
        })
    }

    /// Returns the nftables table that holds the rules.
    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }
}

/// Returns the name of the table for a device.
pub(crate) fn table_of(tun: &str) -> String {
    format!(
        "hawser_{}",
        tun.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
    )
}

/// Returns a chain that drops new connections of a client that has `max` of them. It comes before
/// NAT, so that dropped connections take no entry of the connection table.
fn connection_limit(tun: &str, max: u32) -> String {
    let of = |family: &str, kind: &str| {
        let set = format!(
            "  set {family}_clients {{\n    type {kind};\n    size 65535;\n    flags dynamic;\n  }}\n"
        );
        let rule = format!(
            "    iifname \"{tun}\" ct state new \
             add @{family}_clients {{ {family} saddr ct count over {max} }} counter drop\n"
        );
        (set, rule)
    };
    let ((set4, rule4), (set6, rule6)) = (of("ip", "ipv4_addr"), of("ip6", "ipv6_addr"));
    format!(
        "{set4}{set6}  chain connections {{\n    type filter hook prerouting priority mangle;\n{rule4}{rule6}  }}\n"
    )
}

fn postrouting(rules: &str) -> String {
    format!("  chain postrouting {{\n    type nat hook postrouting priority srcnat;\n{rules}  }}\n")
}

impl Drop for Nat {
    fn drop(&mut self) {
        if let Err(error) = self.table.remove() {
            tracing::warn!("{error:#}");
        }
    }
}

fn rule(tun: &str, prefix: Prefix) -> String {
    let family = if prefix.is_ipv4() { "ip" } else { "ip6" };
    format!("    {family} saddr {prefix} oifname != \"{tun}\" masquerade\n")
}

/// Fails if the kernel does not forward packets of the prefixes' families. Enabling forwarding is
/// up to the operator.
pub(crate) fn check_forwarding(prefixes: &[Prefix]) -> Result<()> {
    for prefix in prefixes {
        let key = if prefix.is_ipv4() {
            "net.ipv4.ip_forward"
        } else {
            "net.ipv6.conf.all.forwarding"
        };
        let value = sysctl::read(key).with_context(|| format!("cannot read {key}"))?;
        ensure!(
            value != "0",
            "this machine does not forward packets, so clients could reach nothing but the server: run \
             `sysctl -w {key}=1`, and put it into a file of /etc/sysctl.d for the next boot, or set `nat = false` if this \
             is intended"
        );
    }
    Ok(())
}
