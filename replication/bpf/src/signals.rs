use crate::skeleton::signal::types::signal_outcome as Code;
use crate::skeleton::signal::{SignalSkel, SignalSkelBuilder, types};
use crate::{AttachError, Link, LoadError, RunError, TestRun};
use hawser_kernel::address::mapped;
use hawser_kernel::keys::key_words;
use hawser_kernel::plain;
use hawser_kernel::program::{fd, open, test_run};
use hawser_kernel::records::Records;
use hawser_kernel::table::{Table, TableError, share_tables};
use hawser_units::{FlowId, Instant, PolicyCode};
use hawser_wire::Key;
use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{MapCore, MapHandle, Object};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

plain!(types::signal_settings, types::signal_event);

/// The in-band signals to accept.
#[derive(Debug, Clone)]
pub struct SignalOptions {
    /// The interfaces that signals arrive on.
    pub interfaces: Vec<u32>,
    /// This node's addresses that signals are sent to.
    pub addresses: Vec<IpAddr>,
    /// The UDP port that signals are sent to. All other packets to this port at these addresses are
    /// dropped.
    pub port: u16,
    /// The key of the signals' tags.
    pub key: Key,
}

/// The outcome of a signal. Its number is the row of the program's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum SignalOutcome {
    /// The policy was put into force.
    Accepted = Code::SIGNAL_ACCEPTED.0,
    /// The length, version, kind or a field is invalid. Counted, never recorded.
    Malformed = Code::SIGNAL_MALFORMED.0,
    /// The tag was made with another key. Counted, never recorded.
    Tag = Code::SIGNAL_TAG.0,
    /// The flow is not configured here.
    Flow = Code::SIGNAL_FLOW.0,
    /// The send time is more than two seconds in the past or in the future.
    Age = Code::SIGNAL_AGE.0,
    /// The policy in force has the same or a greater epoch: the signal is old, or is a copy that
    /// took another path.
    Epoch = Code::SIGNAL_EPOCH.0,
    /// None of the code's paths is configured here, or the network has changed the code in the
    /// header.
    Code = Code::SIGNAL_CODE.0,
}

/// A signal with a valid tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalEvent {
    /// Arrival time, by the kernel's monotonic clock.
    pub at: Instant,
    /// The flow; `None` if the signal's flow number is out of range.
    pub flow: Option<FlowId>,
    /// The epoch of the signal's policy.
    pub epoch: u32,
    /// The code of the signal's policy.
    pub code: PolicyCode,
    /// The outcome.
    pub outcome: SignalOutcome,
}

/// The reason that in-band signals cannot be processed.
#[derive(Debug, thiserror::Error)]
pub enum SignalsError {
    /// A table could not be read or written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The program was not attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

impl SignalOutcome {
    /// Every outcome, in the order of the program's table.
    pub const ALL: [SignalOutcome; Code::SIGNAL_OUTCOMES.0 as usize] = [
        Self::Accepted,
        Self::Malformed,
        Self::Tag,
        Self::Flow,
        Self::Age,
        Self::Epoch,
        Self::Code,
    ];

    /// Returns the outcome's name in reports and metrics.
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

/// The reader of the kernel's records of signals.
///
/// Every accepted signal is recorded. Rejected ones are recorded at most ten times a second, and
/// never if their tag is wrong; [`Sender::signal_counts`](crate::Sender::signal_counts) counts them
/// all.
#[derive(Debug)]
pub struct SignalEvents {
    records: Records<types::signal_event>,
    clock: Clock,
}

impl SignalEvents {
    /// Returns the events since the last call. The descriptor is readable when there are any.
    ///
    /// Also updates the program's clock offset if the system's leap second count has changed.
    pub fn drain(&mut self) -> Result<Vec<SignalEvent>, TableError> {
        self.clock.update()?;
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

/// The program and its attachments.
pub(crate) struct Signals {
    skeleton: SignalSkel<'static>,
    links: BTreeMap<u32, Link>,
    addresses: BTreeSet<[u8; 16]>,
}

impl Signals {
    /// Loads the program over the tables of a sender.
    pub(crate) fn load(sender: &Object) -> Result<Self, LoadError> {
        let failed = LoadError::of("signal");
        let mut open = open::<SignalSkelBuilder>().map_err(&failed)?;
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
        self.clock()?.update()?;
        self.skeleton.maps.signal_settings.set(&0u32, &settings)?;
        self.set_addresses(&options.addresses)?;
        self.attach(&options.interfaces)?;
        Ok(())
    }

    /// Replaces the addresses that signals are sent to.
    fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), TableError> {
        let addresses: BTreeSet<_> = addresses.iter().map(|address| mapped(*address)).collect();
        for removed in self.addresses.difference(&addresses) {
            self.skeleton.maps.signal_addresses.remove(removed)?;
        }
        for address in &addresses {
            self.skeleton.maps.signal_addresses.set(address, &1u8)?;
        }
        self.addresses = addresses;
        Ok(())
    }

    /// Replaces the interfaces that signals arrive on.
    fn attach(&mut self, interfaces: &[u32]) -> Result<(), AttachError> {
        let (kept, ended) = std::mem::take(&mut self.links)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(ifindex, _)| interfaces.contains(ifindex));
        self.links = kept;
        ended.into_values().for_each(Link::end);
        for ifindex in interfaces {
            if !self.links.contains_key(ifindex) {
                let link = Link::tcx_ingress(fd(&self.skeleton.progs.receive_signal), *ifindex)?;
                self.links.insert(*ifindex, link);
            }
        }
        Ok(())
    }

    pub(crate) fn disable(&mut self) {
        std::mem::take(&mut self.links)
            .into_values()
            .for_each(Link::end);
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
        test_run(&self.skeleton.progs.receive_signal, frame, repeat)
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

/// The offset of International Atomic Time, which programs can read, from the time of day.
#[derive(Debug)]
struct Clock {
    offset: MapHandle,
    known_ns: Option<u64>,
}

impl Clock {
    fn update(&mut self) -> Result<(), TableError> {
        let now_ns = tai_offset_ns();
        if self.known_ns != Some(now_ns) {
            self.offset.set(&0u32, &now_ns)?;
            self.known_ns = Some(now_ns);
        }
        Ok(())
    }
}

/// Returns the offset in nanoseconds, a whole number of seconds: 37 since 2017 where a time service
/// knows the leap seconds, 0 elsewhere.
fn tai_offset_ns() -> u64 {
    let [tai, utc] = [libc::CLOCK_TAI, libc::CLOCK_REALTIME].map(|clock| {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointer is to a local, and both clocks exist in every Linux that has these
        // programs.
        unsafe { libc::clock_gettime(clock, &raw mut now) };
        now.tv_sec * 1_000_000_000 + now.tv_nsec
    });
    let seconds = (tai - utc + 500_000_000).div_euclid(1_000_000_000);
    u64::try_from(seconds).unwrap_or(0) * 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_has_an_outcome() {
        for (index, outcome) in SignalOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
    }
}
