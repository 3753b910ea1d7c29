//! The sockets and sessions, in a thread.

use crate::admission::{Admission, ServerStats, Shared, alpns};
use crate::authorisation::Token;
use crate::certificate::{self, RECEIVE_WINDOW, RENEW_AGAIN};
use crate::egress::Egress;
use crate::entrance::Entrance;
use crate::places::Places;
use hawser_io::handshakes::HandshakeSlots;
use hawser_tls::Identity;
use moq_net::{cache, origin, stats};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io, thread};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

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

/// A socket, and the admission of clients that connect to it.
pub(crate) struct Listener {
    endpoint: noq::Endpoint,
    pub(crate) local: SocketAddr,
    handshakes: Arc<HandshakeSlots>,
    own_certificate: bool,
    admission: Arc<Admission>,
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
