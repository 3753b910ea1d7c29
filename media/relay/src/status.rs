//! The status of a relay: a file for people and programs.

mod show;

pub use show::{Args, run};

use crate::forward::{Outcomes, Served};
use anyhow::{Context, Result};
use hawser_audience::SubscriberStatus;
use hawser_io::clock;
use hawser_io::json_file::JsonFile;
use hawser_metrics::Metrics;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Counts by reason, without reasons that did not occur.
pub type Counts = BTreeMap<String, u64>;

/// The status file. Counters never decrease while the process runs, and those of a subscriber while
/// its session lasts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Metrics)]
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
    #[counter("packets", "broadcast", "track", "reason", help = "Packets at the kernel's relay, by outcome",
        of = |packets| [("", [("", packets.clone())])])]
    pub packets: Counts,
    /// The broadcasts, in the order of the configuration.
    #[metrics]
    pub broadcasts: Vec<BroadcastStatus>,
}

/// A broadcast.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Metrics)]
pub struct BroadcastStatus {
    /// The name in the configuration.
    #[label("broadcast")]
    pub name: String,
    /// The address for viewers.
    pub listen: SocketAddr,
    /// The address of the publisher, or of the relay before this one; `None` while there is no route to
    /// one.
    pub upstream: Option<SocketAddr>,
    /// Whether the session with it is open.
    #[gauge("open", help = "1 if the session with the publisher is open")]
    pub is_open: bool,
    /// Relays between the publisher and the viewers, with this one.
    #[gauge("relays")]
    pub relays: usize,
    /// Packets that arrived from the publisher.
    ///
    /// Without duplicates.
    #[counter("received_packets")]
    pub received_packets: u64,
    /// Bytes of their UDP payloads.
    #[counter("received_bytes")]
    pub received_bytes: u64,
    /// Those of the received bytes that the network had marked (ECN).
    #[counter("marked_bytes")]
    pub marked_bytes: u64,
    /// Bytes of packets in the cache.
    #[gauge("cached_bytes")]
    pub cached_bytes: u64,
    /// Datagrams that the process sent besides those that the kernel forwards.
    ///
    /// Messages, repeated packets, and packets from before viewers joined.
    #[counter("sent_datagrams")]
    pub sent_datagrams: u64,
    /// Datagrams that the kernel did not send.
    #[counter("send_failures")]
    pub send_failures: u64,
    /// Changes that the kernel did not carry out.
    #[counter("failed_commands")]
    pub failed_commands: u64,
    /// Packets that came through the kernel and were refused, with second copies.
    #[counter("refused_packets")]
    pub refused_packets: u64,
    /// Datagrams that the process refused, by reason.
    #[counter("datagrams_refused", "reason")]
    pub refused: Counts,
    /// The tracks.
    #[metrics]
    pub tracks: Vec<TrackStatus>,
    /// The viewers, and relays behind this one.
    #[gauge("viewers", help = "Viewers at present", of = Vec::len)]
    #[metrics]
    pub subscribers: Vec<Subscriber>,
    /// The clients that are served over MoQ; `None` if none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[metrics]
    pub moq: Option<MoqStatus>,
    /// Its source over MoQ; `None` if it has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[metrics]
    pub from_moq: Option<MoqSourceStatus>,
}

/// The source of a broadcast that is received over Media over QUIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Metrics)]
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
    #[gauge(
        "moq_source_connected",
        help = "1 if there is a session with the MoQ source, or publishers can connect"
    )]
    pub is_connected: bool,
    /// Whether the source has the broadcast.
    #[gauge("moq_source_announced", help = "1 if the MoQ source has the broadcast")]
    pub is_announced: bool,
    /// Attempts to connect to the MoQ source that failed, and sessions that ended.
    #[counter("moq_source_failures")]
    pub failures: u64,
    /// Objects that came from the MoQ source.
    #[counter("moq_source_objects")]
    pub objects: u64,
    /// Their packets.
    #[counter("moq_source_packets")]
    pub packets: u64,
    /// Packets of them that did not get into the relay's socket.
    ///
    /// Viewers may have received them.
    #[counter("moq_source_lost_packets")]
    pub lost_packets: u64,
    /// Objects of the MoQ source that were not taken, by reason.
    #[counter("moq_source_objects_dropped", "reason")]
    pub objects_dropped: Counts,
    /// Catalogs of the MoQ source that were refused, by reason.
    #[counter("moq_source_catalogs_refused", "reason")]
    pub catalogs_refused: Counts,
    /// Connections of MoQ publishers, and datagrams of strangers, that were refused, by reason.
    #[counter("moq_source_refused", "reason")]
    pub refused: Counts,
}

/// A broadcast over Media over QUIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Metrics)]
pub struct MoqStatus {
    /// The address for clients.
    pub listen: SocketAddr,
    /// The name under which the broadcast is announced.
    pub name: String,
    /// The SHA-256 digest of the certificate, hexadecimal.
    pub certificate_sha256: String,
    /// MoQ clients at present.
    #[gauge("moq_clients")]
    pub clients: u64,
    /// Objects that MoQ clients could take.
    #[counter("moq_objects")]
    pub objects: u64,
    /// Objects that MoQ clients could not take, by reason.
    #[counter("moq_objects_dropped", "reason")]
    pub objects_dropped: Counts,
    /// Bytes of objects kept for MoQ clients.
    #[gauge("moq_cached_bytes")]
    pub cached_bytes: u64,
    /// Groups that MoQ clients were to be sent.
    #[counter("moq_offered_groups")]
    pub offered_groups: u64,
    /// Groups that were sent to their end.
    #[counter("moq_sent_groups")]
    pub sent_groups: u64,
    /// Groups that a MoQ client was not sent, or not to their end, by reason.
    #[counter("moq_groups_dropped", "reason")]
    pub groups_dropped: Counts,
    /// Connections of MoQ clients that were refused, by reason.
    #[counter("moq_connections_refused", "reason")]
    pub refused: Counts,
}

/// A track.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Metrics)]
pub struct TrackStatus {
    /// The alias.
    #[label("track")]
    pub alias: u32,
    /// Its packets in the kernel, by outcome.
    #[counter(
        "packets",
        "reason",
        help = "Packets at the kernel's relay, by outcome"
    )]
    pub packets: Counts,
}

/// A viewer, or a relay behind this one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Metrics)]
pub struct Subscriber {
    /// The session.
    pub session: u32,
    /// The address.
    #[label("viewer")]
    pub address: SocketAddr,
    /// The rate at which it can be served, with all headers, in Mb/s; `None` while nothing is heard of
    /// it.
    #[gauge("viewer_rate_bits_per_second", help = "Rate at which a viewer can be served, with all headers",
        of = |mbps| mbps.unwrap_or(0.0) * 1e6)]
    pub rate_mbps: Option<f64>,
    /// The smoothed round trip, in milliseconds.
    #[gauge("viewer_rtt_seconds", help = "Smoothed round-trip time", of = |ms| ms.map(|ms| ms / 1e3))]
    pub rtt_ms: Option<f64>,
    /// Number of the encoding that a viewer is sent; 0 is the best.
    ///
    /// It holds for every source, among the encodings that the viewer has selected.
    #[serde(default)]
    #[gauge("viewer_encoding")]
    pub encoding: usize,
    /// Packets that the kernel sent to a viewer.
    #[counter("viewer_sent_packets")]
    pub sent_packets: u64,
    /// Packets that it reported as received.
    pub received_packets: u64,
    /// Bytes of UDP payloads that a viewer reported as received.
    #[counter("viewer_received_bytes")]
    pub received_bytes: u64,
    /// Those of the received bytes that the network had marked (ECN).
    #[counter("viewer_marked_bytes")]
    pub marked_bytes: u64,
    /// Packets that were lost on the way to a viewer.
    #[counter("viewer_lost_packets")]
    pub lost: u64,
    /// Packets that were sent to a viewer again.
    #[counter("viewer_repeated_packets")]
    pub repeated: u64,
    /// Packets from before a viewer joined that it was sent from the cache.
    #[counter("viewer_earlier_packets")]
    pub earlier: u64,
    /// Layers of frames, by what was decided on them for a viewer.
    #[counter("viewer_objects", "reason")]
    pub objects: Counts,
    /// Packets that the kernel could not send to a viewer, by reason.
    #[counter("viewer_packets_not_sent", "reason")]
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
