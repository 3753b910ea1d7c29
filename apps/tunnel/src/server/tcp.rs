//! Accepts clients whose networks block UDP: their QUIC packets arrive in streams over TCP and TLS.
//!
//! A stream is accepted from clients that are admitted only, before anything is kept for it. The
//! QUIC connection in it authenticates the client once more.

use super::Server;
use super::connection::{Overload, TimeLimits, admits};
use super::handshakes::{HandshakeSlot, HandshakeSlots};
use crate::config::ServerConfig;
use crate::session::canonical;
use crate::tcp::{self, Streams, TcpSocket};
use crate::tls::{Peer, ServerTls};
use anyhow::{Context, Result};
use hawser_io::failures::{Change, Failures};
use hawser_units::MAX_PATHS;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
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

/// The pause after an error, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// The places at which the server listens for streams.
pub(super) struct Listeners {
    listeners: Vec<TcpListener>,
    streams: Streams,
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
        Ok(Some((Listeners { listeners, streams }, socket)))
    }

    pub(super) fn streams(&self) -> Streams {
        self.streams.clone()
    }

    /// Accepts streams from now on.
    pub(super) fn accept(
        self,
        server: &Arc<Server>,
        slots: &Arc<HandshakeSlots>,
        tls: watch::Receiver<ServerTls>,
    ) -> Result<()> {
        let door = Arc::new(Door {
            server: Arc::clone(server),
            slots: Arc::clone(slots),
            streams: self.streams,
            overload: Mutex::default(),
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
    streams: Streams,
    overload: Mutex<Overload>,
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

    /// Serves a connection, unless there are too many handshakes.
    fn take(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        let registry = &self.server.registry;
        match self.slots.take(peer.ip()) {
            Ok(slot) => {
                let door = Arc::clone(self);
                tokio::spawn(async move { door.serve_stream(stream, peer, slot).await });
            }
            Err(full) => {
                registry.count_refusal(full.name());
                self.overload.lock().warn(peer.ip());
            }
        }
    }

    async fn serve_stream(&self, stream: TcpStream, peer: SocketAddr, slot: HandshakeSlot) {
        let time_limit = TimeLimits::of(&slot).first_message;
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
