use super::{Dropped, Session};
use hawser_quic::Figures;
use hawser_xnc::Stats;
use noq::Connection;
use std::net::SocketAddr;
use std::time::Instant;

/// How a session is at one moment. Counters never go down.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) paths: Vec<PathReport>,
    pub(crate) stats: Stats,
    pub(crate) dropped: Dropped,
    /// Packets that wait for a path.
    pub(crate) waiting: usize,
    /// Bytes of packets that were taken from the device.
    pub(crate) sent_bytes: u64,
    /// Bytes of packets that were handed to the device.
    pub(crate) received_bytes: u64,
    /// The largest packet that fits all paths, bytes; 0 before there was one.
    pub(crate) mtu: u16,
}

/// How a path is.
#[derive(Debug, Clone)]
pub(crate) struct PathReport {
    pub(crate) name: String,
    /// Its index in `stats`.
    pub(crate) index: usize,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) cost: u8,
    pub(crate) standby: bool,
    pub(crate) figures: Figures,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// The connection, whose bytes with those of IP and UDP were so many.
    pub(crate) connection: usize,
    pub(crate) outer_bytes: u64,
}

/// Bytes of IP and UDP around each payload, over IPv6.
const HEADERS: u64 = 48;

impl Session {
    pub(super) fn report(&self) -> Report {
        let now = Instant::now();
        let paths = self.paths.iter().flatten().map(|path| PathReport {
            name: path.link.name.clone(),
            index: path.id.index(),
            remote: path.remote(),
            cost: path.link.cost,
            standby: path.standby,
            figures: path.link.live.figures(now),
            sent_bytes: path.sent_bytes,
            received_bytes: path.received_bytes,
            connection: path.link.connection.stable_id(),
            outer_bytes: outer_bytes(&path.link.connection),
        });
        Report {
            paths: paths.collect(),
            stats: self.endpoint.stats(),
            dropped: self.dropped,
            waiting: self.endpoint.waiting(),
            sent_bytes: self.sent_bytes,
            received_bytes: self.received_bytes,
            mtu: self.mtu,
        }
    }
}

fn outer_bytes(connection: &Connection) -> u64 {
    let stats = connection.stats();
    let udp = [stats.udp_tx, stats.udp_rx];
    udp.iter()
        .map(|udp| udp.bytes + udp.datagrams * HEADERS)
        .sum()
}
