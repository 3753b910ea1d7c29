//! What an end of a tunnel tells about itself: a file that people and programs read.

mod show;

pub use show::{Args, run};

use crate::config::Common;
use crate::session::{Closed, PathReport, Report};
use anyhow::{Context, Result};
use hawser_io::file;
use hawser_xnc::Refused;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tracing::{error, info};

/// A path that has been unanswered for so long is silent.
const SILENT_MS: u64 = 500;

/// The status file. Counters never go down while the process runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The name in the configuration.
    pub name: String,
    /// `client` or `server`.
    pub role: String,
    /// Of the program.
    pub version: String,
    /// The process.
    pub pid: u32,
    /// When this was written, milliseconds since 1970.
    pub written_unix_ms: u64,
    /// The server is about to end.
    pub draining: bool,
    /// Inner addresses of this end.
    pub addresses: Vec<IpAddr>,
    /// A client has one, or none while it looks for a server.
    pub sessions: Vec<SessionStatus>,
    /// A client's uplinks.
    pub uplinks: Vec<UplinkStatus>,
    /// Bytes that a server's sessions keep of packets, of those that `memory_mb` allows.
    #[serde(default)]
    pub kept_bytes: u64,
    /// How often a table of nftables was made again because somebody else had changed or removed it.
    #[serde(default)]
    pub tables_restored: u64,
    /// Packets that were not passed on and connections that were not let in, by reason; only reasons that occurred.
    pub not_passed_on: BTreeMap<String, u64>,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The name of the other end.
    pub peer: String,
    /// Inner addresses of the client.
    pub addresses: Vec<IpAddr>,
    /// When it was opened, milliseconds since 1970.
    pub since_unix_ms: u64,
    /// The largest packet that all paths carry, bytes.
    pub mtu_bytes: u16,
    /// Packets taken for the other end.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that came from the other end.
    pub received_packets: u64,
    /// Bytes of those that were passed on.
    pub received_bytes: u64,
    /// Packets of these that were lost and recovered from combinations.
    pub recovered_packets: u64,
    /// Packets sent that counted as lost at least once.
    pub lost_packets: u64,
    /// Packets sent that were marked for their senders to send less (ECN).
    #[serde(default)]
    pub marked_packets: u64,
    /// What was sent besides the first transmission of each packet, as a share of these.
    pub redundancy_ratio: f64,
    /// The rate of packets taken since the last status, Mb/s.
    pub sent_mbps: f64,
    /// The rate of packets passed on since the last status, Mb/s.
    pub received_mbps: f64,
    /// Its paths.
    pub paths: Vec<PathStatus>,
    /// Packets and datagrams that were not passed on, by reason; only reasons that occurred.
    pub not_passed_on: BTreeMap<String, u64>,
}

/// A path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathStatus {
    /// A client's uplink; at a server the address from which it was opened.
    pub name: String,
    /// Where the other end is.
    pub remote: Option<SocketAddr>,
    /// The class of cost.
    pub cost: u8,
    /// It waits until others do not suffice.
    pub standby: bool,
    /// The round-trip time of the last packet, smoothed, milliseconds; none before the first acknowledgement.
    pub rtt_ms: Option<f64>,
    /// The least round-trip time, milliseconds.
    pub rtt_min_ms: Option<f64>,
    /// For how long nothing that was sent has been acknowledged, milliseconds.
    pub unanswered_ms: u64,
    /// Bytes that may be in flight.
    pub window_bytes: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// Bytes of datagrams sent.
    pub sent_bytes: u64,
    /// Bytes of datagrams received.
    pub received_bytes: u64,
    /// Transmissions that are known to have arrived.
    pub arrived: u64,
    /// Transmissions that counted as lost.
    pub lost: u64,
    /// Transmissions of copies and combinations.
    pub recovery: u64,
    /// Acknowledgements that said of further packets marked by the network (ECN).
    pub congestion_marks: u64,
    /// The rate sent since the last status, Mb/s.
    pub sent_mbps: f64,
    /// The rate received since the last status, Mb/s.
    pub received_mbps: f64,
    /// Transmissions lost since the last status, as a share of those whose fate became known.
    pub loss_ratio: f64,
}

/// An uplink of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkStatus {
    /// The interface, or, if there is none, what the configuration calls it.
    pub name: String,
    /// `connected`, `connecting`, or why it is not connected.
    pub state: String,
    /// Bytes in both directions this month, where there is a cap.
    pub month_bytes: Option<u64>,
}

impl UplinkStatus {
    pub(crate) fn missing(name: &str) -> UplinkStatus {
        let state = "there is no such interface, or it is down or has no address".to_owned();
        UplinkStatus {
            name: name.to_owned(),
            state,
            month_bytes: None,
        }
    }
}

impl Status {
    /// Reads a status file.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read(path).with_context(|| format!("cannot read the status {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not a status", path.display()))
    }

    pub(crate) fn new(common: &Common, role: &str) -> Status {
        Status {
            name: common.name.clone(),
            role: role.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            written_unix_ms: unix_ms(SystemTime::now()),
            draining: false,
            addresses: Vec::new(),
            sessions: Vec::new(),
            uplinks: Vec::new(),
            kept_bytes: 0,
            tables_restored: 0,
            not_passed_on: BTreeMap::new(),
        }
    }

    /// Sets the rates since `earlier`.
    fn compare(&mut self, earlier: &Status) {
        let ms = self.written_unix_ms.saturating_sub(earlier.written_unix_ms);
        let elapsed = Duration::from_millis(ms.max(1)).as_secs_f64();
        let mbps = |now: u64, before: u64| now.saturating_sub(before) as f64 * 8e-6 / elapsed;
        for session in &mut self.sessions {
            let same = |other: &&SessionStatus| {
                (&other.peer, other.since_unix_ms) == (&session.peer, session.since_unix_ms)
            };
            let Some(before) = earlier.sessions.iter().find(same) else {
                continue;
            };
            session.sent_mbps = mbps(session.sent_bytes, before.sent_bytes);
            session.received_mbps = mbps(session.received_bytes, before.received_bytes);
            for path in &mut session.paths {
                let Some(before) = before.paths.iter().find(|before| before.name == path.name)
                else {
                    continue;
                };
                path.sent_mbps = mbps(path.sent_bytes, before.sent_bytes);
                path.received_mbps = mbps(path.received_bytes, before.received_bytes);
                let lost = path.lost.saturating_sub(before.lost) as f64;
                let known = path.arrived.saturating_sub(before.arrived) as f64 + lost;
                path.loss_ratio = if known > 0.0 { lost / known } else { 0.0 };
            }
        }
    }
}

impl SessionStatus {
    pub(crate) fn new(
        peer: &str,
        addresses: &[IpAddr],
        since: SystemTime,
        report: Report,
    ) -> SessionStatus {
        let Report {
            paths,
            stats,
            dropped,
            sent_bytes,
            received_bytes,
            mtu,
            waiting: _,
        } = report;
        let refused = Refused::ALL
            .iter()
            .zip(stats.refused)
            .map(|(reason, count)| (reason.name(), count));
        let others = [
            ("path_ended", dropped.path_ended),
            ("memory", dropped.memory),
            ("expired", stats.sender.expired),
            ("overflowed", stats.sender.overflowed),
            ("congested", stats.sender.congested),
            ("given_up", stats.sender.given_up),
            ("unsolved", stats.receiver.unsolved),
            ("garbled", stats.receiver.garbled),
        ];
        let closed = Closed::ALL
            .iter()
            .zip(dropped.closed)
            .map(|(reason, count)| (reason.name(), count));
        let counted = refused
            .chain(closed)
            .chain(others)
            .filter(|(_, count)| *count > 0);
        SessionStatus {
            peer: peer.to_owned(),
            addresses: addresses.to_vec(),
            since_unix_ms: unix_ms(since),
            mtu_bytes: mtu,
            sent_packets: stats.sender.packets,
            sent_bytes,
            received_packets: stats.receiver.delivered,
            received_bytes,
            recovered_packets: stats.receiver.recovered,
            lost_packets: stats.sender.lost,
            marked_packets: stats.sender.marked,
            redundancy_ratio: stats.sender.redundancy(),
            sent_mbps: 0.0,
            received_mbps: 0.0,
            paths: paths
                .into_iter()
                .map(|path| PathStatus::new(path, &stats))
                .collect(),
            not_passed_on: counted
                .map(|(reason, count)| (reason.to_owned(), count))
                .collect(),
        }
    }
}

impl PathStatus {
    /// Whether nothing has been heard for so long that something is wrong.
    pub(crate) fn is_silent(&self) -> bool {
        self.unanswered_ms >= SILENT_MS
    }

    fn new(path: PathReport, stats: &hawser_xnc::Stats) -> PathStatus {
        let PathReport {
            name,
            index,
            remote,
            cost,
            standby,
            figures,
            sent_bytes,
            received_bytes,
            ..
        } = path;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let counted = &stats.sender.paths[index];
        PathStatus {
            name,
            remote,
            cost,
            standby,
            rtt_ms: figures.rtt.map(|rtt| ms(rtt.smoothed)),
            rtt_min_ms: figures.rtt.map(|rtt| ms(rtt.min)),
            unanswered_ms: u64::try_from(figures.unanswered.as_millis()).unwrap_or(u64::MAX),
            window_bytes: figures.congestion_window.0,
            in_flight_bytes: figures.in_flight.0,
            sent_bytes,
            received_bytes,
            arrived: counted.arrived,
            lost: counted.lost,
            recovery: counted.recovery,
            congestion_marks: figures.congestion_marks,
            sent_mbps: 0.0,
            received_mbps: 0.0,
            loss_ratio: 0.0,
        }
    }
}

/// Where the status is written.
pub(crate) struct StatusFile {
    path: PathBuf,
    last: Option<Status>,
    fails: bool,
}

impl StatusFile {
    pub(crate) fn at(path: PathBuf) -> StatusFile {
        StatusFile {
            path,
            last: None,
            fails: false,
        }
    }

    /// Writes the status with the rates since the last one, and returns it. That it cannot be written is said once.
    pub(crate) fn write(&mut self, mut status: Status) -> Status {
        if let Some(last) = &self.last {
            status.compare(last);
        }
        let outcome = self.replace(&status);
        match &outcome {
            Ok(()) if self.fails => {
                info!("the status {} can be written again", self.path.display())
            }
            Err(error) if !self.fails => error!("no status from now on: {error:#}"),
            _ => {}
        }
        self.fails = outcome.is_err();
        self.last = Some(status.clone());
        status
    }

    fn replace(&self, status: &Status) -> Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        file::replace(&self.path, &serde_json::to_vec_pretty(status)?, 0o666)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
