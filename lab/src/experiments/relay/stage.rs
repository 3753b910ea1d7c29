//! The measurement: the publisher in one thread, at the pace of a video, and a relay in user space in
//! another one, on another CPU.

mod moq_relay;

use super::scenario::{Load, Trial, Way};
use super::{ROUNDS, us};
use crate::bench::median;
use crate::experiment::Run;
use crate::relays::{
    self, HOW_TO_INSTALL, Network, PORT, Publisher, RELAY, Running, UserSpaceRelay,
};
use crate::summary::quantile;
use anyhow::{Context, Result, bail};
use hawser_lab_bpf::{
    DelayProbe, Delays, RewriteClient, RewriteRelay, StreamProbe, Subscribers, SyscallCounter,
};
use hawser_media_bpf::relay::Relay;
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_testbed::netns::Namespace;
use hawser_testbed::ring::{cpu_time, rise_to_realtime};
use nix::net::if_::if_nametoindex;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, gettid};
use std::net::SocketAddrV4;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The figures of one way to relay over a part of the run.
pub(crate) struct Slice {
    /// Packets that were to be delivered, and those that were.
    pub(crate) expected: u64,
    pub(crate) delivered: u64,
    delays: Delays,
    /// The times from publisher to subscriber of whole objects, sorted, if they were measured.
    objects: Vec<Duration>,
    /// The program and its version, if the relay is one.
    pub(crate) program: Option<String>,
    /// CPU time of the relay: that of its thread, and of what the arrival of packets causes in the kernel
    /// beyond their arrival itself.
    cpu: f64,
    syscalls: u64,
}

impl Slice {
    pub(crate) fn cpu_us_per_delivered_packet(&self) -> f64 {
        self.cpu * 1e6 / self.delivered as f64
    }

    pub(crate) fn syscalls_per_delivered_packet(&self) -> f64 {
        self.syscalls as f64 / self.delivered as f64
    }

    /// Returns the delay that a share of the packets does not exceed, in microseconds.
    pub(crate) fn delay_us(&self, share: f64) -> f64 {
        us(self.delays.percentile(share))
    }

    /// Returns the share of the packets of which the delay was measured.
    pub(crate) fn matched_ratio(&self) -> f64 {
        self.delays.packets() as f64 / self.expected as f64
    }

    /// Returns the time from publisher to subscriber that a share of the objects does not exceed, in
    /// microseconds.
    pub(crate) fn object_delay_us(&self, share: f64) -> f64 {
        let delays: Vec<f64> = self.objects.iter().map(|delay| us(Some(*delay))).collect();
        quantile(&delays, share)
    }

    pub(crate) fn delay_deviation_us(&self) -> f64 {
        us(self.delays.deviation())
    }
}

/// Measures a load in rounds, in each of which every way has its turn.
pub(super) fn measure(trial: &Trial, run: &Run) -> Result<Vec<Vec<Slice>>> {
    let network = Network::create()?;
    network.segment_in_software(trial.load.segmented)?;
    let seconds = run.seconds.unwrap_or(super::MEASURED_S) / ROUNDS as f64;
    let rival = match trial.ways.contains(&Way::MoqRelay) {
        true => Some(moq_relay::start(trial.load, &network, run)?),
        false => None,
    };
    let measured = measure_rounds(trial, &network, rival.as_ref(), seconds, run);
    if let Some(rival) = rival {
        rival.stop()?;
    }
    measured
}

fn measure_rounds(
    trial: &Trial,
    network: &Network,
    rival: Option<&Running>,
    seconds: f64,
    run: &Run,
) -> Result<Vec<Vec<Slice>>> {
    network.relay.run(|| {
        rise_to_realtime().context("cannot have real-time priority")?;
        stay_on_cpu(0)?;
        let mut stage = Stage::set_up(network, trial.load, rival)?;
        let round = |number: usize| {
            if run.stop.requested() {
                bail!("stopped");
            }
            stage.round(&trial.ways, number, seconds)
        };
        let mut slices = (0..ROUNDS).map(round).collect::<Result<Vec<_>>>()?;
        stage.subtract_arrival(&trial.ways, &mut slices);
        Ok(slices)
    })?
}

fn stay_on_cpu(cpu: usize) -> Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &one).context("cannot pin the thread to one CPU")
}

/// Returns the CPU of relays in user space: another one than that on which packets arrive, if there is
/// one.
fn cpu_of_relay() -> usize {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    usize::from(cpus > 1)
}

/// The publisher, all relays, and what measures them.
struct Stage<'a> {
    network: &'a Network,
    load: Load,
    rival: Option<&'a Running>,
    publisher: Publisher,
    kernel: Relay,
    rewrite: RewriteRelay,
    probe: DelayProbe,
    streams: StreamProbe,
    syscalls: SyscallCounter,
    peers: Namespace,
    /// The publisher's device and that at the far end.
    peer_devices: [u32; 2],
    wan: u32,
    lan: u32,
    /// CPU times of the arrival of objects alone, in each round: as trains and packet by packet.
    arrivals: [Vec<f64>; 2],
}

/// The fate of packets that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Relayed(Way),
    /// They are dropped at once.
    Dropped,
}

impl<'a> Stage<'a> {
    fn set_up(network: &'a Network, load: Load, rival: Option<&'a Running>) -> Result<Self> {
        let [wan, lan] = ["wan", "lan"].map(if_nametoindex);
        let (wan, lan) = (wan?, lan?);
        let indexes = || ["publisher", "far"].map(if_nametoindex);
        let [publisher, far] = network.peers.run(indexes)?;
        let mut kernel = Relay::load(DEFAULT_DATAGRAM as u16)?;
        relays::configure(&mut kernel, load.subscribers)?;
        let mut rewrite = RewriteRelay::load(PORT, lan)?;
        let client = |subscriber: usize| RewriteClient {
            local: SocketAddrV4::new(RELAY[1], PORT),
            remote: relays::remote(subscriber),
            alias: subscriber as u32,
        };
        let clients: Vec<_> = (0..load.subscribers).map(client).collect();
        rewrite.set_clients(&relays::route()?, &clients)?;
        Ok(Stage {
            network,
            load,
            rival,
            publisher: Publisher::open(network)?,
            kernel,
            rewrite,
            probe: DelayProbe::load()?,
            streams: StreamProbe::load(moq_relay::PAUSE, moq_relay::LEAST_BYTES)?,
            syscalls: SyscallCounter::load()?,
            peers: network.peers.clone(),
            peer_devices: [publisher?, far?],
            wan,
            lan,
            arrivals: Default::default(),
        })
    }

    /// Measures all ways once. Each round begins with another one.
    fn round(&mut self, ways: &[Way], number: usize, seconds: f64) -> Result<Vec<Slice>> {
        for singly in [false, true] {
            let mut ours = ways.iter().filter(|way| **way != Way::MoqRelay);
            if let Some(way) = ours.find(|way| self.arrives_singly(**way) == singly) {
                self.place(Fate::Dropped)?;
                self.join_packets(!singly)?;
                let objects = self.objects(*way, seconds);
                let cpu = publish(&mut self.publisher, self.load, objects);
                self.remove();
                self.arrivals[usize::from(singly)].push(cpu?);
            }
        }
        let mut slices: Vec<Option<Slice>> = ways.iter().map(|_| None).collect();
        for turn in 0..ways.len() {
            let index = (turn + number) % ways.len();
            let way = ways[index];
            self.place(Fate::Relayed(way))?;
            self.join_packets(!self.arrives_singly(way))?;
            let objects = self.objects(way, seconds);
            let slice = match way {
                Way::MoqRelay => self.slice_of_moq_relay(objects),
                _ => self.slice(way, objects),
            };
            self.remove();
            slices[index] = Some(slice?);
        }
        slices
            .into_iter()
            .map(|slice| slice.context("every way has its turn"))
            .collect()
    }

    /// Returns the number of objects that are published in a time.
    fn objects(&self, way: Way, seconds: f64) -> usize {
        (seconds / self.load.interval(way).as_secs_f64()).ceil() as usize
    }

    /// Puts a relay in place, and what measures it: the probe is the last program at the egress.
    fn place(&mut self, fate: Fate) -> Result<()> {
        match fate {
            Fate::Relayed(Way::Kernel) => self.kernel.attach(self.wan)?,
            Fate::Relayed(Way::Rewrite) => {
                self.rewrite.attach_egress()?;
                self.rewrite.attach_ingress(self.wan)?;
            }
            Fate::Relayed(Way::Gso | Way::Sendmmsg) => {}
            Fate::Relayed(Way::MoqRelay) => return self.measure_streams(),
            Fate::Dropped => self.probe.discard(self.wan)?,
        }
        // Trains are segmented behind the egress, so they have to pass it, and end at the far end.
        let is_segmented = self.load.segmented;
        let ([publisher, far], probe) = (self.peer_devices, &mut self.probe);
        self.peers.run(|| -> Result<()> {
            probe.attach_arrival(publisher)?;
            if is_segmented {
                probe.discard(far)?;
            }
            Ok(())
        })??;
        self.probe.end_packets(!is_segmented);
        self.probe.attach_departure(self.lan)?;
        Ok(())
    }

    /// Measures the packets of a relay that encrypts, which do not end at its device.
    fn measure_streams(&mut self) -> Result<()> {
        let ([publisher, _], streams) = (self.peer_devices, &mut self.streams);
        self.peers.run(|| streams.attach_arrival(publisher))??;
        Ok(self.streams.attach_departure(self.lan)?)
    }

    /// Has the packets of an object arrive as a train, or one by one, because the publisher's device splits
    /// them.
    fn join_packets(&self, joined: bool) -> Result<()> {
        let setting = ("tx-udp-segmentation", joined);
        Ok(self.peers.offloads("publisher", &[setting])?)
    }

    fn remove(&mut self) {
        self.kernel.detach(self.wan);
        self.rewrite.detach();
        self.probe.detach();
        self.streams.detach();
    }

    fn arrives_singly(&self, way: Way) -> bool {
        way.takes_single_packets() && self.load.packets > 1
    }

    /// Subtracts the CPU time of the arrival of objects alone.
    fn subtract_arrival(&self, ways: &[Way], rounds: &mut [Vec<Slice>]) {
        let arrivals = self.arrivals.clone().map(median);
        for slices in rounds {
            let slices = ways.iter().zip(slices);
            // The process of moq-relay alone was measured.
            for (way, slice) in slices.filter(|(way, _)| **way != Way::MoqRelay) {
                slice.cpu -= arrivals[usize::from(self.arrives_singly(*way))];
            }
        }
    }

    /// Has objects relayed.
    fn slice(&mut self, way: Way, objects: usize) -> Result<Slice> {
        let Stage {
            load,
            publisher,
            syscalls,
            ..
        } = self;
        self.probe.take(Subscribers::Others);
        let before = total(syscalls)?;
        let cpu = thread::scope(|scope| -> Result<f64> {
            let (is_ready, ready) = mpsc::channel();
            let relay = way
                .is_in_user_space()
                .then(|| scope.spawn(|| relay(way, *load, syscalls, is_ready)));
            if relay.is_some() {
                // If it fails, it says so at the end.
                let _ = ready.recv();
            }
            let published = publish(publisher, *load, objects);
            let Some(relay) = relay else {
                return published;
            };
            publisher.publish(&[])?;
            let relayed = relay.join();
            let relayed = relayed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok(published? + relayed?)
        })?;
        let delays = self.probe.take(Subscribers::Others);
        Ok(Slice {
            expected: (load.deliveries() * objects) as u64,
            delivered: delays.packets(),
            delays,
            objects: Vec::new(),
            program: None,
            cpu,
            syscalls: total(&self.syscalls)? - before,
        })
    }

    fn slice_of_moq_relay(&mut self, objects: usize) -> Result<Slice> {
        let relay = self.rival.context(HOW_TO_INSTALL)?;
        let probes = (&mut self.streams, &self.syscalls);
        moq_relay::slice(self.network, relay, self.load, objects, probes)
    }
}

fn total(syscalls: &SyscallCounter) -> Result<u64> {
    let counts = syscalls.counts()?;
    Ok(counts.into_iter().map(|(_, count)| count).sum())
}

/// Publishes objects at their pace. Returns the CPU time of sending them, in seconds, which includes all
/// that their arrival causes in the kernel.
fn publish(publisher: &mut Publisher, load: Load, objects: usize) -> Result<f64> {
    publisher.send_trains(load.packets > 1)?;
    let mut due = Instant::now();
    let mut cpu = Duration::ZERO;
    for _ in 0..objects {
        let object = publisher.next_object(load.packets);
        due += load.interval(Way::Kernel);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let before = cpu_time();
        publisher.publish(&object)?;
        cpu += cpu_time() - before;
    }
    Ok(cpu.as_secs_f64())
}

/// Relays in user space until an empty datagram comes. Returns the CPU time, in seconds.
fn relay(
    way: Way,
    load: Load,
    syscalls: &SyscallCounter,
    is_ready: mpsc::Sender<()>,
) -> Result<f64> {
    rise_to_realtime().context("cannot have real-time priority")?;
    stay_on_cpu(cpu_of_relay())?;
    let mut relay = UserSpaceRelay::open(load.subscribers)?;
    relay.send_trains(way == Way::Gso && load.packets > 1)?;
    let thread = gettid().as_raw() as u32;
    // Nobody waits any more if the run has failed.
    let _ = is_ready.send(());
    let before = cpu_time();
    syscalls.add(thread)?;
    while relay.receive()? > 0 {
        relay.send()?;
    }
    syscalls.remove(thread)?;
    Ok((cpu_time() - before).as_secs_f64())
}
