//! The coded tunnel as a path of the agents: its uplinks are the other paths.

use super::network::PATHS;
use crate::programs::tunnel::{self, Role, TunnelProcesses};
use anyhow::Result;
use hawser_testbed::topology::{Edge, Lab};
use std::net::Ipv4Addr;
use std::path::Path;

/// The number of the path over the tunnel.
pub(super) const NUMBER: u8 = PATHS as u8 + 1;

/// The client's inner address.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 50);

/// A running tunnel. It is stopped when this is dropped.
pub(super) struct CodedPath(TunnelProcesses);

impl CodedPath {
    /// Starts a tunnel from the ingress edge to the egress edge, and waits until it uses all paths.
    pub(super) fn start(lab: &Lab, hawser: &Path, directory: &Path) -> Result<Self> {
        tunnel::route_to_server(lab)?;
        let permanent = format!(
            "\n[[client]]\nname = {:?}\naddresses = [\"{CLIENT}\"]\n",
            tunnel::NAME
        );
        let (client, server) = (lab.ingress(), lab.egress());
        let ends = TunnelProcesses::start(hawser, client, server, directory, "path*", &permanent)?;
        ends.client_address(PATHS)?;
        tunnel::wait_for_route(client, tunnel::INNER, tunnel::DEVICE)?;
        Ok(CodedPath(ends))
    }

    /// Returns the section of the path in the file of an edge's agent.
    pub(super) fn section(edge: Edge) -> String {
        let (device, remote) = match edge {
            Edge::Ingress => (tunnel::DEVICE, tunnel::INNER),
            Edge::Egress => (tunnel::DEVICE, CLIENT),
        };
        format!("\n[[path]]\nnumber = {NUMBER}\ninterface = {device:?}\nremote = \"{remote}\"\n")
    }

    pub(super) fn kill(&mut self, role: Role) -> Result<()> {
        self.0.kill(role)
    }

    pub(super) fn start_again(&mut self, role: Role) -> Result<()> {
        self.0.start_again(role)
    }
}
