use super::Delays;
use crate::skeleton::bench_stream::{BenchStreamSkel, BenchStreamSkelBuilder, types};
use hawser_kernel::link::{AttachError, Link};
use hawser_kernel::load::LoadError;
use hawser_kernel::program::{fd, open};
use hawser_kernel::shared::Shared;
use libbpf_rs::skel::OpenSkel;
use std::time::Duration;

/// Measures how long packets take through a relay that encrypts them for each subscriber, between the same
/// devices as [`DelayProbe`](super::DelayProbe). They are matched by their order in an object, so nothing but
/// objects may be long, and a relay has to have sent an object before the next one comes.
pub struct StreamProbe {
    programs: BenchStreamSkel<'static>,
    delays: Shared<types::delays>,
    links: Vec<Link>,
}

impl StreamProbe {
    /// Loads the programs. There are at least `pause` between two objects, and `least_bytes` above UDP in each
    /// of their packets.
    pub fn load(pause: Duration, least_bytes: u32) -> Result<Self, LoadError> {
        let failed = LoadError::of("bench_stream");
        let open = open::<BenchStreamSkelBuilder>().map_err(&failed)?;
        let programs = open.load().map_err(&failed)?;
        let delays = Shared::map(&programs.maps.delays)?;
        let mut probe = StreamProbe {
            programs,
            delays,
            links: Vec::new(),
        };
        let state = probe.state();
        state.pause_ns = pause.as_nanos() as u64;
        state.least_bytes = least_bytes;
        Ok(probe)
    }

    /// Takes the egress of a device as where packets are sent to the relay.
    pub fn attach_arrival(&mut self, device: u32) -> Result<(), AttachError> {
        let program = fd(&self.programs.progs.send);
        self.links.push(Link::tcx_egress(program, device)?);
        Ok(())
    }

    /// Takes the egress of a device as where packets leave the relay.
    pub fn attach_departure(&mut self, device: u32) -> Result<(), AttachError> {
        let program = fd(&self.programs.progs.deliver);
        self.links.push(Link::tcx_egress(program, device)?);
        Ok(())
    }

    /// Ends counting.
    pub fn detach(&mut self) {
        self.links.drain(..).for_each(Link::end);
    }

    /// Returns the delays since the last call, and the number of packets that were of no object.
    pub fn take(&mut self) -> (Delays, u64) {
        let row = self.delays.row(0).cast();
        // SAFETY: the row is in the mapping, which lives as long as the probe.
        let delays = unsafe { Delays::take(row) };
        (delays, std::mem::take(&mut self.state().unmatched))
    }

    fn state(&mut self) -> &mut types::bss {
        let state = self.programs.maps.bss_data.as_deref_mut();
        state.expect("the programs have a state")
    }
}
