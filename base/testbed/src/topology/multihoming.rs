use super::{Lab, Link};
use anyhow::Result;
use std::net::Ipv4Addr;

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
        let subflows = addresses.len();
        let limits = format!("mptcp limits set subflows {subflows} add_addr_accepted 0\n");
        let (mut at_ingress, mut at_egress) = (String::new(), String::new());
        let mut at_viewer = limits.clone();
        let paths = &self.addressing.paths[1..];
        for ((address, path), table) in addresses.iter().zip(paths).zip(FIRST_TABLE..) {
            at_ingress += &there(*address, path, route_mtu);
            at_egress += &self.back(*address, path, route_mtu, table);
            at_viewer += &self.subflow(*address);
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

    /// Returns commands for the egress edge: packets from an address of the viewer take its path.
    fn back(&self, address: Ipv4Addr, path: &Link, route_mtu: u32, table: u32) -> String {
        let Link {
            near: edge, far, ..
        } = &self.addressing.viewer;
        let (source, edge, host_mac) = (self.addressing.source.v4_prefix(), &edge.device, far.mac);
        let (via, device) = (path.near.v4, &path.far.device);
        format!(
            "neigh replace {address} lladdr {host_mac} nud permanent dev {edge}
route add {source} via {via} dev {device} mtu {route_mtu} table {table}
rule add from {address} lookup {table}
"
        )
    }

    /// Returns commands for the viewer: the address, and an MPTCP subflow from it.
    fn subflow(&self, address: Ipv4Addr) -> String {
        let Link { far, v4_length, .. } = &self.addressing.viewer;
        let device = &far.device;
        format!(
            "addr add {address}/{v4_length} dev {device}
mptcp endpoint add {address} dev {device} subflow
"
        )
    }
}

/// Returns the command for the ingress edge: packets to an address of the viewer take its path.
fn there(address: Ipv4Addr, path: &Link, route_mtu: u32) -> String {
    format!(
        "route add {address}/32 via {} dev {} mtu {route_mtu}\n",
        path.far.v4, path.near.device
    )
}
