//! Benchmarks of replication and deduplication. Each is timed in the kernel, the frames that it sends really leave,
//! and each has a baseline to compare with.

use crate::BenchError;
use crate::skeleton::{bench_dedup, bench_replicate_tc, bench_replicate_xdp};
use bench_dedup::{BenchDedupSkel, BenchDedupSkelBuilder};
use bench_replicate_tc::{BenchReplicateTcSkel, BenchReplicateTcSkelBuilder};
use bench_replicate_xdp::{BenchReplicateXdpSkel, BenchReplicateXdpSkelBuilder};
use hawser_kernel::link::{Link, XdpMode};
use hawser_kernel::load::LoadError;
use hawser_kernel::program::{RunError, fd, live_run, open, test_run};
use hawser_kernel::shared::Shared;
use hawser_kernel::table::{Table, TableError, share_tables};
use hawser_replication_bpf::{Arrivals, Receiver, Sender};
use hawser_shim::{OVERHEAD_V4, OVERHEAD_V6, Shim};
use libbpf_rs::skel::OpenSkel;
use std::os::fd::AsRawFd;
use std::time::Duration;

const ETHERNET: usize = 14;

/// The most packets that [`DedupBench`] can prepare.
pub const MAX_PREPARED: usize = bench_dedup::types::bench_limit::PREPARED.0 as usize;

/// The benchmark of deduplication.
pub struct DedupBench {
    receiver: Receiver,
    arrivals: Arrivals,
    programs: BenchDedupSkel<'static>,
    prepared: Shared<bench_dedup::types::prepared>,
    frame: Vec<u8>,
    packets: u32,
}

/// The operation whose time is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepting {
    /// A fresh packet is made from the previous one, and accepted.
    Accept,
    /// A fresh packet is made from the previous one, and headroom is added and removed: the
    /// overhead of `Accept`.
    RestoreOnly,
}

impl DedupBench {
    /// Creates the benchmark of a receiver, with its configured paths and flows.
    pub fn load(receiver: Receiver, port: u16) -> Result<Self, LoadError> {
        let failed = LoadError::of("bench_dedup");
        let mut open = open::<BenchDedupSkelBuilder>().map_err(&failed)?;
        let rodata = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the program has constants");
        rodata.port = port;
        // All packets of a run have one send time.
        rodata.max_age_us = u32::MAX;
        open.progs.dedup.set_autoload(false);
        share_tables(open.open_object_mut(), receiver.programs()).map_err(&failed)?;
        let programs = open.load().map_err(&failed)?;
        let prepared = Shared::map(&programs.maps.prepared)?;
        Ok(DedupBench {
            arrivals: receiver.arrivals()?,
            receiver,
            programs,
            prepared,
            frame: Vec::new(),
            packets: 0,
        })
    }

    /// Returns the receiver.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Returns the reader of the receiver's arrival records.
    pub fn arrivals(&mut self) -> &mut Arrivals {
        &mut self.arrivals
    }

    /// Returns the time of an empty program.
    pub fn empty_program(&self, frame: &[u8], repeat: u32) -> Result<Duration, RunError> {
        Ok(test_run(&self.programs.progs.bare_drop, frame, repeat)?.duration)
    }

    /// Prepares packets that differ from `frame` only in their shims.
    ///
    /// # Panics
    /// If there are more than [`MAX_PREPARED`] shims.
    pub fn prepare(&mut self, frame: &[u8], shims: &[Shim]) {
        assert!(shims.len() <= MAX_PREPARED, "each packet has a row");
        for (index, shim) in shims.iter().enumerate() {
            let bytes = shim.emit();
            let row = bench_dedup::types::prepared {
                sequence_be: u64::from_ne_bytes(bytes[8..16].try_into().expect("8 bytes")),
                tag: bytes[20..28].try_into().expect("8 bytes"),
            };
            // SAFETY: a row of the mapping, which nothing else accesses between two runs.
            unsafe { self.prepared.row(index).write_volatile(row) };
        }
        self.packets = shims.len() as u32;
        self.frame = frame.to_vec();
        let outer_bytes = self.outer_bytes();
        let state = self
            .programs
            .maps
            .bss_data
            .as_deref_mut()
            .expect("the programs have a state");
        state.outer[..outer_bytes].copy_from_slice(&frame[..outer_bytes]);
    }

    /// Returns the mean time for one of the prepared packets.
    pub fn accept(&mut self, what: Accepting) -> Result<Duration, RunError> {
        let programs = &self.programs.progs;
        let program = match (what, self.is_ipv6()) {
            (Accepting::RestoreOnly, _) => &programs.restore,
            (Accepting::Accept, false) => &programs.accept_v4,
            (Accepting::Accept, true) => &programs.accept_v6,
        };
        self.programs
            .maps
            .bss_data
            .as_deref_mut()
            .expect("the programs have a state")
            .next_prepared = 0;
        Ok(test_run(program, &self.frame, self.packets)?.duration)
    }

    fn is_ipv6(&self) -> bool {
        self.frame[12..14] == [0x86, 0xdd]
    }

    fn outer_bytes(&self) -> usize {
        ETHERNET
            + if self.is_ipv6() {
                OVERHEAD_V6
            } else {
                OVERHEAD_V4
            }
    }
}

/// The benchmark of replicating transit traffic.
pub struct TransitBench {
    sender: Sender,
    programs: BenchReplicateXdpSkel<'static>,
    _sinks: Vec<Link>,
}

impl TransitBench {
    /// Creates the benchmark of a sender. `bare` are the devices that the baseline broadcasts to,
    /// `sinks` those at the other ends of the paths.
    pub fn load(sender: Sender, bare: &[u32], sinks: &[u32]) -> Result<Self, BenchError> {
        let failed = LoadError::of("bench_replicate_xdp");
        let mut open = open::<BenchReplicateXdpSkelBuilder>().map_err(&failed)?;
        for mut program in open.open_object_mut().progs_mut() {
            let timed = [
                "replicate_restored",
                "bare_broadcast",
                "broadcast_to_programs",
                "empty_path",
                "sink",
            ];
            program.set_autoload(timed.iter().any(|name| program.name() == *name));
        }
        share_tables(open.open_object_mut(), sender.transit_programs()).map_err(&failed)?;
        let programs = open.load().map_err(&failed)?;
        let empty = fd(&programs.progs.empty_path).as_raw_fd() as u32;
        for (index, device) in (0u32..).zip(bare) {
            // struct bpf_devmap_val: the interface, and the program if there is one
            programs.maps.bare_set.set(&index, &[*device, 0])?;
            programs.maps.empty_set.set(&index, &[*device, empty])?;
        }
        let attach = |device: &u32| Link::xdp(fd(&programs.progs.sink), *device, XdpMode::Native);
        let sinks = sinks.iter().map(attach).collect::<Result<_, _>>()?;
        Ok(TransitBench {
            sender,
            programs,
            _sinks: sinks,
        })
    }

    /// Returns the sender.
    pub fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// Returns the number of frames that have arrived at the sinks.
    pub fn arrived(&self) -> Result<u64, TableError> {
        Ok(self.programs.maps.arrived.per_cpu::<u64>(0)?.iter().sum())
    }

    /// Returns the time to replicate a packet, given in `frame` as it would arrive.
    pub fn replicate(&mut self, frame: &[u8], packets: u32) -> Result<Duration, RunError> {
        self.save_headers(frame);
        live_run(&self.programs.progs.replicate_restored, frame, packets)
    }

    /// Returns the time to send the unmodified packet to the bare devices.
    pub fn broadcast(&mut self, frame: &[u8], packets: u32) -> Result<Duration, RunError> {
        self.save_headers(frame);
        live_run(&self.programs.progs.bare_broadcast, frame, packets)
    }

    /// Returns the time of [`broadcast`](Self::broadcast) if the kernel also runs a program for each
    /// device, which does nothing.
    pub fn broadcast_to_programs(
        &mut self,
        frame: &[u8],
        packets: u32,
    ) -> Result<Duration, RunError> {
        self.save_headers(frame);
        live_run(&self.programs.progs.broadcast_to_programs, frame, packets)
    }

    fn save_headers(&mut self, frame: &[u8]) {
        let state = self
            .programs
            .maps
            .bss_data
            .as_deref_mut()
            .expect("the programs have a state");
        let length = state.headers.len();
        state.headers.copy_from_slice(&frame[..length]);
    }
}

/// The benchmark of replicating locally generated traffic.
pub struct LocalBench {
    programs: BenchReplicateTcSkel<'static>,
    egress: Link,
}

/// The program at the egress of the device that a packet is sent by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Egress {
    /// The sender's replication program.
    Replicate,
    /// Sends a clone of the unmodified packet to every device and drops the packet itself.
    Clones,
    /// As `Clones`, but redirects the packet itself to the last device.
    ClonesAndRedirect,
    /// Drops the packet. The cost of sending it is included in the other figures too.
    Discard,
}

impl LocalBench {
    /// Creates the benchmark of a sender's local replication. Packets are sent by `device`, clones
    /// go to `devices`.
    pub fn load(sender: &Sender, device: u32, devices: &[u32]) -> Result<Self, BenchError> {
        let failed = LoadError::of("bench_replicate_tc");
        let mut open = open::<BenchReplicateTcSkelBuilder>().map_err(&failed)?;
        let constants = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the programs have constants");
        constants.device = device;
        constants.copies = devices.len() as u32;
        constants.devices[..devices.len()].copy_from_slice(devices);
        let programs = open.load().map_err(&failed)?;
        let egress = Link::tcx_egress(sender.local_program(), device)?;
        Ok(LocalBench { programs, egress })
    }

    /// Returns the time for one packet, given in `frame` as this node sends it.
    pub fn run(
        &self,
        sender: &Sender,
        egress: Egress,
        frame: &[u8],
        packets: u32,
    ) -> Result<Duration, BenchError> {
        let programs = &self.programs.progs;
        let program = match egress {
            Egress::Replicate => sender.local_program(),
            Egress::Clones => fd(&programs.bare_clones),
            Egress::ClonesAndRedirect => fd(&programs.bare_clones_and_redirect),
            Egress::Discard => fd(&programs.discard),
        };
        self.egress.update(program).map_err(BenchError::Update)?;
        Ok(test_run(&programs.send, frame, packets)?.duration)
    }
}
