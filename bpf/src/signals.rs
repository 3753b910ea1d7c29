use crate::program::fd;
use crate::receiver::key_words;
use crate::records::Records;
use crate::skeleton::signal::{SignalSkel, SignalSkelBuilder, types};
use crate::table::{Table, TableError, plain, share_tables};
use crate::{AttachError, Link, LoadError, RunError, TestRun};
use hawser_units::{FlowId, Instant, PolicyCode};
use hawser_wire::Key;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapHandle, Object};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

plain!(types::signal_settings, types::signal_event);

/// Which in-band signals are obeyed.
#[derive(Debug, Clone)]
pub struct SignalOptions {
    /// The interfaces that they come in by.
    pub interfaces: Vec<u32>,
    /// This node's addresses that they are sent to.
    pub addresses: Vec<IpAddr>,
    /// The UDP port that they are sent to. Whatever else comes to it at these addresses is dropped.
    pub port: u16,
    /// What they are tagged with.
    pub key: Key,
}

/// What became of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SignalOutcome {
    /// It is in force.
    Accepted,
    /// Its length, version, kind or a field is not that of a signal. Counted, never recorded.
    Malformed,
    /// It is tagged with another key. Counted, never recorded.
    Tag,
    /// The flow is not configured here.
    Flow,
    /// It was sent more than two seconds ago, or is to be sent in more than two seconds.
    Age,
    /// The policy in force is as new or newer: it was sent before, or came by another way as well.
    Epoch,
    /// None of the code's paths is configured here, or the network has changed the code in the header.
    Code,
}

/// A signal that a holder of the key has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalEvent {
    /// When it came, by the kernel's monotonic clock.
    pub at: Instant,
    /// The flow; none when there is no such number.
    pub flow: Option<FlowId>,
    /// The epoch of its policy.
    pub epoch: u32,
    /// The code of its policy.
    pub code: PolicyCode,
    /// What became of it.
    pub outcome: SignalOutcome,
}

/// In-band signals cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum SignalsError {
    /// A table was refused.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The program was not attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

impl SignalOutcome {
    /// Every outcome, in the order of the program's table.
    pub const ALL: [SignalOutcome; 7] = [
        Self::Accepted,
        Self::Malformed,
        Self::Tag,
        Self::Flow,
        Self::Age,
        Self::Epoch,
        Self::Code,
    ];

    /// Its name in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Malformed => "malformed",
            Self::Tag => "tag",
            Self::Flow => "flow",
            Self::Age => "age",
            Self::Epoch => "epoch",
            Self::Code => "code",
        }
    }
}

/// The reader of what the kernel tells of signals.
///
/// Every signal that was obeyed is recorded. Refused ones are recorded ten times a second at most, and those whose tag is
/// wrong never; [`Sender::signal_counts`](crate::Sender::signal_counts) counts them all.
#[derive(Debug)]
pub struct SignalEvents {
    records: Records<types::signal_event>,
    clock: Clock,
}

impl SignalEvents {
    /// What happened since the last call. Its descriptor is readable when there is something.
    ///
    /// Tells the program the time, too, should the system's leap seconds have been corrected.
    pub fn drain(&mut self) -> Result<Vec<SignalEvent>, TableError> {
        self.clock.follow()?;
        Ok(self
            .records
            .drain()
            .filter_map(|record| parse(&record))
            .collect())
    }
}

impl AsFd for SignalEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.records.as_fd()
    }
}

fn parse(record: &types::signal_event) -> Option<SignalEvent> {
    Some(SignalEvent {
        at: Instant::from_nanos(record.at_ns),
        flow: FlowId::try_from(record.flow).ok(),
        epoch: record.epoch,
        code: PolicyCode(record.code),
        outcome: *SignalOutcome::ALL.get(usize::from(record.outcome))?,
    })
}

/// The program, and where it is attached.
pub(crate) struct Signals {
    skeleton: SignalSkel<'static>,
    links: BTreeMap<u32, Link>,
    addresses: BTreeSet<[u8; 16]>,
}

impl Signals {
    /// Loads the program over the tables of a sender.
    pub(crate) fn load(sender: &Object) -> Result<Self, LoadError> {
        // The skeleton borrows its object; a process loads one, so the few bytes may as well stay until it ends.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let failed = LoadError::of("signal");
        let mut open = SignalSkelBuilder::default()
            .open(storage)
            .map_err(&failed)?;
        share_tables(open.open_object_mut(), sender).map_err(&failed)?;
        let skeleton = open.load().map_err(&failed)?;
        Ok(Signals {
            skeleton,
            links: BTreeMap::new(),
            addresses: BTreeSet::new(),
        })
    }

    pub(crate) fn enable(&mut self, options: &SignalOptions) -> Result<(), SignalsError> {
        let [k0, k1] = key_words(&options.key);
        let settings = types::signal_settings {
            key: types::siphash_key { k0, k1 },
            port_be: options.port.to_be(),
            ..Default::default()
        };
        self.clock()?.follow()?;
        self.skeleton.maps.signal_settings.set(&0u32, &settings)?;
        let addresses: BTreeSet<_> = options
            .addresses
            .iter()
            .map(|address| mapped(*address))
            .collect();
        for gone in self.addresses.difference(&addresses) {
            self.skeleton.maps.signal_addresses.remove(gone)?;
        }
        for address in &addresses {
            self.skeleton.maps.signal_addresses.set(address, &1u8)?;
        }
        self.addresses = addresses;
        self.links
            .retain(|ifindex, _| options.interfaces.contains(ifindex));
        for ifindex in &options.interfaces {
            if !self.links.contains_key(ifindex) {
                let link = Link::tcx_ingress(fd(&self.skeleton.progs.receive_signal), *ifindex)?;
                self.links.insert(*ifindex, link);
            }
        }
        Ok(())
    }

    pub(crate) fn disable(&mut self) {
        self.links.clear();
    }

    pub(crate) fn events(&self) -> Result<SignalEvents, TableError> {
        Ok(SignalEvents {
            records: Records::map(&self.skeleton.maps.signal_events)?,
            clock: self.clock()?,
        })
    }

    pub(crate) fn counts(&self) -> Result<Vec<(SignalOutcome, u64)>, TableError> {
        let count = |outcome: SignalOutcome| {
            Ok((
                outcome,
                self.skeleton
                    .maps
                    .signal_outcomes
                    .per_cpu::<u64>(outcome as u32)?
                    .iter()
                    .sum(),
            ))
        };
        SignalOutcome::ALL.into_iter().map(count).collect()
    }

    pub(crate) fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        crate::program::test_run(&self.skeleton.progs.receive_signal, frame, repeat)
    }

    fn clock(&self) -> Result<Clock, TableError> {
        let table = &self.skeleton.maps.tai_offset_ns;
        let failed = |source| TableError {
            table: table.name().to_string_lossy().into_owned(),
            source,
        };
        Ok(Clock {
            offset: MapHandle::try_from(table).map_err(failed)?,
            known_ns: None,
        })
    }
}

/// How far International Atomic Time, which programs can read, is ahead of the time of day.
#[derive(Debug)]
struct Clock {
    offset: MapHandle,
    known_ns: Option<u64>,
}

impl Clock {
    fn follow(&mut self) -> Result<(), TableError> {
        let now_ns = tai_offset_ns();
        if self.known_ns != Some(now_ns) {
            self.offset.set(&0u32, &now_ns)?;
            self.known_ns = Some(now_ns);
        }
        Ok(())
    }
}

/// A whole number of seconds: 37 since 2017 where a time service knows of leap seconds, 0 elsewhere.
fn tai_offset_ns() -> u64 {
    let [tai, utc] = [libc::CLOCK_TAI, libc::CLOCK_REALTIME].map(|clock| {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointer is to a local, and both clocks exist in every Linux that has these programs.
        unsafe { libc::clock_gettime(clock, &raw mut now) };
        now.tv_sec * 1_000_000_000 + now.tv_nsec
    });
    let seconds = (tai - utc + 500_000_000).div_euclid(1_000_000_000);
    u64::try_from(seconds).unwrap_or(0) * 1_000_000_000
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_has_an_outcome() {
        assert_eq!(
            SignalOutcome::ALL.len() as u32,
            types::signal_outcome::SIGNAL_OUTCOMES.0
        );
        for (index, outcome) in SignalOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
        assert_eq!(
            SignalOutcome::Code as u32,
            types::signal_outcome::SIGNAL_CODE.0
        );
    }
}
