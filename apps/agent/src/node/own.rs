//! What is this node's own: its addresses, and whom it talks to itself. None of it is of a flow, however much is selected.

use crate::config::Config;
use anyhow::{Context, Result};
use hawser_bpf::{Endpoint, Sender};
use hawser_io::interface;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// As the sender has it.
#[derive(Debug, Default)]
pub(super) struct Own {
    addresses: BTreeSet<(IpAddr, u8)>,
    controllers: BTreeSet<SocketAddr>,
}

impl Own {
    /// Tells a sender that has just been loaded.
    pub(super) fn begin(&mut self, sender: &mut Sender, config: &Config) -> Result<()> {
        sender.set_management_ports(&config.management_ports)?;
        self.tell_endpoints(sender, config)?;
        self.follow(sender)
    }

    /// Takes in addresses that have come and gone.
    pub(super) fn follow(&mut self, sender: &mut Sender) -> Result<()> {
        let now = interface::addresses().context("cannot read the addresses of this node")?;
        if now != self.addresses {
            sender.set_own_addresses(&now.iter().copied().collect::<Vec<_>>())?;
            self.addresses = now;
        }
        Ok(())
    }

    /// Takes in where the controllers are.
    pub(super) fn set_controllers(
        &mut self,
        sender: &mut Sender,
        config: &Config,
        controllers: BTreeSet<SocketAddr>,
    ) -> Result<()> {
        if controllers != self.controllers {
            self.controllers = controllers;
            self.tell_endpoints(sender, config)?;
        }
        Ok(())
    }

    fn tell_endpoints(&self, sender: &mut Sender, config: &Config) -> Result<()> {
        let measured = config
            .paths
            .values()
            .map(|path| SocketAddr::new(path.remote, config.echo_port));
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
