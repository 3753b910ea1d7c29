//! Accepts clients whose networks block UDP: their QUIC packets arrive in streams over TCP and TLS.
//!
//! A stream is accepted from clients that are admitted only, before anything is kept for it. The
//! QUIC connection in it authenticates the client once more.

use super::Server;
use super::connection::{Overload, admits};
use crate::config::ServerConfig;
use crate::session::canonical;
use crate::tcp::{self, Streams, TcpSocket};
use crate::tls::{Peer, ServerTls};
use anyhow::{Context, Result};
use hawser_io::descriptors;
use hawser_io::failures::{Change, Failures};
use hawser_io::handshakes::{HandshakeSlot, HandshakeSlots};
use hawser_units::MAX_PATHS;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use tracing::{debug, info, warn};

/// The most streams of one client: two for each of its paths, because an uplink connects again
/// before its last stream ends.
const MAX_STREAMS: usize = 2 * MAX_PATHS;

/// The connections that the kernel completes before they are accepted.
const BACKLOG: i32 = 128;

/// The interval at which it is checked that the client of a stream is still admitted.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The open files that are left for all but streams: sockets, the device, files and the runtime.
const OTHER_FILES: usize = 128;

/// The pause after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// The places at which the server listens for streams.
pub(super) struct Listeners {
    listeners: Vec<TcpListener>,
    streams: Streams,
    /// The number of streams, with handshakes in progress, for which there are open files.
    max_streams: usize,
}

impl Listeners {
    /// Opens the places that the configuration names, if it names any. The socket is that of all
    /// streams.
    pub(super) fn open(config: &ServerConfig) -> Result<Option<(Listeners, TcpSocket)>> {
        let Some(first) = config.listen_tcp.first() else {
            return Ok(None);
        };
        let (socket, streams) = TcpSocket::new(*first);
        let listeners = config.listen_tcp.iter().map(listen);
        let listeners = listeners.collect::<Result<_>>()?;
        let listeners = Listeners {
            listeners,
            streams,
            max_streams: max_streams(config.max_clients)?,
        };
        Ok(Some((listeners, socket)))
    }

    pub(super) fn streams(&self) -> Streams {
        self.streams.clone()
    }

    /// Accepts streams from now on. `slots` are those for handshakes over TCP.
    pub(super) fn accept(
        self,
        server: &Arc<Server>,
        slots: HandshakeSlots,
        tls: watch::Receiver<ServerTls>,
    ) -> Result<()> {
        let door = Arc::new(Door {
            server: Arc::clone(server),
            slots: Arc::new(slots),
            free: Arc::new(Semaphore::new(self.max_streams)),
            streams: self.streams,
            too_many_handshakes: Mutex::default(),
            too_many_files: Mutex::default(),
            counts: Mutex::default(),
            tls,
        });
        for listener in self.listeners {
            info!(address = %listener.local_addr()?, "listening for clients over TCP");
            tokio::spawn(Arc::clone(&door).serve(listener));
        }
        Ok(())
    }
}

/// Raises the limit of open files to what the streams of all clients need; returns how many streams it
/// allows.
fn max_streams(max_clients: usize) -> Result<usize> {
    let needed = max_clients
        .saturating_mul(MAX_STREAMS)
        .saturating_add(OTHER_FILES);
    let limit = descriptors::raise_limit(needed as u64)
        .context("cannot raise the limit of open files (RLIMIT_NOFILE)")?;
    let max_streams = usize::try_from(limit)?.saturating_sub(OTHER_FILES);
    if max_streams < max_clients {
        warn!(
            "the system allows {limit} open files, which are {max_streams} connections over TCP for {max_clients} clients"
        );
    }
    Ok(max_streams.min(Semaphore::MAX_PERMITS))
}

fn listen(address: &SocketAddr) -> Result<TcpListener> {
    let open = || {
        let socket = tcp::socket(*address, None)?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    open().with_context(|| format!("cannot listen at TCP {address}"))
}

/// The state that all streams of a server share.
struct Door {
    server: Arc<Server>,
    slots: Arc<HandshakeSlots>,
    /// The streams for which there are open files.
    free: Arc<Semaphore>,
    streams: Streams,
    too_many_handshakes: Mutex<Overload>,
    too_many_files: Mutex<Overload>,
    /// The number of streams of each client, by its name.
    counts: Mutex<HashMap<String, usize>>,
    tls: watch::Receiver<ServerTls>,
}

impl Door {
    async fn serve(self: Arc<Self>, listener: TcpListener) {
        let mut failures = Failures::default();
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    failures.record::<(), io::Error>(Ok(()));
                    self.take(stream, canonical(peer));
                }
                Err(error) => {
                    if let Some(Change::Failed(error)) = failures.record::<(), _>(Err(error)) {
                        warn!("cannot accept connections over TCP: {error}");
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Serves a connection, unless there are too many handshakes or open files.
    fn take(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        let registry = &self.server.registry;
        let Ok(open_file) = Arc::clone(&self.free).try_acquire_owned() else {
            registry.count_refusal("too_many_files");
            return self.too_many_files.lock().warn(peer.ip(), "open files");
        };
        match self.slots.take(peer.ip()) {
            Ok(slot) => {
                let door = Arc::clone(self);
                tokio::spawn(async move {
                    door.serve_stream(stream, peer, slot).await;
                    drop(open_file);
                });
            }
            Err(full) => {
                registry.count_refusal(full.name());
                let mut overload = self.too_many_handshakes.lock();
                overload.warn(peer.ip(), "handshakes over TCP");
            }
        }
    }

    async fn serve_stream(&self, stream: TcpStream, peer: SocketAddr, slot: HandshakeSlot) {
        let time_limit = slot.time_limits().tls_handshake;
        let registry = &self.server.registry;
        let (stream, client) = match timeout(time_limit, self.handshake(stream)).await {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(error)) => {
                registry.count_refusal("handshake");
                return debug!(%peer, "TCP: handshake failed: {error:#}");
            }
            Err(_) => {
                registry.count_refusal("timeout");
                return debug!(%peer, "TCP: timeout: handshake not completed");
            }
        };
        drop(slot);
        if !admits(&self.server, &client).await {
            registry.count_refusal("not_admitted");
            return debug!(%peer, client = client.name, "TCP: not admitted");
        }
        let Some(_place) = self.place(&client.name) else {
            registry.count_refusal("too_many_streams");
            return debug!(%peer, client = client.name, "TCP: too many streams");
        };
        debug!(%peer, client = client.name, "TCP: stream opened");
        tokio::select! {
            ended = self.streams.clone().carry(peer, stream) => {
                debug!(%peer, client = client.name, "TCP: stream ended: {ended}");
            }
            // The connections in the stream are counted.
            () = self.revoked(&client) => {
                debug!(%peer, client = client.name, "TCP: stream ended: not admitted any more");
            }
        }
    }

    async fn handshake(&self, stream: TcpStream) -> Result<(TlsStream<TcpStream>, Peer)> {
        tcp::configure(&stream)?;
        let acceptor = self.tls.borrow().tcp.clone();
        let stream = acceptor.accept(stream).await?;
        let chain = stream.get_ref().1.peer_certificates();
        let certificate = chain.and_then(<[_]>::first);
        let peer = Peer::of(certificate.context("the peer sent no certificate")?)?;
        Ok((stream, peer))
    }

    async fn revoked(&self, client: &Peer) {
        while self.server.admits_now(client) {
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Takes a place among the streams of a client, if there is one.
    fn place(&self, client: &str) -> Option<Place<'_>> {
        let mut counts = self.counts.lock();
        let count = counts.entry(client.to_owned()).or_default();
        if *count >= MAX_STREAMS {
            return None;
        }
        *count += 1;
        Some(Place {
            door: self,
            client: client.to_owned(),
        })
    }
}

/// The place of a stream; it is free again when the value is dropped.
struct Place<'a> {
    door: &'a Door,
    client: String,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut counts = self.door.counts.lock();
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}
