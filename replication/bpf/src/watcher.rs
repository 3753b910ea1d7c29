use crate::selector::{Prefix, Rule, select};
use crate::skeleton::watch::{WatchSkel, WatchSkelBuilder, types};
use crate::{AttachError, Link, LoadError, RunError, TestRun};
use hawser_kernel::plain;
use hawser_kernel::program::{fd, open, test_run};
use hawser_kernel::records::Records;
use hawser_kernel::table::{Table, TableError};
use hawser_units::{FlowId, Instant};
use libbpf_rs::skel::OpenSkel;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};

plain!(
    types::watch_flow,
    types::watch_latest,
    types::watch_stats,
    types::request
);

/// A packet from the viewer that carries a request or ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Arrival time, by the kernel's monotonic clock.
    pub at: Instant,
    /// The flow that the packet was selected for.
    pub flow: FlowId,
    /// Bytes after the TCP or UDP header; of the first segment if the kernel has merged several.
    pub bytes: u16,
    /// The TCP sequence number; 0 for UDP.
    pub sequence: u32,
    /// The TCP flags; 0 for UDP. A packet with [`Request::FIN`] or [`Request::RST`] is recorded
    /// regardless of its size.
    pub flags: u8,
}

impl Request {
    /// TCP FIN: the viewer closes its direction of the connection.
    pub const FIN: u8 = 0x01;

    /// TCP RST: the connection is reset.
    pub const RST: u8 = 0x04;

    /// Returns whether the packet ends a connection.
    pub const fn is_end(&self) -> bool {
        self.flags & (Self::FIN | Self::RST) != 0
    }
}

/// Counters of a flow that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WatchStats {
    /// Packets of the right size.
    pub requests: u64,
    /// Packets that ended a connection.
    pub ends: u64,
    /// TCP packets of the right size that the same connection had sent before. They are not
    /// recorded.
    pub retransmissions: u64,
    /// All other packets of the flow.
    pub others: u64,
    /// Records that were lost because the ring was full.
    pub lost: u64,
}

/// Watches a viewer's requests at the interface that faces it. Packets are passed on unchanged.
pub struct Watcher {
    skeleton: WatchSkel<'static>,
    requests: Records<types::request>,
    links: Vec<(u32, Link)>,
}

impl Watcher {
    /// Loads the program. Its attachments end when the watcher is dropped.
    pub fn load() -> Result<Self, LoadError> {
        let failed = LoadError::of("watch");
        let open = open::<WatchSkelBuilder>().map_err(&failed)?;
        let skeleton = open.load().map_err(&failed)?;
        Ok(Watcher {
            requests: Records::map(&skeleton.maps.requests)?,
            skeleton,
            links: Vec::new(),
        })
    }

    /// Starts watching packets that arrive on an interface. Does nothing if it is already watched.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), AttachError> {
        if self.links.iter().all(|(watched, _)| *watched != ifindex) {
            self.links.push((
                ifindex,
                Link::tcx_ingress(fd(&self.skeleton.progs.watch), ifindex)?,
            ));
        }
        Ok(())
    }

    /// Stops watching an interface.
    pub fn detach(&mut self, ifindex: u32) {
        Link::end_all(&mut self.links, ifindex);
    }

    /// Sets the rules that assign packets to a prefix to flows, see [`crate::Sender::select`].
    ///
    /// # Panics
    /// If there are more than [`crate::MAX_RULES`] rules.
    pub fn select(&self, prefix: Prefix, rules: &[Rule]) -> Result<(), TableError> {
        select(&self.skeleton.maps.selectors, prefix, rules)
    }

    /// Records packets of `flow` whose size after the TCP or UDP header is in the range `bytes`;
    /// `None` stops recording. Packets with SYN are never recorded; those with FIN or RST are
    /// recorded regardless of their size.
    pub fn set_flow(
        &self,
        flow: FlowId,
        bytes: Option<RangeInclusive<u16>>,
    ) -> Result<(), TableError> {
        let index = flow.index() as u32;
        let row = bytes.map_or_else(Default::default, |bytes| types::watch_flow {
            bytes_min: *bytes.start(),
            bytes_max: *bytes.end(),
            configured: 1,
            ..Default::default()
        });
        self.skeleton
            .maps
            .watch_latest
            .set(&index, &types::watch_latest::default())?;
        self.skeleton.maps.watch_flows.set(&index, &row)
    }

    /// Appends the requests since the last call to `into`, in order. The watcher's descriptor is
    /// readable when there are any.
    pub fn drain(&mut self, into: &mut Vec<Request>) {
        into.extend(self.requests.drain().filter_map(|record| parse(&record)));
    }

    /// Returns the counters of a flow, summed over CPUs.
    pub fn stats(&self, flow: FlowId) -> Result<WatchStats, TableError> {
        let rows = self
            .skeleton
            .maps
            .watch_stats
            .per_cpu::<types::watch_stats>(flow.index() as u32)?;
        let sum = |field: fn(&types::watch_stats) -> u64| rows.iter().map(field).sum();
        Ok(WatchStats {
            requests: sum(|row| row.requests),
            ends: sum(|row| row.ends),
            retransmissions: sum(|row| row.retransmissions),
            others: sum(|row| row.others),
            lost: sum(|row| row.lost),
        })
    }

    /// Runs the program on a frame without a network.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        test_run(&self.skeleton.progs.watch, frame, repeat)
    }
}

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.requests.as_fd()
    }
}

fn parse(record: &types::request) -> Option<Request> {
    Some(Request {
        at: Instant::from_nanos(record.at_ns),
        flow: FlowId::try_from(record.flow).ok()?,
        bytes: record.bytes,
        sequence: record.sequence,
        flags: record.flags,
    })
}
