//! The status of a node: the counters of the eBPF programs and the totals of the arrival records.

mod controlled;
mod experience;
mod show;
mod unselected;

pub use crate::echo::CandidateStatus;
pub use controlled::{
    ControllerStatus, JudgedStatus, PathStatus, PathWindowStatus, PeerStatus, PolicyStatus,
    WatchStatus, WindowStatus,
};
pub use experience::{ExperienceStatus, FlowExperience};
pub use show::{Args, run};
pub(crate) use unselected::Unselected;

use crate::device::Device;
use crate::node::Node;
use crate::observer::Observer;
use anyhow::{Context, Result};
use hawser_io::clock::unix_ms;
use hawser_io::failures::{Change, Failures};
use hawser_io::json_file::JsonFile;
use hawser_io::kept::Deviation;
use hawser_metrics::Metrics;
use hawser_pathset::PathTotals;
use hawser_replication_bpf::{FallbackStats, RxStats, Sender, TxStats};
use hawser_units::{FlowId, Line, PathId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::{error, info};

/// The content of the status file, for operators and programs. Counters never decrease while the
/// agent runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Metrics)]
pub struct Status {
    /// The node's name.
    pub node: String,
    /// The agent's version.
    pub version: String,
    /// The agent's process ID.
    pub pid: u32,
    /// The time at which this was written, milliseconds since 1970.
    pub written_unix_ms: u64,
    /// The state of the configuration.
    #[metrics]
    pub configuration: ConfigurationStatus,
    /// The paths, by path number, counted from one.
    #[serde(default)]
    #[metrics("path")]
    pub paths: BTreeMap<u8, PathState>,
    /// Interfaces to which a program is not attached.
    ///
    /// The values are the reasons.
    #[serde(default)]
    #[gauge("interfaces_unattached", of = BTreeMap::len)]
    pub unattached: BTreeMap<String, String>,
    /// The modes in which interfaces are used, by interface, then by use: `deduplicate` (copies that
    /// arrive), `replicate` (transit traffic that arrives), `send` (copies that leave).
    #[serde(default)]
    pub modes: BTreeMap<String, BTreeMap<String, ModeStatus>>,
    /// Sent flows, by flow number.
    #[metrics("flow")]
    pub send: BTreeMap<u16, SendStatus>,
    /// Received flows, by flow number, then by path number, counted from one.
    #[metrics("flow", "path")]
    pub receive: BTreeMap<u16, BTreeMap<u8, ReceiveStatus>>,
    /// Copies that the interface of a path dropped.
    ///
    /// It was down or its queue was full. The keys are path numbers.
    #[counter("path_dropped_by_device", "path")]
    pub dropped_by_device: BTreeMap<u8, u64>,
    /// Copies that did not leave by a path, by reason.
    ///
    /// Includes those of `dropped_by_device` whose device told the programs. The keys are path numbers, then reasons.
    #[serde(default)]
    #[counter("path_lost_copies", "path", "reason")]
    pub lost_copies: BTreeMap<u8, BTreeMap<String, u64>>,
    /// Frames that were not replicated, by reason.
    ///
    /// Reasons that did not occur are left out.
    #[counter("frames_not_replicated", "reason")]
    pub not_replicated: BTreeMap<String, u64>,
    /// Packets to a destination of flows, or to a peer through the agent's own interface, that matched no flow. `None` if
    /// there were none.
    #[serde(default)]
    #[counter("packets_unselected", help = "Packets to a destination of flows or to a peer that matched no flow, and left without copies",
        of = |found| found.as_ref().map_or(0, |found| found.packets))]
    pub unselected: Option<UnselectedStatus>,
    /// Frames on interfaces of paths that were not deduplicated or not passed on as replicas, by reason.
    #[counter("frames_not_deduplicated", "reason")]
    pub not_deduplicated: BTreeMap<String, u64>,
    /// The state of the connection to the controller. `None` without one.
    #[serde(default)]
    #[gauge("controller_connected", help = "1 if the node is connected to its controller; NaN without one",
        of = |controller| controller.as_ref().map(|controller| controller.state == "connected"))]
    pub controller: Option<ControllerStatus>,
    /// The reports of applications on how their flows fare.
    #[serde(default)]
    #[metrics]
    pub experience: ExperienceStatus,
    /// The agent's own interface. `None` without one.
    #[serde(default)]
    #[metrics]
    pub device: Option<DeviceStatus>,
    /// Parameters, firewall rules and other things in the kernel that are not as the node needs them.
    ///
    /// Includes those that were restored since the agent was started.
    #[serde(default)]
    #[gauge("deviations", of = |all| all.iter().filter(|found| !found.restored).count())]
    #[counter("deviations_seen", help = "Times that another program changed what the node needs in the kernel",
        of = |all| all.iter().map(|found| found.count).sum::<u64>())]
    pub deviations: Vec<Deviation>,
    /// Arrivals that are missing in the counts of single copies and missing ones, because they were not read in time.
    ///
    /// The skews do not include them either.
    #[counter("arrival_records_lost")]
    pub arrival_records_overflowed: u64,
}

/// The state of the configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Metrics)]
pub struct ConfigurationStatus {
    /// The time at which the file was last read, milliseconds since 1970.
    pub checked_unix_ms: u64,
    /// The error of the file as last read. The previous configuration stays in force.
    #[gauge("configuration_valid", help = "1 if the configuration file was valid when it was last read", of = Option::is_none)]
    pub error: Option<String>,
}

/// Whether a path can be used.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Metrics)]
pub struct PathState {
    /// Whether its interface is up and its next hop known.
    #[gauge("path_up", help = "1 if the path can be used")]
    pub up: bool,
    /// The reason that it cannot be used. The agent checks again every second.
    pub reason: Option<String>,
    /// Whether its interface leads into a tunnel (TUN, WireGuard), such as the coded one.
    #[serde(default)]
    #[gauge(
        "path_tunnel",
        help = "1 if the interface of the path leads into a tunnel"
    )]
    pub tunnel: bool,
    /// This node's current address on it.
    #[serde(default)]
    pub local: Option<IpAddr>,
    /// Largest packet that is sent on it, bytes. `None` if no copies are sent on it.
    #[serde(default)]
    #[gauge(
        "path_mtu_bytes",
        help = "Largest packet that is sent on the path; NaN if no copies are sent on it"
    )]
    pub mtu_bytes: Option<u16>,
    /// Whether the MTU was learned: a router on the path has told it (ICMP), or larger packets did not
    /// arrive. It is forgotten after ten minutes.
    #[serde(default)]
    pub mtu_learned: bool,
    /// Copies that were not sent on the path because they are larger than its MTU.
    ///
    /// The other paths had copies.
    #[serde(default)]
    #[counter("path_too_large")]
    pub too_large: u64,
    /// The last change of its address, next hop, interface or MTU while the agent runs.
    #[serde(default)]
    pub changed: Option<ChangeStatus>,
}

/// A change of a path while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeStatus {
    /// The time, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The change.
    pub what: String,
}

/// The mode in which an interface is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeStatus {
    /// `native`, `generic` or `tc`.
    pub mode: String,
    /// The reason for this mode.
    pub reason: String,
    /// The consequence that an operator has to know, and what to do.
    pub warning: Option<String>,
}

/// Packets to a destination of flows that matched none of them and took the default route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnselectedStatus {
    /// Their number.
    pub packets: u64,
    /// The protocol, port and destination of the last one.
    pub example: String,
}

/// Packets, or trains of segments, that left through the agent's own interface without being
/// replicated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Metrics)]
pub struct DeviceStatus {
    /// Packets that left by the agent's interface without being replicated.
    ///
    /// They took an uplink, as without an agent.
    #[counter("device_took_uplink_packets")]
    pub took_uplink: u64,
    /// Packets that were dropped there because there was no uplink.
    #[counter("device_dropped_packets")]
    pub dropped_no_uplink: u64,
}

/// A sent flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Metrics)]
pub struct SendStatus {
    /// Code of the policy in force: bit 0 is path 1; 0 is the default route.
    #[gauge("sent_policy")]
    pub policy: u8,
    /// Packets that were replicated.
    #[counter("sent_packets")]
    pub packets: u64,
    /// Bytes of these packets.
    #[counter("sent_bytes")]
    pub bytes: u64,
    /// The copies on each path, by path number, counted from one.
    #[metrics("path")]
    pub copies: BTreeMap<u8, Copies>,
}

/// Copies of a flow on a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Metrics)]
pub struct Copies {
    /// Copies that were sent on a path.
    #[counter("sent_copies")]
    pub packets: u64,
    /// Bytes of the packets in them.
    #[counter("sent_copies_bytes")]
    pub bytes: u64,
}

/// A received flow on a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Metrics)]
#[counter("received_too_old", help = "Tagged copies that were dropped because they may be replayed", of = Self::too_old)]
pub struct ReceiveStatus {
    /// Copies with a valid shim and tag that arrived on a path.
    #[counter("received_copies")]
    pub packets: u64,
    /// Bytes of the packets in them.
    #[counter("received_bytes")]
    pub bytes: u64,
    /// Copies that were passed on.
    ///
    /// Includes the late, reset and contended ones.
    #[counter("received_first")]
    pub first: u64,
    /// Copies that were dropped because another one had arrived.
    #[counter("received_duplicates")]
    pub duplicates: u64,
    /// Untagged copies that were passed on although older than the replay window.
    pub late: u64,
    /// Copies that were passed on because the session was unknown or jumped.
    pub reset: u64,
    /// Copies that were passed on because two CPUs raced too often.
    pub contended: u64,
    /// Copies whose tag was wrong, missing or covers too little.
    ///
    /// They were dropped.
    #[counter("received_tag_failures")]
    pub tag_failures: u64,
    /// Tagged copies that were dropped because they are older than the replay window, or belong to
    /// an earlier session.
    #[serde(default)]
    pub outdated: u64,
    /// Tagged copies that were dropped because they were sent too long ago.
    #[serde(default)]
    pub expired: u64,
    /// Packets of which no other copy arrived before the deadline.
    #[counter("received_only_copies")]
    pub only_copy: u64,
    /// Copies that had not arrived at the deadline.
    #[counter("received_missing")]
    pub missing: u64,
    /// Copies that arrived after the deadline.
    pub after_deadline: u64,
    /// Histogram of the delay of this path's copies after the first copy. Bucket i counts delays of
    /// 2^i to 2^(i+1) microseconds.
    pub skew_log2_us: Vec<u64>,
}

impl Status {
    /// Reads a status file.
    pub fn read(path: &Path) -> Result<Self> {
        let status = JsonFile::status(path.to_owned()).read()?;
        status.with_context(|| format!("there is no status file {}", path.display()))
    }

    fn of(
        node: &Node,
        observer: Option<&Observer>,
        (controller, experience): (Option<ControllerStatus>, ExperienceStatus),
        device: Option<&Device>,
        deviations: Vec<Deviation>,
        configuration: &ConfigurationStatus,
    ) -> Result<Self> {
        let config = node.config();
        let sender = sender_counters(node)?;
        let receiver = receiver_counters(node, observer)?;
        let paths = config.paths.keys();
        Ok(Status {
            node: config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            written_unix_ms: unix_ms(),
            configuration: configuration.clone(),
            paths: paths
                .map(|path| Ok((path.number(), PathState::of(node, *path)?)))
                .collect::<Result<_>>()?,
            unattached: node.unattached(),
            modes: modes(node),
            send: sender.flows,
            receive: receiver.flows,
            dropped_by_device: sender.dropped_by_device,
            lost_copies: sender.lost_copies,
            not_replicated: sender.not_replicated,
            unselected: sender.unselected,
            not_deduplicated: receiver.not_deduplicated,
            controller,
            experience,
            device: device.map(DeviceStatus::of).transpose()?,
            deviations,
            arrival_records_overflowed: observer.map_or(0, Observer::overflowed),
        })
    }
}

fn modes(node: &Node) -> BTreeMap<String, BTreeMap<String, ModeStatus>> {
    let mut modes: BTreeMap<String, BTreeMap<String, ModeStatus>> = BTreeMap::new();
    for ((name, usage), choice) in node.modes() {
        let status = ModeStatus {
            mode: choice.mode.name().to_owned(),
            reason: choice.reason.clone().into_owned(),
            warning: choice.warning.map(str::to_owned),
        };
        let uses = modes.entry(name.clone()).or_default();
        uses.insert(usage.name().to_owned(), status);
    }
    modes
}

/// The parts of [`Status`] that come from the programs that replicate.
#[derive(Default)]
struct SenderCounters {
    flows: BTreeMap<u16, SendStatus>,
    dropped_by_device: BTreeMap<u8, u64>,
    lost_copies: BTreeMap<u8, BTreeMap<String, u64>>,
    not_replicated: BTreeMap<String, u64>,
    unselected: Option<UnselectedStatus>,
}

/// The parts of [`Status`] that come from the program that deduplicates.
#[derive(Default)]
struct ReceiverCounters {
    flows: BTreeMap<u16, BTreeMap<u8, ReceiveStatus>>,
    not_deduplicated: BTreeMap<String, u64>,
}

fn sender_counters(node: &Node) -> Result<SenderCounters> {
    let Some(sender) = node.sender() else {
        return Ok(SenderCounters::default());
    };
    let mut flows = BTreeMap::new();
    for flow in node.flows().send.keys() {
        flows.insert((*flow).into(), SendStatus::of(node, sender, *flow)?);
    }
    let mut dropped_by_device = BTreeMap::new();
    let mut lost_copies = BTreeMap::new();
    for path in node.config().paths.keys() {
        dropped_by_device.insert(path.number(), sender.device_drops(*path)?);
        lost_copies.insert(path.number(), occurred(sender.lost_copies(*path)?));
    }
    lost_copies.retain(|_, reasons| !reasons.is_empty());
    Ok(SenderCounters {
        flows,
        dropped_by_device,
        lost_copies,
        not_replicated: occurred(sender.reasons()?),
        unselected: sender.missed()?.as_ref().map(|missed| UnselectedStatus {
            packets: missed.packets,
            example: unselected::describe(missed),
        }),
    })
}

fn receiver_counters(node: &Node, observer: Option<&Observer>) -> Result<ReceiverCounters> {
    let Some(receiver) = node.receiver() else {
        return Ok(ReceiverCounters::default());
    };
    let mut flows = BTreeMap::new();
    for flow in node.flows().receive.keys() {
        let mut paths = BTreeMap::new();
        for path in node.config().paths.keys() {
            let totals = observer.and_then(|observer| observer.totals(*flow, *path));
            let status = ReceiveStatus::of(receiver.stats(*flow, *path)?, totals);
            paths.insert(path.number(), status);
        }
        flows.insert((*flow).into(), paths);
    }
    Ok(ReceiverCounters {
        flows,
        not_deduplicated: occurred(receiver.reasons()?),
    })
}

/// The last status. `None` before the first one.
pub(crate) type LastStatus = Arc<Mutex<Option<Status>>>;

/// Writes the status file.
pub(crate) struct StatusFile {
    file: JsonFile,
    failures: Failures,
    configuration: ConfigurationStatus,
    last: LastStatus,
}

impl StatusFile {
    pub(crate) fn at(path: PathBuf) -> Self {
        let configuration = ConfigurationStatus {
            checked_unix_ms: unix_ms(),
            error: None,
        };
        StatusFile {
            file: JsonFile::status(path),
            failures: Failures::default(),
            configuration,
            last: LastStatus::default(),
        }
    }

    /// Returns the last status that was to be written, which changes with it.
    pub(crate) fn last(&self) -> LastStatus {
        Arc::clone(&self.last)
    }

    /// Records and logs the result of reloading the configuration.
    pub(crate) fn configuration_reloaded(&mut self, outcome: Result<()>) {
        let error = outcome
            .err()
            .map(|error| Line::of_output(format!("{error:#}").as_bytes()).into_string());
        match &error {
            None => info!("configuration reloaded"),
            Some(error) => {
                error!("cannot reload the configuration, the previous one stays in force: {error}")
            }
        }
        // Later than before even if the clock was set back, so that a program that waits for the
        // reload notices it.
        let checked_unix_ms = unix_ms().max(self.configuration.checked_unix_ms + 1);
        self.configuration = ConfigurationStatus {
            checked_unix_ms,
            error,
        };
    }

    /// Writes the file. A failure, such as a full disk, must not stop replication: it is logged
    /// once.
    pub(crate) fn write(
        &mut self,
        node: &Node,
        observer: Option<&Observer>,
        (controller, experience): (Option<ControllerStatus>, ExperienceStatus),
        device: Option<&Device>,
        deviations: Vec<Deviation>,
    ) {
        let configuration = &self.configuration;
        let status = Status::of(
            node,
            observer,
            (controller, experience),
            device,
            deviations,
            configuration,
        );
        let outcome = status.and_then(|status| {
            let written = self.file.write(&status);
            *self.last.lock() = Some(status);
            Ok(written?)
        });
        match self.failures.record(outcome) {
            Some(Change::Failed(error)) => {
                error!("{error:#}; the agent continues without writing its status");
            }
            Some(Change::Recovered) => info!("the status can be written again"),
            None => {}
        }
    }
}

impl fmt::Display for StatusFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.path().display().fmt(f)
    }
}

impl PathState {
    fn of(node: &Node, path: PathId) -> Result<Self> {
        let mtu = node.mtu(path);
        let too_large = node.sender().map(|sender| sender.too_large(path));
        Ok(PathState {
            up: node.is_up(path),
            reason: node.obstacle(path),
            local: node.local(path),
            changed: node.last_change(path).map(|change| ChangeStatus {
                at_unix_ms: change.at_unix_ms,
                what: change.what.clone(),
            }),
            mtu_bytes: mtu.map(|(mtu_bytes, _)| mtu_bytes),
            tunnel: node.is_tunnel(path),
            mtu_learned: mtu.is_some_and(|(_, is_learned)| is_learned),
            too_large: too_large.transpose()?.unwrap_or_default(),
        })
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

impl SendStatus {
    fn of(node: &Node, sender: &Sender, flow: FlowId) -> Result<Self> {
        let TxStats { packets, bytes } = sender.flow_stats(flow)?;
        let mut copies = BTreeMap::new();
        for path in node.config().paths.keys() {
            let TxStats { packets, bytes } = sender.path_stats(flow, *path)?;
            copies.insert(path.number(), Copies { packets, bytes });
        }
        Ok(SendStatus {
            policy: sender.policy_in_force(flow).code.0,
            packets,
            bytes,
            copies,
        })
    }
}

impl ReceiveStatus {
    /// Returns the number of tagged copies that were dropped because they may be replayed.
    fn too_old(&self) -> u64 {
        self.outdated + self.expired
    }

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

fn occurred(reasons: Vec<(hawser_replication_bpf::Reason, u64)>) -> BTreeMap<String, u64> {
    reasons
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| (reason.name.to_owned(), count))
        .collect()
}
