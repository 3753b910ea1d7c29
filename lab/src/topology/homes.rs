use super::Lab;
use anyhow::Result;
use std::fmt::Write;

/// Routing table of the first path that has a home; the main table is that of path 1.
const FIRST_TABLE: u32 = 102;

impl Lab {
    /// Gives the viewer its further addresses and each path the traffic of one of them, in both directions. The viewer
    /// then begins an MPTCP subflow from each, to which the source agrees.
    pub(super) fn add_homes(&self, route_mtu: u32) -> Result<()> {
        let homes = &self.addressing.homes;
        if homes.is_empty() {
            return Ok(());
        }
        let (source, viewer) = (self.addressing.source.v4_prefix(), &self.addressing.viewer);
        let (edge, host, length) = (&viewer.near.device, &viewer.far, viewer.v4_length);
        let limits = format!(
            "mptcp limits set subflows {} add_addr_accepted 0\n",
            homes.len()
        );
        let (mut at_ingress, mut at_egress, mut at_viewer) =
            (String::new(), String::new(), limits.clone());
        for ((home, path), table) in homes
            .iter()
            .zip(&self.addressing.paths[1..])
            .zip(FIRST_TABLE..)
        {
            let (near, far) = (&path.near, &path.far);
            let _ = writeln!(
                at_ingress,
                "route add {home}/32 via {} dev {} mtu {route_mtu}",
                far.v4, near.device
            );
            let _ = write!(
                at_egress,
                "neigh replace {home} lladdr {} nud permanent dev {edge}
route add {source} via {} dev {} mtu {route_mtu} table {table}
rule add from {home} lookup {table}
",
                host.mac, near.v4, far.device,
            );
            let device = &host.device;
            let _ = write!(
                at_viewer,
                "addr add {home}/{length} dev {device}
mptcp endpoint add {home} dev {device} subflow
"
            );
        }
        // A connection's buffer begins with the middle value and grows with what its reader takes. While data of a slow
        // path is missing the reader takes nothing, and a small buffer full of data of the others stays small for ever.
        self.viewer
            .sysctl("net.ipv4.tcp_rmem", "4096 16777216 67108864")?;
        self.source.ip(&limits)?;
        self.ingress.ip(&at_ingress)?;
        self.egress.ip(&at_egress)?;
        Ok(self.viewer.ip(&at_viewer)?)
    }
}
