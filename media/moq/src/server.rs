//! The sockets and sessions, in a thread.

use crate::authorisation::{Denied, Target, Token};
use crate::certificate::{self, RECEIVE_WINDOW, RENEW_AGAIN};
use crate::egress::Egress;
use crate::entrance::Entrance;
use crate::places::{Place, Places};
use crate::transport::{ALPN, Asked, GroupTotals, Transport, alpn};
use hawser_io::handshakes::{HandshakeSlot, HandshakeSlots, TimeLimits};
use hawser_tls::Identity;
use moq_net::server::Handshake;
use moq_net::transport::poll::{self, Boxable};
use moq_net::{cache, origin, stats};
use parking_lot::Mutex;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, io, thread};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use web_transport_proto::http::StatusCode;

/// The settings of a [`Server`].
#[derive(Debug)]
pub struct Config {
    /// The address at which it listens (UDP).
    pub listen: SocketAddr,
    /// The name of the broadcast.
    pub name: String,
    /// The certificate; `None`: one that no authority has signed, and that is replaced every week.
    pub identity: Option<Identity>,
    /// The token that clients have to present; `None`: none.
    pub token: Option<Token>,
    /// The maximum number of sessions.
    pub sessions: usize,
    /// The number of bytes of objects that are kept, besides the newest group of each track.
    pub cache_bytes: u64,
    /// The time for which objects are kept.
    pub cache_age: Duration,
}

/// A server of Media over QUIC. Its sessions end when it is dropped.
pub struct Server {
    entrance: Entrance,
    stop: Option<oneshot::Sender<()>>,
    /// Ends the sessions that came through the entrance when it is dropped.
    _open: watch::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

/// Counts of a [`Server`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerStats {
    /// Sessions at present.
    pub sessions: u64,
    /// Groups, with catalogs, that were offered to sessions. Those that are in no other count wait, or were
    /// given up before they began.
    pub offered_groups: u64,
    /// Groups that were sent to their end.
    pub sent_groups: u64,
    /// Groups that were given up after they had begun, because newer ones had begun or the client left.
    pub cut_groups: u64,
    /// Groups that a session was not offered because it was behind.
    pub stale_groups: u64,
    /// Bytes of the objects that were offered to sessions.
    pub offered_bytes: u64,
    /// Bytes of objects that are kept for sessions.
    pub cached_bytes: u64,
    /// Clients that were refused because of the maximum number of sessions, in total or of their network.
    pub full: u64,
    /// Clients that were refused because too many handshakes, of all or of their source, were in progress.
    pub handshakes: u64,
    /// Clients that requested another path than the root.
    pub wrong_path: u64,
    /// Clients without the right token.
    pub unauthorised: u64,
    /// Connections that became no session: they did not end their handshake in time, or were not valid.
    pub failed: u64,
}

/// A server cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address cannot be used.
    #[error("cannot listen on {0} (UDP)")]
    Address(SocketAddr, #[source] io::Error),
    /// The certificate cannot be used.
    #[error("the certificate cannot be used")]
    Certificate(#[from] rustls::Error),
    /// No certificate can be made.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
    /// The name of the broadcast is not one of MoQ.
    #[error("\"{0}\" cannot be the name of a broadcast")]
    Name(String),
    /// There is no thread for it.
    #[error("cannot start the thread of the MoQ server")]
    Thread(#[source] io::Error),
}

/// The state that the thread and its owner share.
pub(crate) struct Shared {
    fingerprint: Mutex<String>,
    registry: stats::Registry,
    pool: cache::Pool,
    groups: Arc<GroupTotals>,
    full: AtomicU64,
    handshakes: AtomicU64,
    wrong_path: AtomicU64,
    unauthorised: AtomicU64,
    failed: AtomicU64,
}

/// A socket, and the admission of clients that connect to it.
pub(crate) struct Listener {
    endpoint: noq::Endpoint,
    pub(crate) local: SocketAddr,
    handshakes: Arc<HandshakeSlots>,
    own_certificate: bool,
    admission: Arc<Admission>,
}

/// The resources for new sessions.
pub(crate) struct Admission {
    server: moq_net::Server,
    protocols: Vec<&'static str>,
    token: Option<Token>,
    name: String,
    window: u32,
    /// The places of sessions, which clients take once they have shown their token.
    sessions: Arc<Places>,
    shared: Arc<Shared>,
}

/// The session of a client.
pub(crate) struct Joined<T: poll::Session> {
    session: moq_net::Session,
    driver: moq_net::Driver<T>,
    _place: Place,
}

/// A connection that becomes no session.
pub(crate) enum Refusal {
    Denied(Denied),
    Full,
    Failed(String),
}

/// The time within which clients are told that the server ends.
const CLOSING: Duration = Duration::from_secs(1);

impl Config {
    /// Returns the settings of a server with a certificate of its own, no token, 64 sessions, and 32 MiB of
    /// objects of the last two seconds.
    pub fn new(listen: SocketAddr, name: impl Into<String>) -> Self {
        Config {
            listen,
            name: name.into(),
            identity: None,
            token: None,
            sessions: 64,
            cache_bytes: 32 << 20,
            cache_age: Duration::from_secs(2),
        }
    }
}

/// Returns the versions that are served, the preferred ones first: the current draft of MoQ Transport and
/// the one before, and of moq-lite, which the tools of moq-rs and its library for browsers prefer.
pub fn versions() -> moq_net::Versions {
    let names = [
        "moq-transport-22",
        "moq-transport-21",
        "moq-lite-06",
        "moq-lite-05",
    ];
    let versions = names.map(|name| name.parse().expect("a version that moq-net has"));
    moq_net::Versions::from(versions.to_vec())
}

impl Server {
    /// Opens the socket and starts the thread. Objects are given to the [`Egress`].
    ///
    /// # Errors
    /// If the address is not free, or the certificate cannot be used.
    pub fn open(config: Config) -> Result<(Server, Egress), OpenError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(OpenError::Thread)?;
        let pool = cache::Config::default()
            .with_capacity(config.cache_bytes)
            .with_expiry(config.cache_age * 2);
        let pool = cache::Pool::new(pool);
        let mut origin_config = origin::Config::default();
        origin_config.pool = pool.clone();
        let (origin, driver) = origin::Producer::new(origin_config);
        let (name, cache_age) = (config.name.clone(), config.cache_age);
        let entered = runtime.enter();
        let sessions = moq_net::Server::new().with_publisher(&origin);
        let listener = Listener::open(config, sessions, pool, RECEIVE_WINDOW);
        drop(entered);
        let listener = listener?;
        let (open, is_open) = watch::channel(());
        let entrance = Entrance {
            address: listener.local,
            admission: Arc::clone(&listener.admission),
            handshakes: Arc::clone(&listener.handshakes),
            own_certificate: listener.own_certificate,
            open: is_open,
        };
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("moq".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::spawn(moq_net::time::run(driver));
                    listener.serve(stopped).await;
                });
            })
            .map_err(OpenError::Thread)?;
        let server = Server {
            entrance,
            stop: Some(stop),
            _open: open,
            thread: Some(thread),
        };
        Ok((server, Egress::new(origin, name, cache_age)))
    }

    /// Returns the address at which it listens.
    pub const fn local_address(&self) -> SocketAddr {
        self.entrance.address()
    }

    /// Returns the fingerprint of the certificate: its SHA-256 digest, hexadecimal.
    pub fn fingerprint(&self) -> String {
        self.entrance.fingerprint()
    }

    /// Returns its entrance, for a web server.
    pub const fn entrance(&self) -> &Entrance {
        &self.entrance
    }

    /// Returns whether there is a session.
    pub fn is_watched(&self) -> bool {
        self.entrance.admission.sessions.taken() > 0
    }

    /// Returns the counts.
    pub fn stats(&self) -> ServerStats {
        self.entrance.admission.shared.stats()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("local", &self.local_address())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Returns the protocols of raw QUIC, and HTTP/3 for WebTransport.
fn alpns(protocols: &[&'static str]) -> Vec<Vec<u8>> {
    let protocols = protocols.iter().chain([&ALPN]);
    protocols.map(|alpn| alpn.as_bytes().to_vec()).collect()
}

impl Listener {
    /// Opens the socket, in a runtime. `sessions` defines the broadcasts that clients receive and publish, and
    /// `window` is the maximum number of unread bytes of a client.
    pub(crate) fn open(
        config: Config,
        sessions: moq_net::Server,
        pool: cache::Pool,
        window: u32,
    ) -> Result<Self, OpenError> {
        let own_certificate = config.identity.is_none();
        let identity = match config.identity {
            Some(identity) => identity,
            None => certificate::self_signed(config.listen.ip())?,
        };
        let versions = versions();
        let protocols = versions.alpns();
        let quic = certificate::server_config(&identity, alpns(&protocols), window)?;
        let address = |error| OpenError::Address(config.listen, error);
        let endpoint = noq::Endpoint::server(quic, config.listen).map_err(address)?;
        let local = endpoint.local_addr().map_err(address)?;
        let shared = Arc::new(Shared {
            fingerprint: Mutex::new(certificate::fingerprint(&identity)),
            registry: stats::Registry::new(stats::Config::new()),
            pool,
            groups: Arc::default(),
            full: AtomicU64::new(0),
            handshakes: AtomicU64::new(0),
            wrong_path: AtomicU64::new(0),
            unauthorised: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        });
        let admission = Admission {
            server: sessions.with_versions(versions),
            protocols,
            token: config.token,
            name: config.name,
            window,
            sessions: Places::new(config.sessions),
            shared,
        };
        Ok(Listener {
            endpoint,
            local,
            handshakes: Arc::default(),
            own_certificate,
            admission: Arc::new(admission),
        })
    }

    /// Returns what its owner sees.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.admission.shared)
    }

    /// Serves clients until `stopped`.
    pub(crate) async fn serve(self, mut stopped: oneshot::Receiver<()>) {
        let admission = &self.admission;
        let mut renewal = certificate::renewal();
        loop {
            tokio::select! {
                // It is dropped with the server, too.
                _ = &mut stopped => break,
                () = renewal.over(sleep), if self.own_certificate => {
                    admission.renew_certificate(&self.endpoint);
                    renewal = certificate::renewal().at_least(RENEW_AGAIN);
                }
                incoming = self.endpoint.accept() => {
                    let Some(incoming) = incoming else { break };
                    // An unverified address takes no place.
                    if !incoming.remote_address_validated() {
                        let _ = incoming.retry();
                        continue;
                    }
                    self.take(incoming);
                }
            }
        }
        self.endpoint.close(0u32.into(), b"the relay ends");
        let _ = timeout(CLOSING, self.endpoint.wait_idle()).await;
    }

    /// Serves a client, unless there are too many handshakes or sessions.
    fn take(&self, incoming: noq::Incoming) {
        let (admission, from) = (Arc::clone(&self.admission), incoming.remote_address());
        let source = from.ip().to_canonical();
        let Some(slot) = admission.take_slot(&self.handshakes, from) else {
            return incoming.refuse();
        };
        let handshakes = Arc::clone(&self.handshakes);
        tokio::spawn(async move {
            let refusal = match admission.admit(incoming, source, slot.time_limits()).await {
                Ok(joined) => {
                    drop(slot);
                    handshakes.remember(source);
                    return admission.serve(joined, from, "QUIC").await;
                }
                Err(refusal) => refusal,
            };
            admission.refuse(&refusal, from);
        });
    }
}

impl Admission {
    /// Returns the name of the broadcast.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the protocols (ALPN) of the versions of MoQ.
    pub(crate) fn protocols(&self) -> &[&'static str] {
        &self.protocols
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns whether clients have to present a token.
    pub(crate) const fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Takes a slot for the handshake of a client, unless there are too many handshakes or sessions.
    pub(crate) fn take_slot(
        &self,
        handshakes: &Arc<HandshakeSlots>,
        from: SocketAddr,
    ) -> Option<HandshakeSlot> {
        let source = from.ip().to_canonical();
        if !self.sessions.has_room(source) {
            self.shared.full.fetch_add(1, Relaxed);
            return None;
        }
        let slot = handshakes.take(source).ok();
        if slot.is_none() {
            self.shared.handshakes.fetch_add(1, Relaxed);
        }
        slot
    }

    /// Opens the session of a client that has the right token, within its time limits.
    async fn admit(
        &self,
        incoming: noq::Incoming,
        source: IpAddr,
        limits: TimeLimits,
    ) -> Result<Joined<Transport>, Refusal> {
        let opened = async {
            let connection = timeout(limits.tls_handshake, incoming.into_future()).await;
            self.open(connection.map_err(|_| Refusal::late())??, source)
                .await
        };
        let opened = timeout(limits.first_message, opened).await;
        opened.map_err(|_| Refusal::late())?
    }

    /// Serves a client until it leaves. `over` names its transport.
    pub(crate) async fn serve<T: poll::Session>(
        &self,
        joined: Joined<T>,
        from: SocketAddr,
        over: &'static str,
    ) {
        let version = joined.session.version();
        tracing::info!(broadcast = self.name, %from, %version, over, "MoQ client joined");
        let ended = moq_net::time::run(joined.driver).await;
        tracing::info!(broadcast = self.name, %from, "MoQ client left: {ended}");
    }

    /// Counts a client that becomes no session.
    pub(crate) fn refuse(&self, refusal: &Refusal, from: SocketAddr) {
        self.shared.count(refusal);
        tracing::debug!(broadcast = self.name, %from, "MoQ client refused: {refusal}");
    }

    async fn open(
        &self,
        connection: noq::Connection,
        source: IpAddr,
    ) -> Result<Joined<Transport>, Refusal> {
        let (transport, target) = if alpn(&connection).as_deref() == Some(ALPN) {
            let asked = Asked::accept(connection).await?;
            let offered = asked.request.protocols.iter();
            let mut chosen = offered.filter(|name| self.protocols.contains(&name.as_str()));
            let Some(protocol) = chosen.next().cloned() else {
                asked.refuse(StatusCode::BAD_REQUEST).await;
                let none = "it offers no version of MoQ that is served here";
                return Err(Refusal::Failed(none.to_owned()));
            };
            let target = asked.target();
            (asked.accept_with(&protocol).await?, Some(target))
        } else {
            let none = || Refusal::Failed("it has no protocol".to_owned());
            (Transport::raw(connection).ok_or_else(none)?, None)
        };
        let transport = transport.counting(&self.shared.groups);
        let handshake = self.begin(transport).await?;
        let target = target.unwrap_or_else(|| handshake.path().to_owned());
        let token = handshake.token().map(|token| &token.value[..]);
        if let Err(denied) = Target::parse(&target).check(self.token.as_ref(), token) {
            handshake.close(match denied {
                Denied::Path => moq_net::Error::NotFound,
                Denied::Token => moq_net::Error::Unauthorized,
            });
            return Err(Refusal::Denied(denied));
        }
        self.join(handshake, source).await
    }

    /// Begins the session of a client.
    pub(crate) async fn begin<T: Boxable>(&self, transport: T) -> Result<Handshake<T>, Refusal>
    where
        T::SendStream: Sync,
        T::RecvStream: Sync,
    {
        Ok(self
            .server
            .accept_request(Instant::now(), transport)
            .await?)
    }

    /// Opens the session of a client that may have one, if there is room.
    pub(crate) async fn join<T: Boxable>(
        &self,
        handshake: Handshake<T>,
        source: IpAddr,
    ) -> Result<Joined<T>, Refusal>
    where
        T::SendStream: Sync,
        T::RecvStream: Sync,
    {
        let Some(place) = self.sessions.take(source) else {
            handshake.close(moq_net::Error::Cancel);
            return Err(Refusal::Full);
        };
        let presence = self.shared.registry.tier(stats::Tier::default());
        let handshake = handshake.with_stats(presence.session(&self.name));
        let (session, driver) = handshake.ok().await?;
        Ok(Joined {
            session,
            driver,
            _place: place,
        })
    }

    fn renew_certificate(&self, endpoint: &noq::Endpoint) {
        let address = endpoint.local_addr().map(|address| address.ip());
        let Ok(identity) = address.map(certificate::self_signed) else {
            return;
        };
        let identity = match identity {
            Ok(identity) => identity,
            Err(error) => {
                tracing::error!("cannot make another certificate for MoQ: {error}");
                return;
            }
        };
        match certificate::server_config(&identity, alpns(&self.protocols), self.window) {
            Ok(config) => {
                endpoint.set_server_config(Some(config));
                let fingerprint = certificate::fingerprint(&identity);
                tracing::info!(
                    broadcast = self.name,
                    fingerprint,
                    "MoQ certificate replaced"
                );
                *self.shared.fingerprint.lock() = fingerprint;
            }
            Err(error) => tracing::error!("cannot use another certificate for MoQ: {error}"),
        }
    }
}

impl Shared {
    pub(crate) fn fingerprint(&self) -> String {
        self.fingerprint.lock().clone()
    }

    /// Returns the sums of the groups that are sent.
    pub(crate) const fn groups(&self) -> &Arc<GroupTotals> {
        &self.groups
    }

    fn count(&self, refusal: &Refusal) {
        let counter = match refusal {
            Refusal::Full => &self.full,
            Refusal::Denied(Denied::Path) => &self.wrong_path,
            Refusal::Denied(Denied::Token) => &self.unauthorised,
            Refusal::Failed(_) => &self.failed,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn stats(&self) -> ServerStats {
        // Removes sessions that have ended, and keeps their sums.
        self.registry.report(&mut stats::Report::default());
        let snapshot = self.registry.snapshot();
        let sessions = snapshot.sessions().iter().map(|(_, s)| s.active()).sum();
        let mut offered = stats::Traffic::default();
        for (_, role, traffic) in snapshot.traffic() {
            if role == stats::Role::Publisher {
                offered.add(traffic);
            }
        }
        ServerStats {
            sessions,
            offered_groups: offered.groups,
            sent_groups: self.groups.sent.load(Relaxed),
            cut_groups: self.groups.cut.load(Relaxed),
            stale_groups: offered.stale.groups,
            offered_bytes: offered.bytes,
            cached_bytes: self.pool.used(),
            full: self.full.load(Relaxed),
            handshakes: self.handshakes.load(Relaxed),
            wrong_path: self.wrong_path.load(Relaxed),
            unauthorised: self.unauthorised.load(Relaxed),
            failed: self.failed.load(Relaxed),
        }
    }
}

impl Refusal {
    pub(crate) fn late() -> Self {
        Refusal::Failed("it did not end its handshake in time".to_owned())
    }
}

impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Refusal::Failed(error.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Full => {
                f.write_str("the maximum number of sessions is reached, in total or of its network")
            }
            Refusal::Denied(Denied::Path) => f.write_str("the path is not the root"),
            Refusal::Denied(Denied::Token) => f.write_str("the token is missing or wrong"),
            Refusal::Failed(reason) => f.write_str(reason),
        }
    }
}
