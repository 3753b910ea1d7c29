use hawser_pathset::{JudgedPacket, PathTotals, Tracker};
use hawser_replication_bpf::{Arrival, Arrivals, Verdict};
use hawser_units::{FlowId, Instant, MAX_PATHS, PathId};
use std::time::Duration;

/// Reads the arrival records of a receiver.
pub(crate) struct Observer {
    arrivals: Arrivals,
    tracker: Tracker,
    batch: Vec<Arrival>,
    /// Number of lost records that the tracker knows of.
    overflowed: u64,
}

impl Observer {
    pub(crate) fn new(arrivals: Arrivals, deadline: Duration) -> Self {
        Observer {
            arrivals,
            tracker: Tracker::new(deadline),
            batch: Vec::new(),
            overflowed: 0,
        }
    }

    /// Reads the records up to `now`, by the kernel's monotonic clock, and passes the fate of
    /// packets to `judged`.
    pub(crate) fn observe(&mut self, now: Instant, judged: impl FnMut(&JudgedPacket)) {
        self.batch.clear();
        self.arrivals.drain(&mut self.batch);
        for arrival in &self.batch {
            self.tracker.handle_arrival(&hawser_pathset::Arrival {
                at: arrival.at,
                flow: arrival.flow,
                path: arrival.path,
                paths: arrival.paths,
                sequence: arrival.sequence,
                epoch: arrival.epoch,
                // A late copy was passed on because the window could not classify it. That is not
                // evidence that it was the first.
                first: arrival.verdict.accepts() && arrival.verdict != Verdict::Late,
                sent_micros: arrival.sent_micros,
                bytes: arrival.inner_bytes,
            });
        }
        if self.arrivals.overflowed() > self.overflowed {
            self.overflowed = self.arrivals.overflowed();
            self.tracker.handle_lost_records(now);
        }
        self.tracker.handle_timeout_with(now, judged);
    }

    /// Returns the totals of a flow on a path, or `None` before its first record.
    pub(crate) fn totals(&self, flow: FlowId, path: PathId) -> Option<&PathTotals> {
        Some(self.tracker.flow(flow)?.path(path))
    }

    /// Returns the arrival times of a flow's newest copies, by path index, if any has arrived.
    pub(crate) fn newest(&self, flow: FlowId) -> Option<&[Option<Instant>; MAX_PATHS]> {
        self.tracker.newest(flow)
    }

    /// Returns the number of records that were lost because they were not read in time.
    pub(crate) fn overflowed(&self) -> u64 {
        self.arrivals.overflowed()
    }
}
