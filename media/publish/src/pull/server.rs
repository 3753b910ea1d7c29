use super::mailbox::{Mailbox, TooManyRequests};
use super::transport;
use hawser_codec::pull::{self, PullError, REQUEST_BYTES};
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Maximum number of concurrent viewers. Each has two threads and at most one frame of memory.
const MAX_VIEWERS: usize = 64;
/// A connection that sends no request within this time is closed.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after the process ran out of file descriptors or threads. Viewers that disconnect free
/// theirs.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// The counters of a publisher's viewers.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) viewers: AtomicU64,
    pub(crate) viewers_refused: AtomicU64,
    pub(crate) frames_sent: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) frames_skipped: AtomicU64,
    connected: AtomicUsize,
}

/// Serves frames to every viewer that connects.
pub(crate) struct Server {
    counters: Arc<Counters>,
    is_stopping: Arc<AtomicBool>,
    accepting: JoinHandle<()>,
    new_viewers: Receiver<Viewer>,
    viewers: Vec<Viewer>,
}

struct Viewer {
    session: Arc<Session>,
    thread: JoinHandle<()>,
}

impl Server {
    pub(crate) fn start(listener: TcpListener) -> io::Result<Self> {
        let counters = Arc::new(Counters::default());
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (new_viewers_tx, new_viewers) = mpsc::channel();
        let accepting = thread::Builder::new().name("accept".to_owned()).spawn({
            let (counters, is_stopping) = (Arc::clone(&counters), Arc::clone(&is_stopping));
            move || accept_viewers(&listener, &counters, &is_stopping, &new_viewers_tx)
        })?;
        Ok(Server {
            counters,
            is_stopping,
            accepting,
            new_viewers,
            viewers: Vec::new(),
        })
    }

    /// Offers the frame to every viewer. It replaces an older one that is waiting.
    pub(crate) fn publish(&mut self, frame: Vec<u8>) {
        let frame = Arc::new(frame);
        self.viewers.extend(self.new_viewers.try_iter());
        self.viewers
            .retain(|viewer| viewer.session.mailbox.offer(&frame));
    }

    /// Closes every connection.
    pub(crate) fn finish(self) -> Arc<Counters> {
        self.is_stopping.store(true, Relaxed);
        self.accepting
            .join()
            .expect("the accepting thread does not panic");
        for viewer in self.viewers.into_iter().chain(self.new_viewers.try_iter()) {
            viewer.session.close();
            viewer.thread.join().expect("a session does not panic");
        }
        self.counters
    }
}

fn accept_viewers(
    listener: &TcpListener,
    counters: &Arc<Counters>,
    is_stopping: &AtomicBool,
    new_viewers_tx: &Sender<Viewer>,
) {
    while !is_stopping.load(Relaxed) {
        let admitted = match transport::accept(listener) {
            Ok((_, address)) if counters.connected.load(Relaxed) >= MAX_VIEWERS => {
                counters.viewers_refused.fetch_add(1, Relaxed);
                tracing::warn!(%address, "viewer rejected: {MAX_VIEWERS} viewers are already connected");
                continue;
            }
            Ok((stream, address)) => Session::start(stream, address, counters),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => Err(error.into()),
        };
        match admitted {
            // Sending fails only when the publisher is stopping.
            Ok(viewer) => drop(new_viewers_tx.send(viewer)),
            Err(error) => {
                tracing::warn!("cannot serve a viewer: {error:#}");
                thread::sleep(EXHAUSTED_PAUSE);
            }
        }
    }
}

/// The connection of a viewer.
struct Session {
    stream: TcpStream,
    address: SocketAddr,
    mailbox: Mailbox,
    counters: Arc<Counters>,
}

/// The reason that a viewer's connection is closed by the publisher.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Protocol(#[from] PullError),
    #[error(transparent)]
    TooManyRequests(#[from] TooManyRequests),
    #[error("no request arrived within {FIRST_REQUEST_TIMEOUT:?}")]
    Silent,
}

impl Session {
    fn start(
        stream: TcpStream,
        address: SocketAddr,
        counters: &Arc<Counters>,
    ) -> anyhow::Result<Viewer> {
        transport::configure(&stream)?;
        let counters = Arc::clone(counters);
        let session = Arc::new(Session {
            stream,
            address,
            mailbox: Mailbox::default(),
            counters,
        });
        let thread = thread::Builder::new()
            .name(format!("viewer {address}"))
            .spawn({
                let session = Arc::clone(&session);
                move || session.serve()
            })?;
        Ok(Viewer { session, thread })
    }

    fn serve(&self) {
        let address = self.address;
        self.counters.viewers.fetch_add(1, Relaxed);
        self.counters.connected.fetch_add(1, Relaxed);
        tracing::info!(%address, "viewer connected");
        thread::scope(|scope| {
            let requests = thread::Builder::new().name(format!("requests {address}"));
            match requests.spawn_scoped(scope, || self.read_requests()) {
                Ok(_) => self.write_frames(),
                Err(error) => tracing::warn!(%address, "cannot serve the viewer: {error}"),
            }
            self.close();
        });
        self.counters
            .frames_skipped
            .fetch_add(self.mailbox.skipped(), Relaxed);
        self.counters.connected.fetch_sub(1, Relaxed);
        tracing::info!(%address, skipped = self.mailbox.skipped(), "viewer disconnected");
    }

    fn read_requests(&self) {
        if let Err(refusal) = self.queue_requests() {
            self.counters.viewers_refused.fetch_add(1, Relaxed);
            tracing::warn!(address = %self.address, "viewer rejected: {refusal}");
        }
        self.close();
    }

    fn queue_requests(&self) -> Result<(), Refusal> {
        let mut requests = BufReader::new(&self.stream);
        let mut request = [0; REQUEST_BYTES];
        self.limit_silence(Some(FIRST_REQUEST_TIMEOUT));
        loop {
            match requests.read_exact(&mut request) {
                Ok(()) => pull::parse_request(&request)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Refusal::Silent);
                }
                Err(_) => return Ok(()),
            }
            self.mailbox.request()?;
            self.limit_silence(None);
        }
    }

    fn limit_silence(&self, limit: Option<Duration>) {
        self.stream
            .set_read_timeout(limit)
            .expect("the limit is not zero");
    }

    fn write_frames(&self) {
        while let Some(frame) = self.mailbox.take() {
            if let Err(error) = (&self.stream).write_all(&frame) {
                tracing::debug!(address = %self.address, "cannot send: {error}");
                return;
            }
            self.counters.frames_sent.fetch_add(1, Relaxed);
            self.counters
                .bytes_sent
                .fetch_add(frame.len() as u64, Relaxed);
        }
    }

    /// Closes both directions, which also ends the threads that wait for them.
    fn close(&self) {
        self.mailbox.close();
        // Fails if the viewer has closed the connection already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
