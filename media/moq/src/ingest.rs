//! Receives a broadcast from another server of MoQ, or from a publisher that connects, and sends its packets to
//! the relay as a publisher's host does.

mod client;
mod feed;
mod source;

pub use client::{InvalidUrl, SourceUrl};

use crate::admission::{ServerStats, Shared as ServerShared};
use crate::certificate::SOURCE_WINDOW;
use crate::server::{Config, Listener, OpenError};
use crate::trust::Trust;
use feed::{Feed, FeedConfig, FeedStats, ObjectError};
use hawser_objects::{AccessSecret, Seed};
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_packets::session::Goodbye;
use hawser_units::Instant;
use moq_net::{Path, Pattern, Patterns, cache, origin};
use parking_lot::Mutex;
use source::{Source, SourceStats, Taken};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io, thread};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, sleep_until, timeout};

/// The settings of an [`Ingest`].
#[derive(Debug)]
pub struct IngestConfig {
    /// The source of the broadcast.
    pub from: IngestSource,
    /// The secret that sessions of the broadcast are opened with.
    pub access: AccessSecret,
    /// Random bytes from which hop keys are derived, new for each start.
    pub hop_salt: [u8; 16],
    /// Random bytes for cookies and sessions.
    pub seed: Seed,
}

/// The source of a broadcast.
#[derive(Debug)]
pub enum IngestSource {
    /// A server, of which it is requested.
    Server {
        /// Where it is.
        url: SourceUrl,
        /// The name of the broadcast there.
        name: String,
        /// How its certificate is verified.
        trust: Trust,
    },
    /// A publisher that connects.
    Publisher(Config),
}

/// A broadcast that is received over MoQ, at the address of a publisher's host. It ends when it is dropped.
pub struct Ingest {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<(SocketAddr, Arc<ServerShared>)>,
    access: watch::Sender<AccessSecret>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Counts of an [`Ingest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IngestStats {
    /// Whether there is a session with the source.
    pub is_connected: bool,
    /// Whether the source has the broadcast.
    pub is_announced: bool,
    /// Attempts to connect to the source that failed, and sessions that ended.
    pub failures: u64,
    /// Objects that were sent to the relay.
    pub objects: u64,
    /// Their packets.
    pub packets: u64,
    /// Packets that did not reach the relay's socket.
    pub lost_packets: u64,
    /// Datagrams of other senders than the relay.
    pub refused_datagrams: u64,
    /// Catalogs that were not valid.
    pub catalog_invalid: u64,
    /// Catalogs with a wrong authenticator.
    pub catalog_forged: u64,
    /// Catalogs that were too long.
    pub catalog_too_long: u64,
    /// Objects that are no valid sequence of the packets of one object.
    pub invalid: u64,
    /// Objects of another track than the one in which they arrived.
    pub wrong_track: u64,
    /// Objects, or packets of objects, that were too long.
    pub too_long: u64,
    /// Objects that were not received completely.
    pub incomplete: u64,
    /// Groups that were given up because too many of their track were open.
    pub too_many: u64,
    /// Objects that waited too long for the relay's session, or for the catalog of their publisher.
    pub late: u64,
    /// Objects for which there was no room.
    pub full: u64,
    /// Objects of a publisher that has restarted.
    pub stale: u64,
}

#[derive(Default)]
struct Shared {
    stats: Mutex<IngestStats>,
    source: Arc<Mutex<SourceStats>>,
}

/// The bytes of objects that are kept until they are read.
const CACHE: u64 = 32 << 20;

/// The maximum number of objects in the queue of their reader.
const TAKEN: usize = 64;

/// The pause before the first attempts to connect again, and the longest one.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// The time after which a session counts as established.
const LASTING: Duration = Duration::from_secs(5);

/// The time within which the relay is told that the ingest ends.
const CLOSING: Duration = Duration::from_millis(100);

impl Ingest {
    /// Opens a socket on the loopback interface, at which the relay requests the broadcast, and starts a
    /// thread.
    ///
    /// # Errors
    /// If there is no socket or thread, or publishers cannot be listened for.
    pub fn open(config: IngestConfig) -> Result<Self, OpenError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(OpenError::Thread)?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let entered = runtime.enter();
        let socket = std::net::UdpSocket::bind(any)
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .and_then(UdpSocket::from_std);
        let socket = socket.map_err(|error| OpenError::Address(any, error))?;
        let address = socket.local_addr();
        let address = address.map_err(|error| OpenError::Address(any, error))?;
        let (origin, driver) = origin();
        let (input, listener) = match config.from {
            IngestSource::Server { url, name, trust } => (Input::Server { url, name, trust }, None),
            IngestSource::Publisher(config) => {
                let name = config.name.clone();
                let pool = origin.config().pool;
                let sessions = moq_net::Server::new().with_subscriber(scoped(&origin, &name)?);
                let listener = Listener::open(config, sessions, pool, SOURCE_WINDOW)?;
                let shared = (listener.local, listener.shared());
                (
                    Input::Publisher {
                        listener,
                        origin,
                        name,
                    },
                    Some(shared),
                )
            }
        };
        drop(entered);
        let shared = Arc::new(Shared::default());
        let (access, changed) = watch::channel(config.access);
        let (stop, stopped) = oneshot::channel();
        let feed = Feed::new(FeedConfig {
            hop_salt: config.hop_salt,
            seed: config.seed,
        });
        let (taken, further) = mpsc::channel(TAKEN);
        let reader = Reader {
            access: changed.clone(),
            taken,
            shared: Arc::clone(&shared),
        };
        let relay = Local {
            socket,
            feed,
            access: changed,
            started: std::time::Instant::now(),
            shared: Arc::clone(&shared),
        };
        let thread = thread::Builder::new()
            .name("moq-ingest".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    tokio::spawn(moq_net::time::run(driver));
                    tokio::spawn(input.take(reader));
                    relay.run(further, stopped).await;
                });
            })
            .map_err(OpenError::Thread)?;
        Ok(Ingest {
            address,
            shared,
            listener,
            access,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the address at which the relay requests the broadcast.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address at which publishers connect, if they do.
    pub fn listens_at(&self) -> Option<SocketAddr> {
        self.listener.as_ref().map(|(address, _)| *address)
    }

    /// Returns the fingerprint of the certificate that publishers see.
    pub fn fingerprint(&self) -> Option<String> {
        self.listener
            .as_ref()
            .map(|(_, shared)| shared.fingerprint())
    }

    /// Returns the counts of publishers' connections.
    pub fn server_stats(&self) -> Option<ServerStats> {
        self.listener.as_ref().map(|(_, shared)| shared.stats())
    }

    /// Goes on under another secret.
    pub fn set_access(&self, access: AccessSecret) {
        self.access.send_replace(access);
    }

    /// Returns the counts.
    pub fn stats(&self) -> IngestStats {
        let source = *self.shared.source.lock();
        let mut stats = *self.shared.stats.lock();
        stats.catalog_invalid = source.catalog_invalid;
        stats.catalog_forged = source.catalog_forged;
        stats.catalog_too_long = source.catalog_too_long;
        stats.too_long += source.too_long;
        stats.incomplete = source.incomplete;
        stats.too_many = source.too_many;
        stats
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Ingest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ingest")
            .field("address", &self.address)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Returns an origin whose groups are kept for a short time.
fn origin() -> (origin::Producer, origin::Driver) {
    let pool = cache::Config::default()
        .with_capacity(CACHE)
        .with_expiry(Duration::from_secs(2));
    let mut config = origin::Config::default();
    config.pool = cache::Pool::new(pool);
    origin::Producer::new(config)
}

/// Returns an origin in which a peer can have one broadcast only.
fn scoped(origin: &origin::Producer, name: &str) -> Result<origin::Producer, OpenError> {
    let invalid = || OpenError::Name(name.to_owned());
    let pattern = Pattern::literal(name).map_err(|_| invalid())?;
    let scoped = origin.scope("", &Patterns::from(pattern));
    scoped.map_err(|_| invalid())
}

/// The source of a broadcast, with its resources.
enum Input {
    Server {
        url: SourceUrl,
        name: String,
        trust: Trust,
    },
    Publisher {
        listener: Listener,
        origin: origin::Producer,
        name: String,
    },
}

/// Hands over what is taken.
struct Reader {
    access: watch::Receiver<AccessSecret>,
    taken: mpsc::Sender<Taken>,
    shared: Arc<Shared>,
}

impl Input {
    async fn take(self, mut reader: Reader) {
        match self {
            Input::Server { url, name, trust } => reader.take_from(&url, &name, &trust).await,
            Input::Publisher {
                listener,
                origin,
                name,
            } => {
                // The sender lives as long as the thread.
                let (_stop, stopped) = oneshot::channel();
                tokio::spawn(listener.serve(stopped));
                let consumer = origin.consume();
                reader.shared.stats.lock().is_connected = true;
                loop {
                    reader.take(&consumer, &name).await;
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

impl Reader {
    /// Connects to a server, and reconnects when the session ends.
    async fn take_from(&mut self, url: &SourceUrl, name: &str, trust: &Trust) {
        let mut pause = PAUSE;
        let mut before = String::new();
        loop {
            let began = tokio::time::Instant::now();
            let ended = self.take_session(url, name, trust).await;
            self.shared.stats.lock().is_connected = false;
            self.shared.stats.lock().failures += 1;
            if began.elapsed() > LASTING {
                pause = PAUSE;
            }
            if pause == PAUSE || ended != before {
                tracing::warn!(source = %url, "no MoQ session: {ended:#}; retrying until it works");
            }
            before = ended;
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Receives the broadcast in one session. Returns the reason for its end.
    async fn take_session(&mut self, url: &SourceUrl, name: &str, trust: &Trust) -> String {
        let (origin, driver) = origin();
        let origins = AbortOnDrop(tokio::spawn(moq_net::time::run(driver)).abort_handle());
        let scoped = match scoped(&origin, name) {
            Ok(scoped) => scoped,
            Err(error) => return error.to_string(),
        };
        let connected = match client::connect(url, trust, &scoped).await {
            Ok(connected) => connected,
            Err(error) => return chain(&error),
        };
        let version = connected.session.version();
        tracing::info!(source = %url, name, %version, "MoQ session opened");
        self.shared.stats.lock().is_connected = true;
        let session =
            AbortOnDrop(tokio::spawn(moq_net::time::run(connected.driver)).abort_handle());
        let consumer = origin.consume();
        let taking = async {
            loop {
                self.take(&consumer, name).await;
                sleep(PAUSE).await;
            }
        };
        let ended = tokio::select! {
            error = connected.session.closed() => error.to_string(),
            () = taking => "the broadcast has ended".to_owned(),
        };
        drop((session, origins));
        connected.endpoint.close(0u32.into(), b"");
        let _ = self.taken.send(Taken::Ended).await;
        self.shared.stats.lock().is_announced = false;
        ended
    }

    /// Receives the broadcast until it ends, or the secret changes.
    async fn take(&mut self, consumer: &origin::Consumer, name: &str) {
        let Ok(broadcast) = consumer.routed_broadcast(Path::new(name)).await else {
            return;
        };
        self.shared.stats.lock().is_announced = true;
        let access = self.access.borrow_and_update().clone();
        let _ = self.taken.send(Taken::Begun).await;
        let stats = Arc::clone(&self.shared.source);
        let source = Source::new(broadcast, access, self.taken.clone(), stats);
        tokio::select! {
            ended = source.take() => tracing::info!(name, ?ended, "MoQ broadcast ended"),
            _ = self.access.changed() => {}
        }
        self.shared.stats.lock().is_announced = false;
        let _ = self.taken.send(Taken::Ended).await;
    }
}

/// Ends a task.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The socket at which the relay requests the broadcast.
struct Local {
    socket: UdpSocket,
    feed: Feed,
    access: watch::Receiver<AccessSecret>,
    started: std::time::Instant,
    shared: Arc<Shared>,
}

impl Local {
    async fn run(mut self, mut further: mpsc::Receiver<Taken>, mut stopped: oneshot::Receiver<()>) {
        let mut buffer = [0; DEFAULT_DATAGRAM + 1];
        loop {
            let due = self
                .feed
                .poll_timeout()
                .map(|due| due.saturating_since(self.now()));
            let timer = sleep_until(tokio::time::Instant::now() + due.unwrap_or_default());
            let mut timer = pin!(timer);
            tokio::select! {
                _ = &mut stopped => break,
                taken = further.recv() => match taken {
                    Some(taken) => self.handle_taken(taken),
                    None => break,
                },
                received = self.socket.recv_from(&mut buffer) => {
                    // An error tells that the relay has left.
                    if let Ok((length, from)) = received {
                        self.handle_datagram(from, &buffer[..length]);
                    }
                }
                _ = self.access.changed() => self.feed.close(Goodbye::Revoked),
                () = &mut timer, if due.is_some() => {
                    let now = self.now();
                    self.feed.handle_timeout(now);
                }
            }
            self.transmit().await;
        }
        self.feed.close(Goodbye::Restarting);
        let _ = timeout(CLOSING, self.transmit()).await;
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    fn handle_taken(&mut self, taken: Taken) {
        let now = self.now();
        match taken {
            Taken::Begun => self.feed.begin_source(),
            Taken::Catalog(contents) => {
                let access = self.access.borrow().clone();
                self.feed.set_contents(contents, &access);
            }
            Taken::Object {
                track,
                sequence,
                payload,
            } => {
                if let Err(error) = self.feed.add(now, track, sequence, payload) {
                    let mut stats = self.shared.stats.lock();
                    match error {
                        ObjectError::Invalid => stats.invalid += 1,
                        ObjectError::WrongTrack => stats.wrong_track += 1,
                        ObjectError::TooLong => stats.too_long += 1,
                    }
                }
            }
            Taken::Ended => self.feed.end_source(now),
        }
    }

    fn handle_datagram(&mut self, from: SocketAddr, datagram: &[u8]) {
        let now = self.now();
        if let Err(error) = self.feed.handle_datagram(now, from, datagram) {
            tracing::debug!(%from, "datagram to the MoQ ingest refused: {error}");
        }
    }

    /// Sends as many packets as there is room for. The kernel forwards each packet during the call, so that
    /// the next one leaves when the previous one was sent to all viewers.
    async fn transmit(&mut self) {
        while let Some((to, datagram)) = self.feed.poll_transmit(self.now()) {
            // The relay reports the packets that it has not received.
            let _: io::Result<usize> = self.socket.send_to(&datagram, to).await;
        }
        let FeedStats {
            objects,
            packets,
            lost,
            late,
            full,
            stale,
            refused,
        } = self.feed.stats();
        let mut stats = self.shared.stats.lock();
        stats.objects = objects;
        stats.packets = packets;
        stats.lost_packets = lost;
        stats.late = late;
        stats.full = full;
        stats.stale = stale;
        stats.refused_datagrams = refused;
    }
}
