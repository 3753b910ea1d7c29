//! The node's own addresses and its own traffic to peers and controllers. That traffic belongs to
//! no flow, whatever the selectors match.

use crate::config::Config;
use anyhow::{Context, Result};
use hawser_io::interface;
use hawser_replication_bpf::{Endpoint, Sender};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The addresses and endpoints that were set in the sender.
#[derive(Debug, Default)]
pub(super) struct OwnTraffic {
    addresses: BTreeSet<(IpAddr, u8)>,
    controllers: BTreeSet<SocketAddr>,
    /// Addresses that are probed and belong to no path.
    probed: BTreeSet<IpAddr>,
}

impl OwnTraffic {
    /// Initializes a sender that has just been loaded.
    pub(super) fn begin(&mut self, sender: &mut Sender, config: &Config) -> Result<()> {
        sender.set_management_ports(&config.management_ports)?;
        self.set_endpoints(sender, config)?;
        self.follow(sender)
    }

    /// Updates the node's addresses in the sender.
    pub(super) fn follow(&mut self, sender: &mut Sender) -> Result<()> {
        let now = interface::addresses().context("cannot read the addresses of this node")?;
        if now != self.addresses {
            sender.set_own_addresses(&now.iter().copied().collect::<Vec<_>>())?;
            self.addresses = now;
        }
        Ok(())
    }

    /// Updates the addresses of the controllers in the sender.
    pub(super) fn set_controllers(
        &mut self,
        sender: &mut Sender,
        config: &Config,
        controllers: BTreeSet<SocketAddr>,
    ) -> Result<()> {
        if controllers != self.controllers {
            self.controllers = controllers;
            self.set_endpoints(sender, config)?;
        }
        Ok(())
    }

    /// Updates the addresses that are probed and belong to no path.
    pub(super) fn set_probed(
        &mut self,
        sender: &mut Sender,
        config: &Config,
        probed: BTreeSet<IpAddr>,
    ) -> Result<()> {
        if probed != self.probed {
            self.probed = probed;
            self.set_endpoints(sender, config)?;
        }
        Ok(())
    }

    /// Updates the endpoints at the other ends of the paths in the sender.
    pub(super) fn set_endpoints(&self, sender: &mut Sender, config: &Config) -> Result<()> {
        let remotes = config.paths.values().map(|path| path.remote);
        let remotes = remotes.chain(self.probed.iter().copied());
        let measured = remotes.map(|remote| SocketAddr::new(remote, config.echo_port));
        let measured = measured.map(|address| Endpoint {
            address,
            protocol: UDP,
        });
        let controllers = self.controllers.iter().map(|address| Endpoint {
            address: *address,
            protocol: TCP,
        });
        Ok(sender.set_own_endpoints(measured.chain(controllers).collect())?)
    }
}
