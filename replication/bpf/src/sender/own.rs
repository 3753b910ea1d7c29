//! Traffic of the node's own that a sender does not replicate.

use super::Sender;
use crate::skeleton::replicate_tc::types;
use crate::skeleton::replicate_xdp::types::limit;
use hawser_kernel::address::mapped;
use hawser_kernel::plain;
use hawser_kernel::table::{Table, TableError};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

plain!(types::endpoint, types::management);

/// Maximum number of management ports of a node.
pub const MANAGEMENT_PORTS: usize = limit::MANAGEMENT_PORTS.0 as usize;

/// A remote endpoint that the node itself talks to by UDP or TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Address and port.
    pub address: SocketAddr,
    /// The IP protocol.
    pub protocol: u8,
}

impl Sender {
    /// Sets the addresses of this node, each with the length of its link's prefix. Packets to them
    /// belong to no flow.
    pub fn set_own_addresses(&mut self, addresses: &[(IpAddr, u8)]) -> Result<(), TableError> {
        self.selection.set_own(&self.xdp.maps.selectors, addresses)
    }

    /// Replaces the endpoints to which this node's own packets belong to no flow.
    pub fn set_own_endpoints(&mut self, endpoints: BTreeSet<Endpoint>) -> Result<(), TableError> {
        let table = &self.tc.maps.own_endpoints;
        endpoints
            .difference(&self.own_endpoints)
            .try_for_each(|new| table.set(&new.key(), &1u8))?;
        self.own_endpoints
            .difference(&endpoints)
            .try_for_each(|old| table.remove(&old.key()))?;
        self.own_endpoints = endpoints;
        Ok(())
    }

    /// Sets the TCP ports of this node's management services. Packets that it sends from them
    /// belong to no flow, unless a rule names source ports.
    ///
    /// # Panics
    /// If there are more than [`MANAGEMENT_PORTS`].
    pub fn set_management_ports(&self, ports: &[u16]) -> Result<(), TableError> {
        let mut row = types::management::default();
        row.ports[..ports.len()].copy_from_slice(ports);
        self.tc.maps.management.set(&0u32, &row)
    }
}

impl Endpoint {
    fn key(&self) -> types::endpoint {
        let (port, protocol) = (self.address.port(), self.protocol);
        types::endpoint {
            address: mapped(self.address.ip()),
            port,
            protocol,
            ..Default::default()
        }
    }
}
