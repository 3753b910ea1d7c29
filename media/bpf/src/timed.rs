//! The relay at explicit times, for comparison with its specification.

use crate::relay::Relay;
use crate::skeleton::relay_at::{RelayAtSkel, RelayAtSkelBuilder};
use crate::{LoadError, RunError, TestRun};
use hawser_kernel::program::{open, test_run};
use hawser_kernel::table::share_tables;
use hawser_units::Instant;
use libbpf_rs::skel::{OpenSkel, Skel};

/// A relay whose program runs at explicit times.
pub struct TimedRelay {
    relay: Relay,
    programs: RelayAtSkel<'static>,
}

impl TimedRelay {
    /// Loads a relay, see [`Relay::load`].
    pub fn load(datagram_bytes: u16) -> Result<Self, LoadError> {
        let relay = Relay::load(datagram_bytes)?;
        let programs = load(datagram_bytes, &relay)?;
        Ok(TimedRelay { relay, programs })
    }

    /// Returns the relay.
    pub fn relay(&mut self) -> &mut Relay {
        &mut self.relay
    }

    /// Runs the program on a frame that arrives at `now`.
    pub fn run_at(&mut self, now: Instant, frame: &[u8]) -> Result<TestRun, RunError> {
        let state = self.programs.maps.bss_data.as_deref_mut();
        state.expect("the program has a state").now_ns = now.as_nanos();
        test_run(&self.programs.progs.relay_at, frame, 1)
    }
}

fn load(datagram_bytes: u16, relay: &Relay) -> Result<RelayAtSkel<'static>, LoadError> {
    let failed = LoadError::of("relay_at");
    let mut open = open::<RelayAtSkelBuilder>().map_err(&failed)?;
    let constants = open
        .maps
        .rodata_data
        .as_deref_mut()
        .expect("the program has constants");
    constants.datagram_bytes = datagram_bytes;
    share_tables(open.open_object_mut(), relay.skeleton.object()).map_err(&failed)?;
    open.load().map_err(&failed)
}
