//! Costs per packet of the eBPF programs, each in the kernel's own test run, of network coding, of
//! the tunnel, and of the emulator; time and bytes per frame of the codecs.
//!
//! A figure is the median of many short runs. Alternatives that are compared are run alternately. A
//! ratio is the median of the ratios of consecutive runs, so that changes of the machine's speed
//! affect both sides. Parameters named `limit_*` are the targets of figures.

mod codec;
mod coding;
mod dedup;
mod edge;
mod network;
mod relay;
mod replicate;
mod tunnel;
mod tunnel_tcp;

use crate::self_test::self_test;
use crate::summary::{Case, Provenance, Summary};
use anyhow::{Context, Result};
use hawser_wire::ip;
use network::Network;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::path::Path;
use std::time::Duration;

/// Duration of each part of the emulator's self-test in seconds.
const EMULATOR_SECONDS: f64 = 5.0;

/// Size of the measured packets: the largest that fits a path of 1,500 bytes over IPv4 and IPv6.
const INNER_BYTES: usize = 1400;

/// A group of measurements that can be run separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Deduplication of copies.
    Dedup,
    /// Replication over paths.
    Replicate,
    /// All programs of an edge that act on few packets: signals and the watcher.
    Edge,
    /// The relay, against relays in user space.
    Relay,
    /// Network coding.
    Coding,
    /// Encoding and decoding of frames.
    Codec,
    /// Throughput of the tunnel.
    Tunnel,
    /// TCP inside the tunnel over uplinks with different delays.
    TunnelTcp,
    /// Rates and delays of the emulator.
    Emulator,
}

impl Part {
    /// All parts.
    pub const ALL: [Part; 9] = [
        Part::Dedup,
        Part::Replicate,
        Part::Edge,
        Part::Relay,
        Part::Coding,
        Part::Codec,
        Part::Tunnel,
        Part::TunnelTcp,
        Part::Emulator,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Part::Dedup => "dedup",
            Part::Replicate => "replicate",
            Part::Edge => "edge",
            Part::Relay => "relay",
            Part::Coding => "coding",
            Part::Codec => "codec",
            Part::Tunnel => "tunnel",
            Part::TunnelTcp => "tunnel-tcp",
            Part::Emulator => "emulator",
        }
    }
}

/// Runs parts of the benchmark and writes `summary.json` to `out`. `hawser` is the program of the
/// tunnel. All parts together take about 17 minutes. The machine should be otherwise idle.
///
/// # Errors
/// Without root, eBPF or network namespaces.
pub fn run(parts: &[Part], hawser: &Path, out: &Path) -> Result<Summary> {
    let mut summary = Summary::new("bench", Provenance::gather(0));
    let network = Network::create(replicate::MAX_PATHS)?;
    for part in parts {
        match part {
            Part::Dedup => network.run(|| on_one_cpu(|| dedup::run(&mut summary)))??,
            Part::Replicate => {
                network.run(|| on_one_cpu(|| replicate::run(&network, &mut summary)))??
            }
            Part::Edge => network.run(|| on_one_cpu(|| edge::run(&mut summary)))??,
            Part::Relay => relay::run(&mut summary).context("cannot measure the relay")?,
            Part::Coding => network.run(|| on_one_cpu(|| coding::run(&mut summary)))??,
            Part::Codec => {
                on_one_cpu(|| codec::run(&mut summary)).context("cannot measure the codecs")?
            }
            Part::Tunnel => {
                tunnel::run(hawser, &mut summary).context("cannot measure the tunnel")?
            }
            Part::TunnelTcp => {
                tunnel_tcp::run(hawser, &mut summary).context("cannot measure TCP in the tunnel")?
            }
            Part::Emulator => {
                emulator(&mut summary).context("cannot run the emulator's self-test")?
            }
        }
    }
    summary.write(out)?;
    Ok(summary)
}

fn emulator(summary: &mut Summary) -> Result<()> {
    let emulated = self_test(EMULATOR_SECONDS)?;
    summary.cases.extend(emulated.cases);
    for unmet in emulated.unmet {
        summary.invalidate(unmet);
    }
    Ok(())
}

/// Pins the calling thread to its current CPU, permanently. A thread that migrates between CPUs
/// loses its cache and its softirqs.
fn on_one_cpu<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut one = CpuSet::new();
    one.set(nix::sched::sched_getcpu()?)?;
    sched_setaffinity(Pid::from_raw(0), &one).context("cannot pin the thread to one CPU")?;
    work()
}

/// Returns a frame with a UDP packet of [`INNER_BYTES`] that arrives at an ingress edge. In a test
/// run it arrives on the loopback device, whose MAC address is zero.
fn transit_frame() -> Vec<u8> {
    let payload = [0x5a; INNER_BYTES - 28];
    let source = "192.0.2.1:1000".parse().expect("an address");
    let destination = "203.0.113.9:2000".parse().expect("an address");
    let mut packet = ip::udp_packet(source, destination, 0, &payload);
    packet[4..6].copy_from_slice(&[0x12, 0x34]); // a transparent flow replicates only packets with an ID
    packet[10..12].fill(0);
    let checksum = ip::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    [
        &[0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0x08, 0x00],
        &packet[..],
    ]
    .concat()
}

/// Creates a case with the parameters that all cases have, and with targets.
fn case(name: &str, limits: &[(&str, f64)]) -> Case {
    let mut case = Case::new(name);
    case.set_param("inner_bytes", INNER_BYTES);
    for (metric, limit) in limits {
        case.params
            .insert(format!("limit_{metric}"), (*limit).into());
    }
    case
}

fn nanoseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

/// Returns the middle one of the figures.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the median of the ratios of consecutive runs.
pub(crate) fn median_ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    median(
        ours.iter()
            .zip(theirs)
            .map(|(ours, theirs)| ours / theirs)
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![9.0, 1.0, 5.0]), 5.0);
        assert!(median(Vec::new()).is_nan());
        assert_eq!(median_ratio(&[2.0, 30.0, 4.0], &[1.0, 10.0, 4.0]), 2.0);
    }

    #[test]
    fn the_packet_fits_every_path() {
        let frame = transit_frame();
        assert_eq!(frame.len(), 14 + INNER_BYTES);
        assert_eq!(ip::checksum(&frame[14..34]), 0);
        const { assert!(INNER_BYTES + hawser_shim::OVERHEAD_V6 <= 1500) };
    }
}
