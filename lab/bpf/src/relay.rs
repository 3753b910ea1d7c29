use crate::BenchError;
use crate::skeleton::bench_deliver::{BenchDeliverSkel, BenchDeliverSkelBuilder};
use hawser_kernel::link::Link;
use hawser_kernel::load::LoadError;
use hawser_kernel::program::{fd, open};
use hawser_kernel::table::{Table, TableError};
use hawser_media_bpf::relay::Relay;
use libbpf_rs::skel::OpenSkel;

/// A relay whose packets are counted and dropped where they are delivered, so that the cost of
/// receivers is not measured.
pub struct RelayBench {
    relay: Relay,
    programs: BenchDeliverSkel<'static>,
    _sink: Link,
}

impl RelayBench {
    /// Loads a relay, see [`Relay::load`]. `sink` is the device that packets are delivered to.
    pub fn load(datagram_bytes: u16, sink: u32) -> Result<Self, BenchError> {
        let failed = LoadError::of("bench_deliver");
        let open = open::<BenchDeliverSkelBuilder>();
        let programs = open.and_then(OpenSkel::load).map_err(&failed)?;
        let sink = Link::tcx_ingress(fd(&programs.progs.deliver), sink)?;
        Ok(RelayBench {
            relay: Relay::load(datagram_bytes)?,
            programs,
            _sink: sink,
        })
    }

    /// Returns the relay.
    pub fn relay(&mut self) -> &mut Relay {
        &mut self.relay
    }

    /// Returns the number of datagrams that were delivered.
    pub fn delivered(&self) -> Result<u64, TableError> {
        Ok(self.programs.maps.delivered.per_cpu::<u64>(0)?.iter().sum())
    }
}
