use crate::skeleton::bench_delay::{BenchDelaySkel, BenchDelaySkelBuilder, types};
use hawser_kernel::link::{AttachError, Link};
use hawser_kernel::load::LoadError;
use hawser_kernel::program::{fd, open};
use hawser_kernel::shared::Shared;
use libbpf_rs::skel::OpenSkel;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const STEPS: usize = types::delay_limit::DELAY_STEPS.0 as usize;
const INTERVALS: usize = types::delay_limit::DELAY_INTERVALS.0 as usize;

/// Measures how long packets of media take through a relay, of any kind, by time stamps at the device
/// that sends them to it and at the one by which they leave. The time that they wait for the relay counts.
///
/// Packets are matched by frame, layer and index, so all packets have to be of one track.
pub struct DelayProbe {
    programs: BenchDelaySkel<'static>,
    delays: Shared<types::delays>,
    links: Vec<Link>,
}

/// The subscribers whose packets are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subscribers {
    /// All but the one that is counted apart.
    Others,
    /// The one that is counted apart.
    Apart,
}

/// Delays of packets, counted in intervals that differ by less than 1.6 %.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Delays(Vec<u64>);

impl DelayProbe {
    /// Loads the programs.
    pub fn load() -> Result<Self, LoadError> {
        let failed = LoadError::of("bench_delay");
        let open = open::<BenchDelaySkelBuilder>().map_err(&failed)?;
        let programs = open.load().map_err(&failed)?;
        let delays = Shared::map(&programs.maps.delays)?;
        Ok(DelayProbe {
            programs,
            delays,
            links: Vec::new(),
        })
    }

    /// Takes the egress of a device as where packets are sent to the relay.
    pub fn attach_arrival(&mut self, device: u32) -> Result<(), AttachError> {
        let program = fd(&self.programs.progs.arrive);
        self.links.push(Link::tcx_egress(program, device)?);
        Ok(())
    }

    /// Drops everything at the ingress of a device: at the other end of the cable, or in place of a relay.
    pub fn discard(&mut self, device: u32) -> Result<(), AttachError> {
        let program = fd(&self.programs.progs.discard);
        self.links.push(Link::tcx_ingress(program, device)?);
        Ok(())
    }

    /// Takes the egress of a device as where packets leave the relay, after programs that are attached already.
    pub fn attach_departure(&mut self, device: u32) -> Result<(), AttachError> {
        let program = fd(&self.programs.progs.depart);
        self.links.push(Link::tcx_egress(program, device)?);
        Ok(())
    }

    /// Ends counting.
    pub fn detach(&mut self) {
        self.links.drain(..).for_each(Link::end);
    }

    /// Drops packets where they leave, once they are counted, or sends them.
    pub fn end_packets(&mut self, ends: bool) {
        self.state().ends = ends.into();
    }

    /// Counts the packets to an address apart.
    pub fn set_apart(&mut self, address: IpAddr) {
        let mapped = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let octets = mapped.octets();
        let (high, low) = octets.split_at(8);
        let words = [high, low].map(|word| word.try_into().expect("8 octets"));
        self.state().apart = words.map(u64::from_ne_bytes);
    }

    /// Returns the number of packets that left without having arrived.
    pub fn unmatched(&mut self) -> u64 {
        self.state().unmatched
    }

    fn state(&mut self) -> &mut types::bss {
        let state = self.programs.maps.bss_data.as_deref_mut();
        state.expect("the programs have a state")
    }

    /// Returns the delays since the last call.
    pub fn take(&self, of: Subscribers) -> Delays {
        let row = self.delays.row(of as usize).cast();
        // SAFETY: the row is in the mapping, which lives as long as the probe.
        unsafe { Delays::take(row) }
    }
}

/// The counts of one class of subscribers.
pub(super) type Counts = [AtomicU64; INTERVALS];

impl Delays {
    /// Takes the counts that a program has made.
    ///
    /// # Safety
    /// `row` is in a mapping that lives as long as the call, and consists of aligned words, which others also
    /// change by atomic operations only.
    pub(super) unsafe fn take(row: *const Counts) -> Self {
        // SAFETY: as the caller promises.
        let counts = unsafe { (*row).iter() };
        Delays(counts.map(|count| count.swap(0, Relaxed)).collect())
    }

    /// Adds further delays.
    pub fn add(&mut self, other: &Delays) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        for (count, further) in self.0.iter_mut().zip(&other.0) {
            *count += further;
        }
    }

    /// Returns the number of packets.
    pub fn packets(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the delay that the given share of packets does not exceed; `None` without packets.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let rank = (self.packets() as f64 * share).ceil().max(1.0) as u64;
        let mut below = 0;
        let found = self.0.iter().position(|count| {
            below += count;
            below >= rank
        });
        found.map(|interval| Duration::from_nanos(middle_ns(interval)))
    }

    /// Returns the standard deviation; `None` without packets.
    pub fn deviation(&self) -> Option<Duration> {
        let packets = self.packets();
        if packets == 0 {
            return None;
        }
        let sum = |of: &dyn Fn(f64) -> f64| -> f64 {
            let terms = self.0.iter().enumerate();
            terms
                .map(|(interval, count)| *count as f64 * of(middle_ns(interval) as f64))
                .sum()
        };
        let mean = sum(&|ns| ns) / packets as f64;
        let variance = sum(&|ns| (ns - mean) * (ns - mean)) / packets as f64;
        Some(Duration::from_nanos(variance.sqrt() as u64))
    }
}

/// Returns the middle of an interval of delays.
fn middle_ns(interval: usize) -> u64 {
    let shift = (interval / STEPS).saturating_sub(1);
    let lowest = ((interval - shift * STEPS) as u64) << shift;
    lowest + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the program does.
    fn interval_of(ns: u64) -> usize {
        let mut shift = 0;
        while ns >> shift >= 2 * STEPS as u64 {
            shift += 1;
        }
        shift * STEPS + (ns >> shift) as usize
    }

    #[test]
    fn the_middle_of_an_interval_is_near_all_of_its_delays() {
        for ns in (0..40).map(|power| 3u64.pow(power / 2) + u64::from(power)) {
            let middle = middle_ns(interval_of(ns));
            assert!(middle.abs_diff(ns) <= ns / 64, "{middle} for {ns}");
        }
    }

    #[test]
    fn percentiles_and_deviation_are_those_of_the_packets() {
        let mut delays = Delays::default();
        assert_eq!((delays.percentile(0.5), delays.deviation()), (None, None));
        let counts = |interval, count| {
            let mut counts = vec![0; interval];
            counts.push(count);
            Delays(counts)
        };
        delays.add(&counts(10, 98));
        delays.add(&counts(50, 2));
        assert_eq!(delays.packets(), 100);
        let [median, p99] = [0.5, 0.99].map(|share| delays.percentile(share).unwrap());
        assert_eq!((median.as_nanos(), p99.as_nanos()), (10, 50));
        assert_eq!(delays.deviation().unwrap().as_nanos(), 5);
    }
}
