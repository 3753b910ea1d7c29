use super::path::Path;
use super::{Dropped, Session};
use crate::time;
use hawser_quic::Figures;
use hawser_xnc::{Liveness, Stats};
use noq::Connection;
use std::net::SocketAddr;
use std::time::Instant;

/// The state of a session. Counters never decrease.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) paths: Vec<PathReport>,
    pub(crate) stats: Stats,
    pub(crate) dropped: Dropped,
    /// Packets that wait for a path.
    pub(crate) waiting: usize,
    /// Bytes of packets read from the device.
    pub(crate) sent_bytes: u64,
    /// Bytes of packets written to the device.
    pub(crate) received_bytes: u64,
    /// The largest packet that fits all paths, in bytes; 0 before the first path.
    pub(crate) mtu: u16,
}

/// The state of a path.
#[derive(Debug, Clone)]
pub(crate) struct PathReport {
    pub(crate) name: String,
    /// The path's index in `stats`.
    pub(crate) index: usize,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) over_tcp: bool,
    pub(crate) cost: u8,
    pub(crate) standby: bool,
    /// Whether it delivers, according to the endpoint's last event; `None` on standby.
    pub(crate) liveness: Option<Liveness>,
    pub(crate) figures: Figures,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// The connection's stable ID, and the bytes that it has sent and received including IP and UDP
    /// headers.
    pub(crate) connection: usize,
    pub(crate) outer_bytes: u64,
}

/// The size of the IP and UDP headers over IPv6, in bytes.
const HEADERS: u64 = 48;

impl Session {
    pub(super) fn report(&self) -> Report {
        let now = Instant::now();
        let paths = self.paths.iter().flatten();
        Report {
            paths: paths.map(|path| self.path_report(path, now)).collect(),
            stats: self.endpoint.stats(),
            dropped: self.dropped,
            waiting: self.endpoint.waiting(),
            sent_bytes: self.sent_bytes,
            received_bytes: self.received_bytes,
            mtu: self.mtu,
        }
    }

    fn path_report(&self, path: &Path, now: Instant) -> PathReport {
        PathReport {
            name: path.link.name.clone(),
            index: path.id.index(),
            remote: path.remote(),
            over_tcp: path.link.over_tcp,
            cost: path.link.cost,
            standby: path.standby,
            liveness: self.endpoint.liveness(time::now(), path.id),
            figures: path.link.live.figures(now),
            sent_bytes: path.sent_bytes,
            received_bytes: path.received_bytes,
            connection: path.link.connection.stable_id(),
            outer_bytes: outer_bytes(&path.link.connection),
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
