use crate::join::{CloseCode, PathNumber};
use crate::quic::{DATAGRAM_OVERHEAD, RECEIVED_BYTES};
use bytes::Bytes;
use hawser_quic::{Live, Received};
use hawser_units::{ByteSize, Instant, PathId};
use hawser_xnc::{CODED_OVERHEAD, MarkShare, PathState, Rtt};
use noq::Connection;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

/// The largest number of datagrams read from a connection at once.
pub(super) const READ_BATCH: usize = 64;

/// Wakes a session when an acknowledgement has opened a congestion window, at most once until it is
/// rearmed.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    notify: Notify,
    is_notified: AtomicBool,
}

impl Wake {
    pub(crate) async fn notified(&self) {
        self.notify.notified().await;
    }

    fn wake(&self) {
        if !self.is_notified.swap(true, Ordering::AcqRel) {
            self.notify.notify_one();
        }
    }

    /// Allows the next wake-up.
    pub(crate) fn rearm(&self) {
        self.is_notified.store(false, Ordering::Release);
    }
}

/// The session to wake for a connection's acknowledgements, set when the connection becomes a path.
pub(crate) type WakeCell = Arc<OnceLock<Arc<Wake>>>;

/// A connection that is about to become a path.
pub(crate) struct Link {
    pub(crate) connection: Connection,
    pub(crate) live: Arc<Live>,
    /// The bytes that the connection received, and those that the network has marked.
    pub(crate) received: Arc<Received>,
    /// The session to wake for acknowledgements.
    pub(crate) wake: WakeCell,
    /// The name shown to people.
    pub(crate) name: String,
    /// Whether its packets are carried by a stream over TCP.
    pub(crate) over_tcp: bool,
    /// Its cost class; paths of higher classes are on standby.
    pub(crate) cost: u8,
    /// Receives changes of the path's standby state, to be sent to the peer.
    pub(crate) standby: Option<watch::Sender<bool>>,
    /// The size of the connection's send buffer.
    pub(crate) buffer: ByteSize,
    /// The size of UDP payloads, in bytes, above which none arrives any more.
    pub(crate) narrowed: watch::Sender<Option<u16>>,
}

impl Link {
    /// Returns live figures of a connection, and the cell for the session to wake.
    pub(crate) fn live() -> (Arc<Live>, WakeCell) {
        let wake: WakeCell = Arc::default();
        let woken = Arc::clone(&wake);
        let live = Live::new(move || {
            if let Some(wake) = woken.get() {
                wake.wake();
            }
        });
        (Arc::new(live), wake)
    }

    pub(super) fn set_wake(&self, wake: Arc<Wake>) {
        // A link becomes a path only once.
        let _ = self.wake.set(wake);
    }
}

/// Datagrams received by a connection.
pub(super) struct Datagrams {
    pub(super) path: PathId,
    pub(super) connection: usize,
    pub(super) datagrams: Vec<Datagram>,
}

pub(super) struct Datagram {
    pub(super) bytes: Bytes,
    /// Whether it counts as marked by the network (ECN).
    pub(super) is_marked: bool,
}

/// The marks of the datagrams of a connection.
struct Marks {
    received: Arc<Received>,
    /// The bytes of packets, and of marked ones, when they were last looked at.
    seen: (u64, u64),
    share: MarkShare,
}

/// A path of the session.
pub(super) struct Path {
    pub(super) id: PathId,
    pub(super) link: Link,
    pub(super) standby: bool,
    pub(super) outgoing: Vec<Bytes>,
    /// The largest datagram of the connection, in bytes. It is constant, because the size of QUIC
    /// packets is pinned: some carry several smaller datagrams.
    connection_size: usize,
    /// The largest datagram in use, which is smaller while larger ones do not arrive.
    datagram_size: usize,
    /// When larger ones are tried again.
    widen_at: Option<Instant>,
    /// The peer's address when they did not arrive.
    narrow_remote: Option<SocketAddr>,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    reader: JoinHandle<()>,
    /// Whether the reader is waiting for the session.
    is_behind: Arc<AtomicBool>,
}

impl Path {
    pub(super) fn start(number: PathNumber, link: Link, to: mpsc::Sender<Datagrams>) -> Path {
        let handover = Handover {
            to,
            is_behind: Arc::default(),
        };
        let is_behind = Arc::clone(&handover.is_behind);
        let marks = Marks::new(Arc::clone(&link.received));
        let connection = link.connection.clone();
        let reader = tokio::spawn(read(number.index, connection, marks, handover));
        // The peer supports datagrams, since the handshake checks it; 0 means that nothing fits.
        let size = link.connection.max_datagram_size().unwrap_or(0);
        Path {
            id: number.index,
            connection_size: size,
            datagram_size: size,
            widen_at: None,
            narrow_remote: None,
            link,
            standby: number.standby,
            outgoing: Vec::new(),
            sent_bytes: 0,
            received_bytes: 0,
            reader,
            is_behind,
        }
    }

    pub(super) fn is(&self, connection: usize) -> bool {
        self.link.connection.stable_id() == connection
    }

    pub(super) fn end(self, code: Option<CloseCode>) {
        self.reader.abort();
        if let Some(code) = code {
            code.close(&self.link.connection);
        }
    }

    /// Uses smaller datagrams for a time if larger packets do not arrive, and says so to the end that
    /// makes connections; returns whether that is so.
    pub(super) fn narrow(&mut self, now: Instant, time: Duration) -> bool {
        let Some(payload) = self.link.live.narrowed() else {
            return false;
        };
        self.link.live.use_payload(Some(payload));
        self.link.narrowed.send_replace(Some(payload));
        let size = usize::from(payload).saturating_sub(DATAGRAM_OVERHEAD);
        self.datagram_size = size.min(self.connection_size);
        self.widen_at = Some(now + time);
        self.narrow_remote = self.remote();
        warn!(
            path = self.link.name,
            mtu_bytes = self.largest_packet(),
            "large packets do not arrive, small ones do: using smaller ones, because a hop has become narrower"
        );
        true
    }

    /// Has larger datagrams tried again at `at`, if smaller ones are in use.
    pub(super) fn widen_at(&mut self, at: Instant) {
        self.widen_at = self.widen_at.and(Some(at));
    }

    /// Tries the connection's largest datagrams again if it is time, or if the peer has moved to
    /// another network; returns whether that is so.
    pub(super) fn widen(&mut self, now: Instant) -> bool {
        if self.widen_at.is_some() && self.remote() != self.narrow_remote {
            self.widen_at = Some(now);
        }
        let is_due = self.widen_at.take_if(|at| *at <= now).is_some();
        if is_due {
            self.datagram_size = self.connection_size;
            self.link.live.use_payload(None);
            info!(path = self.link.name, "trying large packets again");
        }
        is_due
    }

    /// Returns the largest packet that the path can carry, also as a coded packet, in bytes.
    pub(super) fn largest_packet(&self) -> u16 {
        u16::try_from(self.datagram_size.saturating_sub(CODED_OVERHEAD)).unwrap_or(u16::MAX)
    }

    pub(super) fn received(&mut self, datagrams: &[Datagram]) {
        self.received_bytes += datagrams
            .iter()
            .map(|datagram| datagram.bytes.len() as u64)
            .sum::<u64>();
    }

    /// Returns the peer's current address; it may migrate.
    pub(super) fn remote(&self) -> Option<SocketAddr> {
        let path = self.link.connection.path(noq::PathId::ZERO)?;
        path.remote_address().ok().map(canonical)
    }

    /// Returns an upper bound of the bytes that the connection has received and the session has not
    /// read. The library gives no figure; a reader that does not wait leaves nothing unread.
    pub(super) fn unread_bytes(&self) -> u64 {
        if self.is_behind.load(Ordering::Relaxed) {
            RECEIVED_BYTES
        } else {
            0
        }
    }

    /// Returns the state of the connection's congestion control and buffers.
    pub(super) fn state(&self, now: std::time::Instant) -> PathState {
        let connection = &self.link.connection;
        let figures = self.link.live.figures(now);
        let room = connection.datagram_send_buffer_space() as u64;
        let queued = self.link.buffer.0.saturating_sub(room);
        // Handing over more than the buffer holds would drop datagrams that are already in it.
        let most = figures.in_flight.0 + queued + room;
        PathState {
            congestion_window: ByteSize(figures.congestion_window.0.min(most)),
            in_flight: figures.in_flight,
            queued: ByteSize(queued),
            rtt: figures.rtt.map_or(Rtt::default(), |rtt| Rtt {
                smoothed: rtt.smoothed,
                variation: rtt.variation,
                latest: rtt.latest,
                min: rtt.min,
            }),
            datagram_size: self.datagram_size,
        }
    }

    /// Hands the queued datagrams to the connection.
    pub(super) fn flush(&mut self) {
        if self.outgoing.is_empty() {
            return;
        }
        self.sent_bytes += self
            .outgoing
            .iter()
            .map(|datagram| datagram.len() as u64)
            .sum::<u64>();
        // Datagrams are lost if the connection has just closed, which is handled elsewhere.
        let _ = self.link.connection.send_many_datagrams(&self.outgoing);
        self.outgoing.clear();
    }
}

/// Converts an IPv4-mapped IPv6 address, as dual-stack sockets report it, to IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl Marks {
    fn new(received: Arc<Received>) -> Marks {
        Marks {
            received,
            seen: (0, 0),
            share: MarkShare::default(),
        }
    }

    /// Decides which datagrams of a batch are marked. A batch that is not full has all datagrams
    /// that the connection had.
    fn mark(&mut self, batch: &mut [Bytes]) -> Vec<Datagram> {
        let (bytes, marked) = self.received.totals();
        self.share
            .handle_packets(bytes - self.seen.0, marked - self.seen.1);
        self.seen = (bytes, marked);
        let with_mark = |bytes: &mut Bytes| Datagram {
            is_marked: self.share.next(bytes.len()),
            bytes: std::mem::take(bytes),
        };
        let datagrams = batch.iter_mut().map(with_mark).collect();
        if batch.len() < READ_BATCH {
            self.share.handle_end();
        }
        datagrams
    }
}

async fn read(path: PathId, connection: Connection, mut marks: Marks, handover: Handover) {
    let id = connection.stable_id();
    let mut room = vec![Bytes::new(); READ_BATCH];
    while let Ok(count) = connection.read_many_datagrams(&mut room).await {
        let datagrams = marks.mark(&mut room[..count]);
        if handover
            .send(Datagrams {
                path,
                connection: id,
                datagrams,
            })
            .await
            .is_err()
        {
            return;
        }
    }
}

/// The queue of received datagrams from a reader to its session.
struct Handover {
    to: mpsc::Sender<Datagrams>,
    is_behind: Arc<AtomicBool>,
}

impl Handover {
    /// Waits until the session has room. In the meantime the connection buffers what it receives.
    async fn send(&self, batch: Datagrams) -> Result<(), mpsc::error::SendError<Datagrams>> {
        self.is_behind
            .store(self.to.capacity() == 0, Ordering::Relaxed);
        let sent = self.to.send(batch).await;
        self.is_behind.store(false, Ordering::Relaxed);
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_says_that_its_session_is_behind_as_long_as_it_is() {
        let path = PathId::all().next().unwrap();
        let batch = move || Datagrams {
            path,
            connection: 1,
            datagrams: Vec::new(),
        };
        let (to, mut session) = mpsc::channel(1);
        let is_behind = Arc::new(AtomicBool::new(false));
        let handover = Handover {
            to,
            is_behind: Arc::clone(&is_behind),
        };
        handover.send(batch()).await.unwrap();
        assert!(!is_behind.load(Ordering::Relaxed), "there was room");
        let waits = tokio::spawn(async move { handover.send(batch()).await });
        while !is_behind.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
        session.recv().await.unwrap();
        waits.await.unwrap().unwrap();
        assert!(!is_behind.load(Ordering::Relaxed), "there is room again");
    }
}
