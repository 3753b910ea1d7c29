//! The publisher and the subscribers of moq-relay, all in this process.

use super::{Running, SERVER_NAME, Server, TIMEOUT};
use crate::relays::{Network, PUBLISHER, SUBSCRIBERS};
use anyhow::{Context, Result, anyhow, bail, ensure};
use futures_util::StreamExt;
use futures_util::stream;
use hawser_io::clock;
use hawser_moq::Transport;
use hawser_testbed::netns::Namespace;
use hawser_tls::provider;
use moq_net::{Timestamp, broadcast, origin, track};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::gettid;
use noq::crypto::rustls::QuicClientConfig;
use rustls::version::TLS13;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tracing::subscriber::{NoSubscriber, set_default};

/// The version of MoQ: the newest one that moq-relay prefers.
const VERSION: &str = "moq-lite-06";

/// The names of broadcast and track.
const BROADCAST: &str = "stage";
const TRACK: &str = "performer";

/// The time for which objects are kept and waited for.
const MAX_AGE: Duration = Duration::from_secs(2);

/// Connections that are opened at the same time.
const OPENING: usize = 16;

/// The bytes of an object for each of its packets: with all headers, a packet of QUIC has up to 1,200.
const PACKET_BYTES: usize = 1120;

/// A thread with a runtime, which ends when this value is dropped.
struct Worker {
    thread: Option<JoinHandle<()>>,
    stop: Option<oneshot::Sender<()>>,
    id: u32,
}

/// The publisher. A thread has its connection.
pub(crate) struct Publisher {
    worker: Worker,
    track: track::Producer,
    _broadcast: broadcast::Producer,
}

/// The subscribers. One thread has all their connections.
pub(crate) struct Audience {
    worker: Worker,
    subscribers: usize,
    joined: Arc<AtomicUsize>,
    arrivals: mpsc::Receiver<Result<Duration>>,
}

impl Publisher {
    /// Connects to the relay, from the publisher's address. `prepare` is called in the thread of the connection.
    pub(crate) fn open(
        network: &Network,
        relay: &Running,
        prepare: fn() -> Result<()>,
    ) -> Result<Self> {
        let (origin, driver) = origin::Producer::new(origin::Config::default());
        let broadcast = origin.create_broadcast(BROADCAST)?;
        let info = track::Info::default().with_max_age(MAX_AGE);
        let track = broadcast.create_track(TRACK, info)?;
        broadcast.announce(origin::Route::default())?;
        let server = relay.server(true);
        let consumer = origin.consume();
        let worker = Worker::start(&network.peers, prepare, move |ready, stopped| async move {
            tokio::spawn(moq_net::time::run(driver));
            let client = moq_net::Client::new().with_publisher(consumer);
            let opened = connect(&server, (*PUBLISHER.ip(), 0).into(), client).await;
            let is_open = opened
                .as_ref()
                .map(drop)
                .map_err(|error| anyhow!("{error:#}"));
            // Nobody waits any more if the run has failed.
            let _ = ready.send(is_open);
            let _ = stopped.await;
        })?;
        Ok(Publisher {
            worker,
            track,
            _broadcast: broadcast,
        })
    }

    /// Publishes an object, a group of its own, that takes so many packets.
    pub(crate) fn publish(&self, packets: u16) -> Result<()> {
        let mut object = vec![0x77; PACKET_BYTES * usize::from(packets)];
        let mut group = self.track.append_group()?;
        let now = clock::monotonic();
        object[..8].copy_from_slice(&now.as_nanos().to_be_bytes());
        let stamp = Timestamp::from_millis(now.as_nanos() / 1_000_000)?;
        group.write_frame(stamp, object)?;
        group.finish()?;
        Ok(())
    }

    /// Returns the id of the thread with its connection.
    pub(crate) fn thread(&self) -> u32 {
        self.worker.id
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // It has ended otherwise, too.
        let _ = self.track.finish();
    }
}

impl Audience {
    /// Connects subscribers to the relay, each with a connection of its own. They join one after the other, while
    /// objects are published.
    pub(crate) fn open(
        network: &Network,
        relay: &Running,
        subscribers: usize,
        prepare: fn() -> Result<()>,
    ) -> Result<Self> {
        allow_sockets().context("cannot open a socket for each subscriber")?;
        let server = relay.server(false);
        let (arrived, arrivals) = mpsc::channel();
        let joined = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&joined);
        let worker = Worker::start(&network.peers, prepare, move |ready, stopped| async move {
            let connecting = stream::iter(0..subscribers)
                .map(|_| subscribe(&server))
                .buffer_unordered(OPENING);
            let opened: Vec<Result<Subscription>> = connecting.collect().await;
            let opened: Result<Vec<Subscription>> = opened.into_iter().collect();
            let subscriptions = match opened {
                Ok(subscriptions) => subscriptions,
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            let _ = ready.send(Ok(()));
            for subscription in subscriptions {
                let (arrived, joined) = (arrived.clone(), Arc::clone(&count));
                tokio::spawn(async move {
                    if let Err(error) = subscription.receive(&arrived, &joined).await {
                        // Nobody waits any more if the run has ended.
                        let _ = arrived.send(Err(error));
                    }
                });
            }
            let _ = stopped.await;
        })?;
        Ok(Audience {
            worker,
            subscribers,
            joined,
            arrivals,
        })
    }

    /// Returns whether each subscriber has received an object.
    pub(crate) fn is_complete(&self) -> bool {
        self.joined.load(Relaxed) == self.subscribers
    }

    /// Returns the times that so many objects took from the publisher to a subscriber, or of those that arrived
    /// while each was within the given time of the one before.
    ///
    /// # Errors
    /// If a subscriber has ended.
    pub(crate) fn take(&self, objects: usize, timeout: Duration) -> Result<Vec<Duration>> {
        let mut delays = Vec::new();
        while delays.len() < objects {
            let Ok(delay) = self.arrivals.recv_timeout(timeout) else {
                break;
            };
            delays.push(delay.context("a subscriber of moq-relay has ended")?);
        }
        Ok(delays)
    }

    /// Returns the id of the thread with their connections.
    pub(crate) fn thread(&self) -> u32 {
        self.worker.id
    }
}

impl Worker {
    /// Starts a thread in a namespace, and waits until it says how `work` has begun.
    fn start<F: Future<Output = ()>>(
        namespace: &Namespace,
        prepare: fn() -> Result<()>,
        work: impl FnOnce(mpsc::Sender<Result<()>>, oneshot::Receiver<()>) -> F + Send + 'static,
    ) -> Result<Self> {
        let namespace = namespace.clone();
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let (named, name) = mpsc::channel();
        let thread = thread::spawn(move || {
            // moq-net logs each subscription of each subscriber; errors are returned.
            let _silent = set_default(NoSubscriber::default());
            let begin = || -> Result<tokio::runtime::Runtime> {
                namespace.enter()?;
                prepare()?;
                let mut builder = tokio::runtime::Builder::new_current_thread();
                Ok(builder.enable_all().build()?)
            };
            let _ = named.send(gettid().as_raw() as u32);
            match begin() {
                Ok(runtime) => runtime.block_on(work(ready, stopped)),
                Err(error) => drop(ready.send(Err(error))),
            }
        });
        let worker = Worker {
            id: name.recv().context("the thread has ended")?,
            thread: Some(thread),
            stop: Some(stop),
        };
        let begun = is_ready.recv_timeout(TIMEOUT);
        begun.context("moq-relay does not answer")??;
        Ok(worker)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was printed.
            let _ = thread.join();
        }
    }
}

/// Allows as many open files as this process may have: each subscriber has a socket.
fn allow_sockets() -> nix::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)
}

/// A session, which lasts as long as this value.
struct Connected {
    _session: moq_net::Session,
    _endpoint: noq::Endpoint,
}

async fn connect(server: &Server, own: SocketAddr, client: moq_net::Client) -> Result<Connected> {
    let version: moq_net::Version = VERSION.parse().map_err(|_| anyhow!("no {VERSION}"))?;
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(Arc::clone(&server.authorities))
        .with_no_client_auth();
    tls.alpn_protocols = vec![version.alpn().as_bytes().to_vec()];
    let mut config = noq::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    let mut transport = noq::TransportConfig::default();
    // Probes of the path are long packets, too.
    transport.mtu_discovery_config(None);
    config.transport_config(Arc::new(transport));
    let endpoint = noq::Endpoint::client(own).context("cannot open a socket")?;
    let connection = endpoint
        .connect_with(config, server.address, SERVER_NAME)?
        .await?;
    let transport = Transport::raw(connection).context("no version of MoQ was agreed on")?;
    let client = client.with_versions(version.into());
    let (session, driver) = client.connect(Instant::now(), transport).await?;
    tokio::spawn(moq_net::time::run(driver));
    Ok(Connected {
        _session: session,
        _endpoint: endpoint,
    })
}

/// A subscriber.
struct Subscription {
    track: track::Subscriber,
    _connected: Connected,
}

async fn subscribe(server: &Server) -> Result<Subscription> {
    let (origin, driver) = origin::Producer::new(origin::Config::default());
    tokio::spawn(moq_net::time::run(driver));
    let consumer = origin.consume();
    let client = moq_net::Client::new().with_subscriber(origin);
    let connected = connect(server, (SUBSCRIBERS, 0).into(), client).await?;
    let broadcast = consumer.routed_broadcast(BROADCAST);
    let broadcast = broadcast.await.context("the broadcast has ended")?;
    let wanted = track::Subscription::default().with_max_age(MAX_AGE);
    let track = broadcast.track(TRACK)?.subscribe(wanted).await?;
    Ok(Subscription {
        track,
        _connected: connected,
    })
}

impl Subscription {
    async fn receive(
        mut self,
        arrived: &mpsc::Sender<Result<Duration>>,
        joined: &AtomicUsize,
    ) -> Result<()> {
        let mut is_first = true;
        loop {
            let Some(mut group) = self.track.recv_group().await? else {
                bail!("the track has ended");
            };
            let object = group.read_frame().await?.context("a group has an object")?;
            let now = clock::monotonic();
            let sent = object
                .payload
                .first_chunk()
                .context("an object has a time")?;
            let sent = u64::from_be_bytes(*sent);
            ensure!(sent <= now.as_nanos(), "an object from the future");
            if std::mem::take(&mut is_first) {
                joined.fetch_add(1, Relaxed);
            }
            // Nobody waits any more if the run has ended.
            let _ = arrived.send(Ok(Duration::from_nanos(now.as_nanos() - sent)));
        }
    }
}
