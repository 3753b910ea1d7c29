use crate::skeleton::dedup::types::{self, verdict as Code};
use hawser_dedup::Verdict;
use hawser_kernel::shared::Shared;
use hawser_kernel::table::TableError;
use hawser_units::{FlowId, Instant, PathId, PathSet};
use libbpf_rs::MapCore;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of records in a ring.
const RING: usize = (size_of::<types::arrivals>() - offset_of!(types::arrivals, records))
    / size_of::<types::arrival>();

/// The arrival of one copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Arrival time, by the kernel's monotonic clock.
    pub at: Instant,
    /// The receiver's number of the flow.
    pub flow: FlowId,
    /// The path that the copy took.
    pub path: PathId,
    /// The paths that this packet was sent over; empty for a transparent flow, whose copies do not
    /// carry them.
    pub paths: PathSet,
    /// The sequence number; for a transparent flow the packet's fingerprint.
    pub sequence: u64,
    /// Low byte of the epoch of the sender's policy.
    pub epoch: u8,
    /// The verdict of deduplication.
    pub verdict: Verdict,
    /// The low 32 bits of the send time by the sender's clock, microseconds.
    pub sent_micros: u32,
    /// Size of the inner packet, bytes.
    pub inner_bytes: u16,
}

/// The reader of the kernel's arrival records: one ring per CPU in shared memory.
///
/// A ring holds 65,536 records. The kernel never waits for the reader. Records that find the ring
/// full are lost to the reader and counted in [`Arrivals::overflowed`]; the flow's counters still
/// include them.
#[derive(Debug)]
pub struct Arrivals {
    rings: Shared<types::arrivals>,
}

impl Arrivals {
    pub(crate) fn map(table: &impl MapCore) -> Result<Self, TableError> {
        Ok(Arrivals {
            rings: Shared::map(table)?,
        })
    }

    /// Appends all arrivals since the last call to `into`, in order of arrival.
    pub fn drain(&mut self, into: &mut Vec<Arrival>) {
        let start = into.len();
        for index in 0..self.rings.len() {
            self.drain_ring(index, into);
        }
        into[start..].sort_by_key(|arrival| arrival.at);
    }

    /// Returns the number of records that ever found their ring full.
    pub fn overflowed(&self) -> u64 {
        let of = |index| {
            self.counter(index, offset_of!(types::arrivals, overflowed))
                .load(Ordering::Relaxed)
        };
        (0..self.rings.len()).map(of).sum()
    }

    fn drain_ring(&mut self, index: usize, into: &mut Vec<Arrival>) {
        let written = self
            .counter(index, offset_of!(types::arrivals, written))
            .load(Ordering::Acquire);
        let read_counter = self.counter(index, offset_of!(types::arrivals, read));
        let mut read = read_counter.load(Ordering::Relaxed);
        let ring = self.rings.row(index);
        while read < written {
            // SAFETY: the index is within the array, and the kernel does not touch a written record
            // until we advance `read` past it.
            let record = unsafe {
                let records = (&raw const (*ring).records).cast::<types::arrival>();
                records.add(read as usize % RING).read_volatile()
            };
            into.extend(parse(&record));
            read += 1;
        }
        read_counter.store(read, Ordering::Release);
    }

    fn counter(&self, index: usize, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned counter within the mapping, which both sides access atomically.
        unsafe { AtomicU64::from_ptr(self.rings.row(index).byte_add(offset).cast()) }
    }
}

fn parse(record: &types::arrival) -> Option<Arrival> {
    Some(Arrival {
        at: Instant::from_nanos(record.at_ns),
        flow: FlowId::try_from(record.flow).ok()?,
        path: PathId::try_from(record.path).ok()?,
        paths: PathSet::from_bits(record.paths),
        sequence: record.sequence,
        epoch: record.epoch,
        verdict: verdict(record.verdict)?,
        sent_micros: record.sent_us,
        inner_bytes: record.inner_bytes,
    })
}

/// Returns the verdict that a program's number stands for.
pub(crate) fn verdict(code: u8) -> Option<Verdict> {
    match Code(code.into()) {
        Code::VERDICT_FIRST => Some(Verdict::First),
        Code::VERDICT_DUPLICATE => Some(Verdict::Duplicate),
        Code::VERDICT_LATE => Some(Verdict::Late),
        Code::VERDICT_RESET => Some(Verdict::Reset),
        Code::VERDICT_CONTENDED => Some(Verdict::Contended),
        Code::VERDICT_OUTDATED => Some(Verdict::Outdated),
        Code::VERDICT_EXPIRED => Some(Verdict::Expired),
        _ => None,
    }
}
