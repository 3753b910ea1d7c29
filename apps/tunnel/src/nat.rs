use crate::config::Prefix;
use crate::tables::Table;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::sync::Arc;

/// The group of devices in which the TUN devices of servers are: none of them passes packets on to another one.
pub(crate) const SERVERS: u32 = 14752;

/// A table of nftables that gives what goes on from here the address of the device by which it leaves, and keeps the
/// clients of a machine's servers apart. It is removed with this value; one that a killed process left is replaced.
#[derive(Debug)]
pub(crate) struct Nat {
    table: Arc<Table>,
}

impl Nat {
    /// For all packets that leave by a client's device.
    pub(crate) fn of_client(tun: &str) -> Result<Nat> {
        Nat::set_up(
            tun,
            &postrouting(&format!("    oifname \"{tun}\" masquerade\n")),
        )
    }

    /// For packets from `sources` that leave by any other device than a server's, and against those between that device
    /// and one of another server. A client has `most_connections` at once, if that is given.
    pub(crate) fn of_server(
        tun: &str,
        sources: &[Prefix],
        most_connections: Option<u32>,
    ) -> Result<Nat> {
        let forward = format!(
            "  chain forward {{\n    type filter hook forward priority filter;\n    \
             iifname \"{tun}\" oifgroup {SERVERS} counter drop\n    \
             iifgroup {SERVERS} oifname \"{tun}\" counter drop\n  }}\n"
        );
        let rules: String = sources.iter().map(|prefix| rule(tun, *prefix)).collect();
        let nat = if sources.is_empty() {
            String::new()
        } else {
            postrouting(&rules)
        };
        let bound = most_connections
            .map(|most| bound(tun, most))
            .unwrap_or_default();
        Nat::set_up(tun, &(bound + &forward + &nat))
    }

    fn set_up(tun: &str, chains: &str) -> Result<Nat> {
        let table = Table::named(table_of(tun));
        table.make(chains.to_owned())?;
        Ok(Nat {
            table: Arc::new(table),
        })
    }

    /// The table of nftables that holds the rules.
    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }
}

/// The name of the table for a device.
pub(crate) fn table_of(tun: &str) -> String {
    format!(
        "hawser_{}",
        tun.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
    )
}

/// Refuses a client's new connections while it has `most` of them. Before NAT, so that what is refused takes no place.
fn bound(tun: &str, most: u32) -> String {
    let of = |family: &str, kind: &str| {
        let set = format!(
            "  set {family}_clients {{\n    type {kind};\n    size 65535;\n    flags dynamic;\n  }}\n"
        );
        let rule = format!(
            "    iifname \"{tun}\" ct state new \
             add @{family}_clients {{ {family} saddr ct count over {most} }} counter drop\n"
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

/// Whether the kernel passes packets on; it is for the operator to decide that it does.
pub(crate) fn check_forwarding(prefixes: &[Prefix]) -> Result<()> {
    for prefix in prefixes {
        let key = if prefix.is_ipv4() {
            "net.ipv4.ip_forward"
        } else {
            "net.ipv6.conf.all.forwarding"
        };
        // /proc/net and /proc/sys/net are those of the thread's namespace.
        let value = fs::read_to_string(format!("/proc/sys/{}", key.replace('.', "/")))
            .with_context(|| format!("cannot read {key}"))?;
        ensure!(
            value.trim() != "0",
            "this machine passes no packets on, so that clients would reach nothing but it: `sysctl -w {key}=1`, or \
             `nat = false` if that is what you want"
        );
    }
    Ok(())
}
