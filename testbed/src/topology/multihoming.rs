use super::Lab;
use anyhow::Result;
use std::fmt::Write;

/// Routing table of path 2, the first one with an additional address. Path 1 uses the main table.
const FIRST_TABLE: u32 = 102;

impl Lab {
    /// Gives the viewer its additional addresses and routes the traffic of each over its path, in
    /// both directions. The viewer then opens an MPTCP subflow from each, which the source accepts.
    pub(super) fn add_multihoming(&self, route_mtu: u32) -> Result<()> {
        let addresses = &self.addressing.additional_viewer_addresses;
        if addresses.is_empty() {
            return Ok(());
        }
        let (source, viewer) = (self.addressing.source.v4_prefix(), &self.addressing.viewer);
        let (edge, host, length) = (&viewer.near.device, &viewer.far, viewer.v4_length);
        let limits = format!(
            "mptcp limits set subflows {} add_addr_accepted 0\n",
            addresses.len()
        );
        let (mut at_ingress, mut at_egress, mut at_viewer) =
            (String::new(), String::new(), limits.clone());
        for ((address, path), table) in addresses
            .iter()
            .zip(&self.addressing.paths[1..])
            .zip(FIRST_TABLE..)
        {
            let (near, far) = (&path.near, &path.far);
            let _ = writeln!(
                at_ingress,
                "route add {address}/32 via {} dev {} mtu {route_mtu}",
                far.v4, near.device
            );
            let _ = write!(
                at_egress,
                "neigh replace {address} lladdr {} nud permanent dev {edge}
route add {source} via {} dev {} mtu {route_mtu} table {table}
rule add from {address} lookup {table}
",
                host.mac, near.v4, far.device,
            );
            let device = &host.device;
            let _ = write!(
                at_viewer,
                "addr add {address}/{length} dev {device}
mptcp endpoint add {address} dev {device} subflow
"
            );
        }
        // A connection's buffer starts at the middle value and grows with the data that its reader
        // consumes. While data of a slow path is missing the reader consumes nothing, so a small
        // buffer that is full of data of other paths would never grow.
        self.viewer
            .sysctl("net.ipv4.tcp_rmem", "4096 16777216 67108864")?;
        self.source.ip(&limits)?;
        self.ingress.ip(&at_ingress)?;
        self.egress.ip(&at_egress)?;
        Ok(self.viewer.ip(&at_viewer)?)
    }
}
