//! What a node tells about itself: counters of the programs and what the arrival records say of the paths.

use crate::node::Node;
use anyhow::{Context, Result};
use hawser_bpf::{Arrival, Arrivals, RxStats, TxStats, Verdict};
use hawser_pathset::{PathTotals, Tracker};
use hawser_units::{Instant, PathId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Follows the arrival records of a receiver.
pub(crate) struct Observer {
    arrivals: Arrivals,
    tracker: Tracker,
    batch: Vec<Arrival>,
}

impl Observer {
    pub(crate) fn new(arrivals: Arrivals, deadline: Duration) -> Self {
        Observer { arrivals, tracker: Tracker::new(deadline), batch: Vec::new() }
    }

    /// Takes in what has arrived up to `now`, by the kernel's monotonic clock.
    pub(crate) fn observe(&mut self, now: Instant) {
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
                // A late copy was passed on because the window could not know, so it is not evidence of being first.
                first: arrival.verdict.accepts() && arrival.verdict != Verdict::Late,
                sent_micros: arrival.sent_micros,
                bytes: arrival.inner_bytes,
            });
        }
        self.tracker.handle_timeout(now);
    }
}

/// The file that people and programs read; counters never go down while the agent runs.
#[derive(Debug, Serialize)]
pub(crate) struct Status<'a> {
    node: &'a str,
    version: &'static str,
    pid: u32,
    written_unix_ms: u64,
    /// By flow number.
    send: BTreeMap<u16, SendStatus>,
    receive: BTreeMap<u16, BTreeMap<u8, ReceiveStatus>>,
    /// Frames that were not replicated, and why; only reasons that occurred.
    not_replicated: BTreeMap<&'static str, u64>,
    /// Frames on path interfaces that were not eliminated or passed on as replicas, and why.
    not_eliminated: BTreeMap<&'static str, u64>,
    /// Arrival records lost because nobody read them in time; the `only_copy`, `missing` and `skew` figures miss them.
    arrival_records_overflowed: u64,
}

#[derive(Debug, Serialize)]
struct SendStatus {
    policy: u8,
    packets: u64,
    bytes: u64,
    /// By path number, counted from one.
    copies: BTreeMap<u8, Copies>,
}

#[derive(Debug, Serialize)]
struct Copies {
    packets: u64,
    bytes: u64,
}

/// One flow on one path.
#[derive(Debug, Serialize)]
struct ReceiveStatus {
    packets: u64,
    bytes: u64,
    first: u64,
    duplicates: u64,
    late: u64,
    reset: u64,
    contended: u64,
    tag_failures: u64,
    /// Packets of which no other copy arrived before the deadline.
    only_copy: u64,
    /// Copies that were sent and had not arrived at the deadline.
    missing: u64,
    /// Copies that arrived after it.
    after_deadline: u64,
    /// How long after the first copy this path's came: bucket i counts 2^i to 2^(i+1) microseconds.
    skew_log2_us: Vec<u64>,
}

impl<'a> Status<'a> {
    pub(crate) fn of(node: &'a Node, observer: Option<&Observer>) -> Result<Self> {
        let config = node.config();
        let mut send = BTreeMap::new();
        let mut not_replicated = BTreeMap::new();
        if let Some(sender) = node.sender() {
            for (flow, description) in &config.send {
                let TxStats { packets, bytes } = sender.flow_stats(*flow)?;
                let mut copies = BTreeMap::new();
                for path in config.paths.keys() {
                    let TxStats { packets, bytes } = sender.path_stats(*flow, *path)?;
                    copies.insert(number(*path), Copies { packets, bytes });
                }
                send.insert(
                    (*flow).into(),
                    SendStatus { policy: description.policy.0, packets, bytes, copies },
                );
            }
            not_replicated = occurred(sender.reasons()?);
        }
        let mut receive = BTreeMap::new();
        let mut not_eliminated = BTreeMap::new();
        if let Some(receiver) = node.receiver() {
            for flow in config.receive.keys() {
                let mut paths = BTreeMap::new();
                for path in config.paths.keys() {
                    let totals = observer.and_then(|observer| observer.tracker.flow(*flow));
                    let totals = totals.map(|totals| totals.path(*path));
                    paths.insert(number(*path), ReceiveStatus::of(receiver.stats(*flow, *path)?, totals));
                }
                receive.insert((*flow).into(), paths);
            }
            not_eliminated = occurred(receiver.reasons()?);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Status {
            node: &config.name,
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            written_unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            send,
            receive,
            not_replicated,
            not_eliminated,
            arrival_records_overflowed: observer.map_or(0, |observer| observer.arrivals.overflowed()),
        })
    }

    /// Replaces the file in one step, so that a reader never sees half of it.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let draft = path.with_extension("json.new");
        let text = serde_json::to_vec_pretty(self).context("cannot describe the status")?;
        fs::write(&draft, text)
            .and_then(|()| fs::rename(&draft, path))
            .with_context(|| format!("cannot write the status to {}", path.display()))
    }
}

impl ReceiveStatus {
    fn of(stats: RxStats, totals: Option<&PathTotals>) -> Self {
        ReceiveStatus {
            packets: stats.packets,
            bytes: stats.bytes,
            first: stats.first,
            duplicates: stats.duplicates,
            late: stats.late,
            reset: stats.reset,
            contended: stats.contended,
            tag_failures: stats.tag_failures,
            only_copy: totals.map_or(0, |totals| totals.only),
            missing: totals.map_or(0, |totals| totals.missing),
            after_deadline: totals.map_or(0, |totals| totals.late),
            skew_log2_us: totals.map(|totals| totals.skew.buckets().to_vec()).unwrap_or_default(),
        }
    }
}

fn number(path: PathId) -> u8 {
    u8::from(path) + 1
}

fn occurred(reasons: Vec<(hawser_bpf::Reason, u64)>) -> BTreeMap<&'static str, u64> {
    reasons.into_iter().filter(|(_, count)| *count > 0).map(|(reason, count)| (reason.name, count)).collect()
}
