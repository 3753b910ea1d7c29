//! The status of a tunnel client or server: a file for people and programs.

mod interval;
mod show;

pub use interval::Interval;
pub use show::{Args, run};

use crate::config::Common;
use crate::session::{DenyReason, Dropped, PathReport, Report};
use anyhow::{Context, Result};
use hawser_io::clock;
use hawser_io::json_file::JsonFile;
use hawser_io::kept::Deviation;
use hawser_metrics::Metrics;
use hawser_xnc::{Liveness, RejectReason, Stats};
use interval::{Counted, Reports};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The status file. Counters never decrease while the process runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Metrics)]
pub struct Status {
    /// The name in the configuration.
    pub name: String,
    /// `client` or `server`.
    pub role: String,
    /// The version of the program.
    pub version: String,
    /// The process ID.
    pub pid: u32,
    /// When the status was written, in milliseconds since 1970.
    pub written_unix_ms: u64,
    /// Whether the server is shutting down.
    pub draining: bool,
    /// The inner addresses of this end.
    pub addresses: Vec<IpAddr>,
    /// Sessions.
    ///
    /// A client has one, or none while it looks for a server.
    #[gauge("sessions", of = Vec::len)]
    #[metrics]
    pub sessions: Vec<SessionStatus>,
    /// The uplinks of a client.
    #[metrics]
    pub uplinks: Vec<UplinkStatus>,
    /// The memory that a server's sessions use for packets, in bytes; `memory_mb` is the limit.
    pub memory_bytes: u64,
    /// nftables tables restored after another program changed or removed them.
    #[counter("tables_restored")]
    pub tables_restored: u64,
    /// Times that addresses and routes of the device were restored after another program removed some.
    ///
    /// Or set the device down. Only a client does so.
    #[counter("device_restored")]
    pub device_restored: u64,
    /// Parameters, firewall rules and other things in the kernel that are not as this end needs them.
    ///
    /// Includes those that were restored.
    #[gauge("deviations", of = |all| all.iter().filter(|found| !found.restored).count())]
    #[counter("deviations_seen",
        help = "Times that another program changed what this end needs in the kernel, or it was not so at the start",
        of = |all| all.iter().map(|found| found.count).sum::<u64>())]
    pub deviations: Vec<Deviation>,
    /// Where a client has set its name servers, or why it has not; none without `dns`, and before
    /// the first session.
    pub dns: Option<String>,
    /// Times that name servers were set again after another program had replaced them.
    #[counter("dns_restored")]
    pub dns_restored: u64,
    /// The uplinks whose own name servers systemd-resolved asks for names in some domains; each with its
    /// domains, as in `wlan0: guest.example lan`. It asks them and those of `dns` if the domain is `~.`.
    pub uplink_domains: Vec<String>,
    /// The state of the settings that a controller has given to a client: `applied`, or `refused` with the
    /// reason. None if the controller has given none, or the client's file accepts none.
    pub settings: Option<String>,
    /// Why a server's file was rejected when it was read last; none if it was accepted.
    pub rejected_file: Option<String>,
    /// Files of an earlier process that were damaged when this one started.
    ///
    /// Each with what has become of it.
    #[gauge("damaged_files", of = Vec::len)]
    pub damaged_files: Vec<String>,
    /// Packets not forwarded and connections not admitted, by reason.
    ///
    /// Without reasons that did not occur, and those of sessions.
    #[counter("dropped", "peer", "reason", of = |dropped| [("", dropped.clone())])]
    pub dropped: BTreeMap<String, u64>,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Metrics)]
pub struct SessionStatus {
    /// The name of the peer.
    #[label("peer")]
    pub peer: String,
    /// The inner addresses of the client.
    pub addresses: Vec<IpAddr>,
    /// When it was opened, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// The largest packet that fits all paths.
    #[gauge("mtu_bytes")]
    pub mtu_bytes: u16,
    /// Packets accepted for sending to the peer.
    #[counter("sent_packets")]
    pub sent_packets: u64,
    /// Bytes of packets accepted for sending to the peer.
    #[counter("sent_bytes")]
    pub sent_bytes: u64,
    /// Packets received from the peer.
    #[counter("received_packets")]
    pub received_packets: u64,
    /// Bytes of received packets that were forwarded.
    #[counter("received_bytes")]
    pub received_bytes: u64,
    /// Lost packets recovered from coded packets.
    #[counter("recovered_packets")]
    pub recovered_packets: u64,
    /// Urgent packets that were sent over two paths at once.
    #[counter("duplicated_packets")]
    pub duplicated_packets: u64,
    /// Sent packets that were considered lost at least once.
    pub lost_packets: u64,
    /// Sent packets that were marked to slow down their senders (ECN).
    #[counter("marked_packets")]
    pub marked_packets: u64,
    /// Received packets that were marked because the network had marked their datagram (ECN).
    #[counter("network_marked_packets")]
    pub network_marked_packets: u64,
    /// Bytes sent besides first transmissions, as a share of these.
    #[gauge("redundancy_ratio")]
    pub redundancy_ratio: f64,
    /// Delays and redundancy of the last report interval; none before the first one is over.
    #[metrics]
    pub interval: Option<Interval>,
    /// The counters for the next one.
    #[serde(skip)]
    pub(crate) counted: Counted,
    /// The rate of accepted packets since the last status, in Mb/s.
    pub sent_mbps: f64,
    /// The rate of forwarded packets since the last status, in Mb/s.
    pub received_mbps: f64,
    /// Its paths.
    #[metrics]
    pub paths: Vec<PathStatus>,
    /// Packets and datagrams that were not passed on, by reason; only reasons that occurred.
    #[counter(
        "dropped",
        "reason",
        help = "Packets not forwarded and connections not admitted, by reason"
    )]
    pub dropped: BTreeMap<String, u64>,
}

/// A path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Metrics)]
#[label("path", of = Self::label)]
pub struct PathStatus {
    /// At a client the uplink's interface, at a server the address from which the path was opened.
    pub name: String,
    /// Its number in the session, from 0.
    pub index: usize,
    /// The peer's address.
    pub remote: Option<SocketAddr>,
    /// Whether its packets are carried over TCP, because UDP is blocked.
    #[gauge(
        "path_over_tcp",
        help = "1 if UDP is blocked and the path is one over TCP, 0 otherwise"
    )]
    pub over_tcp: bool,
    /// The cost class.
    pub cost: u8,
    /// Whether the path is on standby: it is used only while the others do not suffice.
    pub standby: bool,
    /// `unproven` before the first acknowledgement, then `delivering`, or `silent` while an
    /// acknowledgement is overdue; `paused` if nothing is overdue any more. None on standby.
    pub liveness: Option<String>,
    /// The smoothed round-trip time, in milliseconds; none before the first acknowledgement.
    #[gauge("path_rtt_seconds", help = "Smoothed round-trip time", of = |ms| ms.map(|ms| ms / 1e3))]
    pub rtt_ms: Option<f64>,
    /// The minimum round-trip time, in milliseconds.
    pub rtt_min_ms: Option<f64>,
    /// The time for which sent packets have not been acknowledged, in milliseconds.
    #[gauge("path_unacknowledged_seconds", help = "Time for which sent packets have not been acknowledged",
        of = |ms| *ms as f64 / 1e3)]
    pub unacknowledged_ms: u64,
    /// Congestion window.
    #[gauge("path_window_bytes")]
    pub window_bytes: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// Bytes of datagrams sent over a path.
    #[counter("path_sent_bytes")]
    pub sent_bytes: u64,
    /// Bytes of datagrams received over a path.
    #[counter("path_received_bytes")]
    pub received_bytes: u64,
    /// Transmissions that were acknowledged.
    pub arrived: u64,
    /// Transmissions over a path that were considered lost.
    #[counter("path_lost")]
    pub lost: u64,
    /// Transmissions of copies and coded packets.
    pub recovery: u64,
    /// Acknowledgements that reported packets marked by the network (ECN).
    #[counter("path_congestion_marks")]
    pub congestion_marks: u64,
    /// The rate sent since the last status, in Mb/s.
    pub sent_mbps: f64,
    /// The rate received since the last status, in Mb/s.
    pub received_mbps: f64,
    /// Transmissions lost since the last status, as a share of those whose outcome became known.
    pub loss_ratio: f64,
}

/// An uplink of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Metrics)]
pub struct UplinkStatus {
    /// The interface, or the pattern of the configuration if no interface matches.
    #[label("uplink")]
    pub name: String,
    /// `connected`, `connecting`, or why it is not connected.
    pub state: String,
    /// Bytes of this month in both directions, if there is a cap.
    pub month_bytes: Option<u64>,
    /// The state of the modem, if ModemManager manages the uplink.
    #[metrics]
    pub modem: Option<ModemStatus>,
}

/// A modem, as ModemManager reports it. Fields are none if ModemManager has no value for them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Metrics)]
pub struct ModemStatus {
    /// Its state in the words of ModemManager, such as `connected` or `searching`.
    pub state: Option<String>,
    /// The name of the network's operator.
    pub operator: Option<String>,
    /// The access technologies in use, such as `lte, 5gnr`.
    pub technology: Option<String>,
    /// The quality of the signal, in percent.
    #[gauge("modem_signal_ratio", help = "Quality of a modem's signal, as ModemManager reports it",
        of = |percent| percent.map(|percent| f64::from(percent) / 100.0))]
    pub signal_percent: Option<u8>,
    /// The access point name of the connection.
    pub apn: Option<String>,
}

impl UplinkStatus {
    pub(crate) fn missing(name: &str) -> UplinkStatus {
        let state = "there is no such interface, or it is down or has no address".to_owned();
        UplinkStatus {
            name: name.to_owned(),
            state,
            month_bytes: None,
            modem: None,
        }
    }
}

impl Status {
    /// Reads a status file.
    pub fn read(path: &Path) -> Result<Self> {
        let status = JsonFile::status(path.to_owned()).read()?;
        status.with_context(|| format!("there is no status file {}", path.display()))
    }

    pub(crate) fn new(common: &Common, role: &str) -> Status {
        Status {
            name: common.name.clone(),
            role: role.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            written_unix_ms: clock::unix_ms(),
            draining: false,
            addresses: Vec::new(),
            sessions: Vec::new(),
            uplinks: Vec::new(),
            memory_bytes: 0,
            tables_restored: 0,
            device_restored: 0,
            deviations: Vec::new(),
            dns: None,
            dns_restored: 0,
            uplink_domains: Vec::new(),
            settings: None,
            rejected_file: None,
            damaged_files: Vec::new(),
            dropped: BTreeMap::new(),
        }
    }

    /// Computes the rates since `earlier`.
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
                let mut paths = before.paths.iter();
                if let Some(before) = paths.find(|before| before.name == path.name) {
                    path.compare(before, mbps);
                }
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
        let stats = report.stats;
        let path = |path| PathStatus::new(path, &stats);
        SessionStatus {
            peer: peer.to_owned(),
            addresses: addresses.to_vec(),
            since_unix_ms: clock::unix_ms_at(since),
            mtu_bytes: report.mtu,
            sent_packets: stats.sender.packets,
            sent_bytes: report.sent_bytes,
            received_packets: stats.receiver.delivered,
            received_bytes: report.received_bytes,
            recovered_packets: stats.receiver.recovered,
            duplicated_packets: stats.sender.duplicated,
            lost_packets: stats.sender.lost,
            marked_packets: stats.sender.marked,
            network_marked_packets: stats.receiver.marked,
            redundancy_ratio: stats.sender.redundancy(),
            interval: None,
            counted: Counted::new(&stats.sender, report.sent_bytes, report.received_bytes),
            sent_mbps: 0.0,
            received_mbps: 0.0,
            paths: report.paths.into_iter().map(path).collect(),
            dropped: dropped(&stats, &report.dropped),
        }
    }
}

/// Returns the packets and datagrams that a session did not pass on, by reason, without reasons
/// that did not occur.
fn dropped(stats: &Stats, dropped: &Dropped) -> BTreeMap<String, u64> {
    let rejected = RejectReason::ALL.map(RejectReason::name);
    let denied = DenyReason::ALL.map(DenyReason::name);
    let others = [
        ("foreign_source", dropped.foreign_source),
        ("path_ended", dropped.path_ended),
        ("memory", dropped.memory),
        ("expired", stats.sender.expired),
        ("overflowed", stats.sender.overflowed),
        ("congested", stats.sender.congested),
        ("given_up", stats.sender.given_up),
        ("undecoded", stats.receiver.undecoded),
        ("decoded_malformed", stats.receiver.decoded_malformed),
    ];
    let rejected = rejected.into_iter().zip(stats.rejected);
    let denied = denied.into_iter().zip(dropped.denied);
    rejected
        .chain(denied)
        .chain(others)
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| (reason.to_owned(), count))
        .collect()
}

impl PathStatus {
    /// Returns the value of the label `path`. At a server it is the path's number, because there is no end to the
    /// addresses and ports from which clients open paths.
    fn label(&self) -> String {
        match self.name.parse::<SocketAddr>() {
            Ok(_) => self.index.to_string(),
            Err(_) => self.name.clone(),
        }
    }

    /// Returns whether an acknowledgement is overdue.
    pub(crate) fn is_silent(&self) -> bool {
        self.liveness.as_deref() == Some(Liveness::Silent.name())
    }

    /// Computes the rates since `earlier`. `mbps` returns the rate from the bytes now and then.
    fn compare(&mut self, earlier: &PathStatus, mbps: impl Fn(u64, u64) -> f64) {
        self.sent_mbps = mbps(self.sent_bytes, earlier.sent_bytes);
        self.received_mbps = mbps(self.received_bytes, earlier.received_bytes);
        let lost = self.lost.saturating_sub(earlier.lost) as f64;
        let known = self.arrived.saturating_sub(earlier.arrived) as f64 + lost;
        self.loss_ratio = if known > 0.0 { lost / known } else { 0.0 };
    }

    fn new(path: PathReport, stats: &Stats) -> PathStatus {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let (figures, counted) = (&path.figures, &stats.sender.paths[path.index]);
        let unacknowledged_ms = figures.unacknowledged.as_millis();
        PathStatus {
            name: path.name,
            index: path.index,
            remote: path.remote,
            over_tcp: path.over_tcp,
            cost: path.cost,
            standby: path.standby,
            liveness: path.liveness.map(|liveness| liveness.name().to_owned()),
            rtt_ms: figures.rtt.map(|rtt| ms(rtt.smoothed)),
            rtt_min_ms: figures.rtt.map(|rtt| ms(rtt.min)),
            unacknowledged_ms: u64::try_from(unacknowledged_ms).unwrap_or(u64::MAX),
            window_bytes: figures.congestion_window.0,
            in_flight_bytes: figures.in_flight.0,
            sent_bytes: path.sent_bytes,
            received_bytes: path.received_bytes,
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

/// Computes those figures of a status that need earlier ones: rates, and the figures of the last
/// report interval.
pub(crate) struct Progress {
    last: Option<Status>,
    reports: Reports,
}

impl Progress {
    pub(crate) fn new(common: &Common) -> Progress {
        Progress {
            last: None,
            reports: Reports::new(common),
        }
    }

    /// Sets the interval of reports in the log; zero for none.
    pub(crate) fn report_every(&mut self, every: Duration) {
        self.reports.set_every(every);
    }

    /// Adds the figures to the status.
    pub(crate) fn complete(&mut self, status: &mut Status) {
        if let Some(last) = &self.last {
            status.compare(last);
        }
        self.reports.add_to(status);
        self.last = Some(status.clone());
    }
}
