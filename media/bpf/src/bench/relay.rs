use super::BenchError;
use crate::relay::{Options, Relay};
use crate::skeleton::bench_relay::{BenchRelaySkel, BenchRelaySkelBuilder};
use crate::{Link, LoadError, RunError, TestRun};
use hawser_kernel::program::{fd, test_run};
use hawser_kernel::table::{Table, TableError, share_tables};
use hawser_units::Instant;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use std::mem::MaybeUninit;

/// A relay whose program runs at explicit times.
pub struct TimedRelay {
    relay: Relay,
    programs: BenchRelaySkel<'static>,
}

/// A relay whose packets are counted and dropped where they are delivered, so that the cost of
/// receivers is not measured.
pub struct RelayBench {
    relay: Relay,
    programs: BenchRelaySkel<'static>,
    _sink: Link,
}

impl TimedRelay {
    /// Loads a relay.
    pub fn load(options: &Options) -> Result<Self, LoadError> {
        let relay = Relay::load(options)?;
        let programs = load(options, &relay)?;
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

impl RelayBench {
    /// Loads a relay. `sink` is the device that packets are delivered to.
    pub fn load(options: &Options, sink: u32) -> Result<Self, BenchError> {
        let relay = Relay::load(options)?;
        let programs = load(options, &relay)?;
        let sink = Link::tcx_ingress(fd(&programs.progs.deliver), sink)?;
        Ok(RelayBench {
            relay,
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

fn load(options: &Options, relay: &Relay) -> Result<BenchRelaySkel<'static>, LoadError> {
    let failed = LoadError::of("bench_relay");
    let storage = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = BenchRelaySkelBuilder::default()
        .open(storage)
        .map_err(&failed)?;
    let constants = open
        .maps
        .rodata_data
        .as_deref_mut()
        .expect("the program has constants");
    constants.datagram_bytes = options.datagram_bytes;
    constants.segmenter_entry = options.segmenter_entry.unwrap_or(0);
    share_tables(open.open_object_mut(), relay.skeleton.object()).map_err(&failed)?;
    open.load().map_err(&failed)
}
