use crate::config::Prefix;
use crate::device::run_with_input;
use anyhow::{Context, Result, ensure};
use std::fs;

/// The group of devices in which the TUN devices of servers are: none of them passes packets on to another one.
pub(crate) const SERVERS: u32 = 14752;

/// A table of nftables that gives what goes on from here the address of the device by which it leaves, and keeps the
/// clients of a machine's servers apart. It is removed with this value; one that a killed process left is replaced.
#[derive(Debug)]
pub(crate) struct Nat {
    table: String,
}

impl Nat {
    /// For all packets that leave by a client's device.
    pub(crate) fn of_client(tun: &str) -> Result<Nat> {
        Nat::set_up(tun, &postrouting(&format!("    oifname \"{tun}\" masquerade\n")))
    }

    /// For packets from `sources` that leave by any other device than a server's, and against those between that device
    /// and one of another server.
    pub(crate) fn of_server(tun: &str, sources: &[Prefix]) -> Result<Nat> {
        let forward = format!(
            "  chain forward {{\n    type filter hook forward priority filter;\n    \
             iifname \"{tun}\" oifgroup {SERVERS} counter drop\n    \
             iifgroup {SERVERS} oifname \"{tun}\" counter drop\n  }}\n"
        );
        let rules: String = sources.iter().map(|prefix| rule(tun, *prefix)).collect();
        let nat = if sources.is_empty() { String::new() } else { postrouting(&rules) };
        Nat::set_up(tun, &(forward + &nat))
    }

    fn set_up(tun: &str, chains: &str) -> Result<Nat> {
        let table = format!("hawser_{}", tun.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
        // Adding a table that is there does nothing, so that the deletion never fails.
        let script =
            format!("add table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n{chains}}}\n");
        run_with_input("nft", &["-f", "-"], "nftables", &script)?;
        Ok(Nat { table })
    }
}

fn postrouting(rules: &str) -> String {
    format!("  chain postrouting {{\n    type nat hook postrouting priority srcnat;\n{rules}  }}\n")
}

impl Drop for Nat {
    fn drop(&mut self) {
        let script = format!("delete table inet {}\n", self.table);
        if let Err(error) = run_with_input("nft", &["-f", "-"], "nftables", &script) {
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
        let key = if prefix.is_ipv4() { "net.ipv4.ip_forward" } else { "net.ipv6.conf.all.forwarding" };
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
