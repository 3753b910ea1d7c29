use crate::skeleton::bench_rewrite::{BenchRewriteSkel, BenchRewriteSkelBuilder, types};
use hawser_kernel::link::{AttachError, Link};
use hawser_kernel::load::LoadError;
use hawser_kernel::plain;
use hawser_kernel::program::{fd, open};
use hawser_kernel::table::{Table, TableError};
use hawser_media_bpf::relay::Route;
use libbpf_rs::skel::OpenSkel;
use std::net::SocketAddrV4;

plain!(types::rewrite_client);

/// A client of a [`RewriteRelay`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RewriteClient {
    /// The relay's address for the client.
    pub local: SocketAddrV4,
    /// The client's address.
    pub remote: SocketAddrV4,
    /// The client's name of the track.
    pub alias: u32,
}

/// The relay of Pfeifer's thesis: it rewrites every packet for every client.
pub struct RewriteRelay {
    programs: BenchRewriteSkel<'static>,
    device: u32,
    links: Vec<Link>,
}

impl RewriteRelay {
    /// Loads the programs. Packets arrive at the UDP port `port`; the clients are behind `device`.
    pub fn load(port: u16, device: u32) -> Result<Self, LoadError> {
        let failed = LoadError::of("bench_rewrite");
        let mut open = open::<BenchRewriteSkelBuilder>().map_err(&failed)?;
        let constants = open.maps.rodata_data.as_deref_mut();
        let constants = constants.expect("the programs have constants");
        constants.port = port;
        constants.device = device;
        Ok(RewriteRelay {
            programs: open.load().map_err(&failed)?,
            device,
            links: Vec::new(),
        })
    }

    /// Sets the clients, and the way to all of them.
    pub fn set_clients(
        &mut self,
        route: &Route,
        clients: &[RewriteClient],
    ) -> Result<(), TableError> {
        for (number, client) in (0u32..).zip(clients) {
            let RewriteClient {
                local,
                remote,
                alias,
            } = client;
            let row = types::rewrite_client {
                next_hop: route.next_hop_mac,
                source: route.source_mac,
                local_be: u32::from(*local.ip()).to_be(),
                remote_be: u32::from(*remote.ip()).to_be(),
                local_port_be: local.port().to_be(),
                remote_port_be: remote.port().to_be(),
                alias_be: alias.to_be(),
                packet_number: 0,
            };
            self.programs.maps.rewrite_clients.set(&number, &row)?;
        }
        let state = self.programs.maps.bss_data.as_deref_mut();
        state.expect("the programs have a state").clients = clients.len() as u32;
        Ok(())
    }

    /// Rewrites what leaves for clients.
    pub fn attach_egress(&mut self) -> Result<(), AttachError> {
        let program = fd(&self.programs.progs.rewrite_egress);
        self.links.push(Link::tcx_egress(program, self.device)?);
        Ok(())
    }

    /// Relays what arrives at a device.
    pub fn attach_ingress(&mut self, arrival: u32) -> Result<(), AttachError> {
        let program = fd(&self.programs.progs.rewrite_ingress);
        self.links.push(Link::tcx_ingress(program, arrival)?);
        Ok(())
    }

    /// Ends relaying.
    pub fn detach(&mut self) {
        self.links.drain(..).for_each(Link::end);
    }
}
