//! The status of a relay: a file for people and programs.

mod show;

pub use show::{Args, run};

use crate::forward::{Outcomes, Served};
use anyhow::{Context, Result};
use hawser_audience::SubscriberStatus;
use hawser_io::clock;
use hawser_io::json_file::JsonFile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Counts by reason, without reasons that did not occur.
pub type Counts = BTreeMap<String, u64>;

/// The status file. Counters never decrease while the process runs, and those of a subscriber while
/// its session lasts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The name in the configuration.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// The process ID.
    pub pid: u32,
    /// When the status was written, in milliseconds since 1970.
    pub written_unix_ms: u64,
    /// Packets that belong to no track, by outcome.
    pub packets: Counts,
    /// The broadcasts, in the order of the configuration.
    pub broadcasts: Vec<BroadcastStatus>,
}

/// A broadcast.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BroadcastStatus {
    /// The name in the configuration.
    pub name: String,
    /// The address for viewers.
    pub listen: SocketAddr,
    /// The address of the publisher, or of the relay before this one; `None` while there is no route to
    /// one.
    pub upstream: Option<SocketAddr>,
    /// Whether the session with it is open.
    pub is_open: bool,
    /// The number of relays between the publisher and the viewers of this one, including it.
    pub relays: usize,
    /// Packets that arrived, without duplicates.
    pub received_packets: u64,
    /// Their bytes of UDP payload.
    pub received_bytes: u64,
    /// The number of these bytes that carried a mark of the network (ECN).
    pub marked_bytes: u64,
    /// Bytes of packets in the cache.
    pub cached_bytes: u64,
    /// Datagrams that this process sent: messages, repeated packets, and packets from before viewers
    /// joined.
    pub sent_datagrams: u64,
    /// Datagrams that the kernel did not send.
    pub send_failures: u64,
    /// Commands that the kernel refused.
    pub failed_commands: u64,
    /// Packets that the kernel passed and this process refused, including duplicates.
    pub refused_packets: u64,
    /// Datagrams of viewers that were refused, by reason.
    pub refused: Counts,
    /// The tracks.
    pub tracks: Vec<TrackStatus>,
    /// The viewers, and relays behind this one.
    pub subscribers: Vec<Subscriber>,
    /// The clients that are served over MoQ; `None` if none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moq: Option<MoqStatus>,
    /// Its source over MoQ; `None` if it has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_moq: Option<MoqSourceStatus>,
}

/// The source of a broadcast that is received over Media over QUIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoqSourceStatus {
    /// The name of the broadcast there.
    pub name: String,
    /// The URL of the server, without its query; `None` if publishers connect.
    pub url: Option<String>,
    /// The address at which publishers connect.
    pub listen: Option<SocketAddr>,
    /// The SHA-256 digest of the certificate that publishers see, hexadecimal.
    pub certificate_sha256: Option<String>,
    /// Whether there is a session with the server; true where publishers connect.
    pub is_connected: bool,
    /// Whether the source has the broadcast.
    pub is_announced: bool,
    /// Attempts to connect that failed, and sessions that ended.
    pub failures: u64,
    /// Objects that arrived.
    pub objects: u64,
    /// Their packets.
    pub packets: u64,
    /// Packets that did not reach the relay's socket. Viewers may have received them.
    pub lost_packets: u64,
    /// Objects that were refused, by reason.
    pub objects_dropped: Counts,
    /// Catalogs that were refused, by reason.
    pub catalogs_refused: Counts,
    /// Refused connections of publishers and refused datagrams of other senders, by reason.
    pub refused: Counts,
}

/// A broadcast over Media over QUIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoqStatus {
    /// The address for clients.
    pub listen: SocketAddr,
    /// The name under which the broadcast is announced.
    pub name: String,
    /// The SHA-256 digest of the certificate, hexadecimal.
    pub certificate_sha256: String,
    /// Clients at present.
    pub clients: u64,
    /// Objects that were offered to clients.
    pub objects: u64,
    /// Objects that were not offered to them, by reason.
    pub objects_dropped: Counts,
    /// Bytes of objects that are kept for them.
    pub cached_bytes: u64,
    /// Groups that were offered to clients.
    pub offered_groups: u64,
    /// Groups that were sent to their end.
    pub sent_groups: u64,
    /// Groups that a client was not sent completely, by reason.
    pub groups_dropped: Counts,
    /// Connections that were refused, by reason.
    pub refused: Counts,
}

/// A track.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrackStatus {
    /// The alias.
    pub alias: u32,
    /// Its packets in the kernel, by outcome.
    pub packets: Counts,
}

/// A viewer, or a relay behind this one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Subscriber {
    /// The session.
    pub session: u32,
    /// The address.
    pub address: SocketAddr,
    /// The rate at which it can be served, with all headers, in Mb/s; `None` while nothing is heard of
    /// it.
    pub rate_mbps: Option<f64>,
    /// The smoothed round trip, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// The number of the encoding that it is sent of each source. The best that it has selected is number 0.
    #[serde(default)]
    pub encoding: usize,
    /// Packets that the kernel sent.
    pub sent_packets: u64,
    /// Packets that it reported as received.
    pub received_packets: u64,
    /// Their bytes of UDP payload.
    pub received_bytes: u64,
    /// The number of these bytes that carried a mark of the network (ECN).
    pub marked_bytes: u64,
    /// Packets to it that were lost.
    pub lost: u64,
    /// Packets that were sent again.
    pub repeated: u64,
    /// Packets of before it joined that were sent from the cache.
    pub earlier: u64,
    /// Objects, by what was decided on them.
    pub objects: Counts,
    /// Packets of objects that it is served, which the kernel did not send, by reason.
    pub not_sent: Counts,
}

impl Status {
    /// Reads a status file.
    ///
    /// # Errors
    /// If there is none, or it is not valid.
    pub fn read(path: &Path) -> Result<Self> {
        let status = JsonFile::status(path.to_owned()).read()?;
        status.with_context(|| format!("there is no status file {}", path.display()))
    }

    pub(crate) fn new(name: &str, outcomes: Outcomes, broadcasts: Vec<BroadcastStatus>) -> Self {
        Status {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            written_unix_ms: clock::unix_ms(),
            packets: counts(outcomes),
            broadcasts,
        }
    }
}

impl Subscriber {
    pub(crate) fn new(status: &SubscriberStatus, served: Served) -> Self {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Subscriber {
            session: status.session,
            address: status.address,
            rate_mbps: status.rate.map(|rate| rate.bps() as f64 / 1e6),
            rtt_ms: status.round_trip.map(ms),
            encoding: status.encoding,
            sent_packets: served.packets,
            received_packets: status.received.packets,
            received_bytes: status.received.bytes,
            marked_bytes: status.received.ce_bytes,
            lost: status.stats.lost,
            repeated: status.stats.repeated,
            earlier: status.stats.earlier,
            objects: counts(served.objects),
            not_sent: counts(served.not_sent),
        }
    }
}

/// Returns what occurred.
pub(crate) fn counts(outcomes: impl IntoIterator<Item = (&'static str, u64)>) -> Counts {
    let occurred = outcomes.into_iter().filter(|(_, count)| *count > 0);
    occurred
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}
