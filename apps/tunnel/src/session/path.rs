use crate::join::{CloseCode, PathNumber};
use crate::quic::RECEIVED_BYTES;
use bytes::Bytes;
use hawser_quic::Live;
use hawser_units::{ByteSize, PathId};
use hawser_xnc::{CODED_OVERHEAD, PathState, Rtt};
use noq::Connection;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

/// Datagrams that a connection is asked for at once.
pub(super) const READ: usize = 64;

/// Wakes a session when an acknowledgement has opened a window, if it wants to know.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    notify: Notify,
    told: AtomicBool,
}

impl Wake {
    pub(crate) async fn wanted(&self) {
        self.notify.notified().await;
    }

    fn wake(&self) {
        if !self.told.swap(true, Ordering::AcqRel) {
            self.notify.notify_one();
        }
    }

    /// From here on it wants to know again.
    pub(crate) fn rest(&self) {
        self.told.store(false, Ordering::Release);
    }
}

/// Who is woken by a connection's acknowledgements, once that is known.
pub(crate) type WakeCell = Arc<OnceLock<Arc<Wake>>>;

/// A connection that is to be a path.
pub(crate) struct Link {
    pub(crate) connection: Connection,
    pub(crate) live: Arc<Live>,
    /// Who is woken by acknowledgements.
    pub(crate) wake: WakeCell,
    /// What people call it.
    pub(crate) name: String,
    /// Its class; higher ones wait.
    pub(crate) cost: u8,
    /// Where it is said that the path waits, to be told to the other end.
    pub(crate) standby: Option<watch::Sender<bool>>,
    /// Bytes that the connection keeps at most until it can send them.
    pub(crate) buffer: ByteSize,
}

impl Link {
    /// Live figures whose owner is told later whom to wake.
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

    pub(super) fn wake_up(&self, wake: Arc<Wake>) {
        // A link becomes a path once.
        let _ = self.wake.set(wake);
    }
}

/// What a connection received.
pub(super) struct Datagrams {
    pub(super) path: PathId,
    pub(super) connection: usize,
    pub(super) datagrams: Vec<Bytes>,
}

/// A connection of the session.
pub(super) struct Path {
    pub(super) id: PathId,
    pub(super) link: Link,
    pub(super) standby: bool,
    pub(super) outgoing: Vec<Bytes>,
    /// Bytes that a datagram may have. It stays, because the size of QUIC's packets is pinned.
    datagram_size: usize,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    reader: JoinHandle<()>,
    /// Whether the reader waits for the session.
    is_behind: Arc<AtomicBool>,
}

impl Path {
    pub(super) fn start(number: PathNumber, link: Link, to: mpsc::Sender<Datagrams>) -> Path {
        let handover = Handover {
            to,
            is_behind: Arc::default(),
        };
        let is_behind = Arc::clone(&handover.is_behind);
        let reader = tokio::spawn(read(number.index, link.connection.clone(), handover));
        Path {
            id: number.index,
            // The peer takes datagrams, as it could not be a tunnel's otherwise; 0 fits nothing.
            datagram_size: link.connection.max_datagram_size().unwrap_or(0),
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

    /// The largest packet that it can carry, coded too.
    pub(super) fn largest_packet(&self) -> u16 {
        u16::try_from(self.datagram_size.saturating_sub(CODED_OVERHEAD)).unwrap_or(u16::MAX)
    }

    pub(super) fn received(&mut self, datagrams: &[Bytes]) {
        self.received_bytes += datagrams
            .iter()
            .map(|datagram| datagram.len() as u64)
            .sum::<u64>();
    }

    /// Where the other end is; it may move.
    pub(super) fn remote(&self) -> Option<SocketAddr> {
        let path = self.link.connection.path(noq::PathId::ZERO)?;
        path.remote_address().ok().map(canonical)
    }

    /// What the connection may have received that nobody has read. It gives no figure, so this is the most: nothing, unless the
    /// session is behind.
    pub(super) fn unread_bytes(&self) -> u64 {
        if self.is_behind.load(Ordering::Relaxed) {
            RECEIVED_BYTES
        } else {
            0
        }
    }

    /// What the connection says about itself.
    pub(super) fn state(&self, now: Instant) -> PathState {
        let connection = &self.link.connection;
        let figures = self.link.live.figures(now);
        let room = connection.datagram_send_buffer_space() as u64;
        let queued = self.link.buffer.0.saturating_sub(room);
        // What is handed over beyond the buffer would drop what is in it.
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

    /// Hands the connection what was decided to be sent over it.
    pub(super) fn flush(&mut self) {
        if self.outgoing.is_empty() {
            return;
        }
        self.sent_bytes += self
            .outgoing
            .iter()
            .map(|datagram| datagram.len() as u64)
            .sum::<u64>();
        // A connection that has just ended loses them; that it did is noticed elsewhere.
        let _ = self.link.connection.send_many_datagrams(&self.outgoing);
        self.outgoing.clear();
    }
}

/// Without the prefix that IPv4 addresses have on sockets of both families.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

async fn read(path: PathId, connection: Connection, handover: Handover) {
    let id = connection.stable_id();
    let mut room = vec![Bytes::new(); READ];
    while let Ok(count) = connection.read_many_datagrams(&mut room).await {
        let datagrams = room[..count].iter_mut().map(std::mem::take).collect();
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

/// Where a reader puts what its connection received.
struct Handover {
    to: mpsc::Sender<Datagrams>,
    is_behind: Arc<AtomicBool>,
}

impl Handover {
    /// Waits until the session has room; meanwhile the connection keeps what it receives.
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
