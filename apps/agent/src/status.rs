//! What a node tells about itself: counters of the programs and what the arrival records say of the paths.

mod controlled;
mod show;

pub use controlled::{
    ControllerStatus, JudgedStatus, PathStatus, PathWindowStatus, PolicyStatus, WatchStatus,
    WindowStatus,
};
pub use show::{Args, run};

use crate::device::Device;
use crate::node::Node;
use crate::observer::Observer;
use anyhow::{Context, Result};
use hawser_bpf::{FallbackStats, RxStats, TxStats};
use hawser_io::file;
use hawser_pathset::PathTotals;
use hawser_units::PathId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::{error, info};

/// The status file: what people and programs read. Counters never go down while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The node's name.
    pub node: String,
    /// Of the agent.
    pub version: String,
    /// The agent's process.
    pub pid: u32,
    /// When this was written, milliseconds since 1970.
    pub written_unix_ms: u64,
    /// What the agent works by.
    pub configuration: ConfigurationStatus,
    /// By path number, counted from one.
    #[serde(default)]
    pub paths: BTreeMap<u8, PathState>,
    /// Interfaces that a program is missing from, and why.
    #[serde(default)]
    pub unattached: BTreeMap<String, String>,
    /// By flow number.
    pub send: BTreeMap<u16, SendStatus>,
    /// By flow number, then by path number, counted from one.
    pub receive: BTreeMap<u16, BTreeMap<u8, ReceiveStatus>>,
    /// Copies that the devices of paths refused, being down or their queue full; by path number.
    pub refused_by_device: BTreeMap<u8, u64>,
    /// Frames that were not replicated, and why; only reasons that occurred.
    pub not_replicated: BTreeMap<String, u64>,
    /// Frames on path interfaces that were not eliminated or passed on as replicas, and why.
    pub not_eliminated: BTreeMap<String, u64>,
    /// How the node stands with its controller; none without one.
    #[serde(default)]
    pub controller: Option<ControllerStatus>,
    /// The agent's own interface; none without one.
    #[serde(default)]
    pub device: Option<DeviceStatus>,
    /// Arrival records lost because nobody read them in time; `only_copy`, `missing` and the skews miss them.
    pub arrival_records_overflowed: u64,
}

/// The configuration that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationStatus {
    /// When the file was last read, milliseconds since 1970.
    pub looked_at_unix_ms: u64,
    /// Why what was read then was refused, and the configuration before it stays in force.
    pub refused: Option<String>,
}

/// Whether a path can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathState {
    /// Its interface is up, and its next hop known.
    pub up: bool,
    /// Why it cannot be used. The agent looks again every second.
    pub why: Option<String>,
}

/// What left by the agent's own interface and was not replicated there, in packets or trains of segments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Those that took an uplink, as if there were no agent.
    pub took_uplink: u64,
    /// Those that were dropped as there was no uplink.
    pub dropped_no_uplink: u64,
}

/// A flow that is replicated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendStatus {
    /// The policy code.
    pub policy: u8,
    /// Packets that were replicated.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// By path number, counted from one.
    pub copies: BTreeMap<u8, Copies>,
}

/// Copies of a flow on a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// How many.
    pub packets: u64,
    /// Bytes of the packets in them.
    pub bytes: u64,
}

/// A received flow on a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveStatus {
    /// Copies with a valid shim and tag.
    pub packets: u64,
    /// Bytes of the packets in them.
    pub bytes: u64,
    /// Copies passed on; the late, reset and contended ones are among them.
    pub first: u64,
    /// Copies dropped because another had arrived.
    pub duplicates: u64,
    /// Untagged copies passed on although older than the window.
    pub late: u64,
    /// Copies passed on because the session was unknown or jumped.
    pub reset: u64,
    /// Copies passed on because two CPUs raced too often.
    pub contended: u64,
    /// Copies dropped because the tag was wrong, missing or covers too little.
    pub tag_failures: u64,
    /// Tagged copies dropped because they are older than the window remembers, or of a session that was left.
    #[serde(default)]
    pub outdated: u64,
    /// Tagged copies dropped because they were sent too long ago.
    #[serde(default)]
    pub expired: u64,
    /// Packets of which no other copy arrived before the deadline.
    pub only_copy: u64,
    /// Copies that were sent and had not arrived at the deadline.
    pub missing: u64,
    /// Copies that arrived after it.
    pub after_deadline: u64,
    /// How long after the first copy this path's came: bucket i counts 2^i to 2^(i+1) microseconds.
    pub skew_log2_us: Vec<u64>,
}

impl Status {
    /// Reads a status file.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read(path).with_context(|| format!("cannot read the status {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not a status", path.display()))
    }

    fn of(
        node: &Node,
        observer: Option<&Observer>,
        controller: Option<ControllerStatus>,
        device: Option<&Device>,
        configuration: &ConfigurationStatus,
    ) -> Result<Self> {
        let (config, flows) = (node.config(), node.flows());
        let mut send = BTreeMap::new();
        let mut refused_by_device = BTreeMap::new();
        let mut not_replicated = BTreeMap::new();
        if let Some(sender) = node.sender() {
            for flow in flows.send.keys() {
                let TxStats { packets, bytes } = sender.flow_stats(*flow)?;
                let mut copies = BTreeMap::new();
                for path in config.paths.keys() {
                    let TxStats { packets, bytes } = sender.path_stats(*flow, *path)?;
                    copies.insert(number(*path), Copies { packets, bytes });
                }
                let policy = sender.policy_in_force(*flow).code.0;
                send.insert(
                    (*flow).into(),
                    SendStatus {
                        policy,
                        packets,
                        bytes,
                        copies,
                    },
                );
            }
            for path in config.paths.keys() {
                refused_by_device.insert(number(*path), sender.refused(*path)?);
            }
            not_replicated = occurred(sender.reasons()?);
        }
        let mut receive = BTreeMap::new();
        let mut not_eliminated = BTreeMap::new();
        if let Some(receiver) = node.receiver() {
            for flow in flows.receive.keys() {
                let mut paths = BTreeMap::new();
                for path in config.paths.keys() {
                    let totals = observer.and_then(|observer| observer.totals(*flow, *path));
                    paths.insert(
                        number(*path),
                        ReceiveStatus::of(receiver.stats(*flow, *path)?, totals),
                    );
                }
                receive.insert((*flow).into(), paths);
            }
            not_eliminated = occurred(receiver.reasons()?);
        }
        Ok(Status {
            node: config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            written_unix_ms: unix_now_ms(),
            configuration: configuration.clone(),
            paths: config
                .paths
                .keys()
                .map(|path| (number(*path), PathState::of(node, *path)))
                .collect(),
            unattached: node.unattached(),
            send,
            receive,
            refused_by_device,
            not_replicated,
            not_eliminated,
            controller,
            device: device.map(DeviceStatus::of).transpose()?,
            arrival_records_overflowed: observer.map_or(0, Observer::overflowed),
        })
    }

    fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).context("cannot describe the status")?;
        file::replace(path, &text, 0o666)
            .with_context(|| format!("cannot write the status to {}", path.display()))
    }
}

/// Keeps the status file up to date.
pub(crate) struct StatusFile {
    path: PathBuf,
    configuration: ConfigurationStatus,
    failing: bool,
}

impl StatusFile {
    pub(crate) fn at(path: PathBuf) -> Self {
        let configuration = ConfigurationStatus {
            looked_at_unix_ms: unix_now_ms(),
            refused: None,
        };
        StatusFile {
            path,
            configuration,
            failing: false,
        }
    }

    /// Takes down, and logs, what came of reading the configuration again.
    pub(crate) fn looked_at_configuration(&mut self, outcome: Result<()>) {
        let refused = outcome.err().map(|error| format!("{error:#}"));
        match &refused {
            None => info!("configuration read again"),
            Some(why) => error!("the configuration stays as it was: {why}"),
        }
        // Later than before even if the clock was set back: whoever waits for it sees that it was read.
        let looked_at_unix_ms = unix_now_ms().max(self.configuration.looked_at_unix_ms + 1);
        self.configuration = ConfigurationStatus {
            looked_at_unix_ms,
            refused,
        };
    }

    /// A full disk must not end replication: it is said once, and the agent goes on.
    pub(crate) fn write(
        &mut self,
        node: &Node,
        observer: Option<&Observer>,
        controller: Option<ControllerStatus>,
        device: Option<&Device>,
    ) {
        let status = Status::of(node, observer, controller, device, &self.configuration);
        match status.and_then(|status| status.write(&self.path)) {
            Ok(()) if self.failing => info!("the status is written again"),
            Err(error) if !self.failing => error!("{error:#}; the agent goes on without"),
            _ => return,
        }
        self.failing = !self.failing;
    }
}

impl fmt::Display for StatusFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl PathState {
    fn of(node: &Node, path: PathId) -> Self {
        PathState {
            up: node.is_up(path),
            why: node.obstacle(path),
        }
    }
}

impl DeviceStatus {
    fn of(device: &Device) -> Result<Self> {
        let FallbackStats { taken, dropped } = device.stats()?;
        Ok(DeviceStatus {
            took_uplink: taken,
            dropped_no_uplink: dropped,
        })
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
            outdated: stats.outdated,
            expired: stats.expired,
            only_copy: totals.map_or(0, |totals| totals.only),
            missing: totals.map_or(0, |totals| totals.missing),
            after_deadline: totals.map_or(0, |totals| totals.late),
            skew_log2_us: totals
                .map(|totals| totals.skew.buckets().to_vec())
                .unwrap_or_default(),
        }
    }
}

pub(crate) fn unix_now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn number(path: PathId) -> u8 {
    u8::from(path) + 1
}

fn occurred(reasons: Vec<(hawser_bpf::Reason, u64)>) -> BTreeMap<String, u64> {
    reasons
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| (reason.name.to_owned(), count))
        .collect()
}
