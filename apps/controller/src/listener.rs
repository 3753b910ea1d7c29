//! Connections: TLS, HTTP/1.1 and HTTP/2, with limits on their number and duration.

mod answer;

use crate::access::Peer;
use crate::authority::Presented;
use crate::config::Config;
use crate::controller::Controller;
use crate::limit::source;
use answer::{Responses, TrackedBody};
use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt;

/// The pause after a failure to accept, as when the system is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The time that requests have to finish when the controller stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The additional time for aborted connections to close.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The maximum amount of data that HTTP/2 buffers for sending.
const MAX_UNSENT_BYTES: usize = 64 * 1024;

/// The flow-control window of HTTP/2: bytes that the client may send before they are read.
const WINDOW_BYTES: u32 = 64 * 1024;

/// The maximum number of concurrent requests on one HTTP/2 connection of a node.
const NODE_STREAMS: u32 = 64;

/// The same for a client without a certificate.
const ANONYMOUS_STREAMS: u32 = 16;

/// The server's certificate, which can be replaced at run time.
#[derive(Debug)]
struct Certificate(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }
}

/// Returns a TLS acceptor with a server certificate of the authority, and starts a task that
/// replaces the certificate before it expires and when its names change.
pub(crate) fn tls(
    controller: &Arc<Controller>,
    names: watch::Receiver<Vec<String>>,
) -> Result<TlsAcceptor> {
    let (certificate, replace_after) = server_certificate(controller, &names)?;
    let certificate = Arc::new(Certificate(RwLock::new(Arc::new(certificate))));
    let mut config = ServerConfig::builder_with_provider(hawser_tls::provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(controller.authority.verifier()?)
        .with_cert_resolver(certificate.clone());
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // A resumed session would carry the outdated identity of the client, so resumption is disabled.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    tokio::spawn(replace(
        controller.clone(),
        certificate,
        names,
        replace_after,
    ));
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn server_certificate(
    controller: &Controller,
    names: &watch::Receiver<Vec<String>>,
) -> Result<(CertifiedKey, Duration)> {
    let listens = controller.config.listen.ip();
    let mut names = names.borrow().clone();
    if !listens.is_unspecified() {
        names.push(listens.to_string());
    }
    controller
        .authority
        .server(&names)
        .context("cannot issue the server's certificate")
}

async fn replace(
    controller: Arc<Controller>,
    certificate: Arc<Certificate>,
    mut names: watch::Receiver<Vec<String>>,
    mut after: Duration,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(after) => {}
            changed = names.changed() => if changed.is_err() { return },
            () = controller.shutdown_requested() => return,
        }
        match server_certificate(&controller, &names) {
            Ok((new, replace_after)) => {
                *certificate.0.write() = Arc::new(new);
                after = replace_after;
                tracing::info!(names = ?*names.borrow(), "server certificate replaced");
            }
            Err(error) => {
                tracing::error!(
                    "cannot replace the server's certificate, retrying in an hour: {error:#}"
                );
                after = Duration::from_secs(3600);
            }
        }
    }
}

/// The number of open connections, in total and per address.
#[derive(Default)]
struct Connections {
    by_address: Mutex<HashMap<IpAddr, usize>>,
    all: AtomicUsize,
    closed: Notify,
}

/// The slot of one connection, released when dropped.
struct Slot {
    connections: Arc<Connections>,
    controller: Arc<Controller>,
    address: IpAddr,
}

impl Connections {
    fn enter(
        self: &Arc<Self>,
        controller: &Arc<Controller>,
        address: IpAddr,
    ) -> Result<Slot, &'static str> {
        let limits = &controller.config.limits;
        if self.all.load(Ordering::Relaxed) >= limits.connections {
            return Err("connections");
        }
        let mut by_address = self.by_address.lock();
        let count = by_address.entry(source(address)).or_insert(0);
        if *count >= limits.connections_per_address {
            return Err("connections_per_address");
        }
        *count += 1;
        drop(by_address);
        self.all.fetch_add(1, Ordering::Relaxed);
        controller.metrics.connection_opened();
        Ok(Slot {
            connections: self.clone(),
            controller: controller.clone(),
            address,
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut by_address = self.connections.by_address.lock();
        if let Some(count) = by_address.get_mut(&source(self.address)) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&source(self.address));
            }
        }
        drop(by_address);
        self.controller.metrics.connection_closed();
        if self.connections.all.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.connections.closed.notify_waiters();
        }
    }
}

/// Serves until the controller shuts down, then waits for pending requests.
pub(crate) async fn serve(
    controller: Arc<Controller>,
    listener: TcpListener,
    tls: TlsAcceptor,
    router: Router,
) {
    let connections = Arc::new(Connections::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = controller.shutdown_requested() => break,
        };
        let (socket, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match connections.enter(&controller, address.ip().to_canonical()) {
            Ok(slot) => drop(tokio::spawn(connection(
                slot,
                socket,
                tls.clone(),
                router.clone(),
            ))),
            Err(reason) => controller.metrics.refused(reason),
        }
    }
    drop(listener);
    let closed = async {
        let mut closed = pin!(connections.closed.notified());
        closed.as_mut().enable();
        if connections.all.load(Ordering::Relaxed) > 0 {
            closed.await;
        }
    };
    // Each connection is aborted after that time, and then it closes.
    if tokio::time::timeout(DRAIN_TIMEOUT + ABORT_TIMEOUT, closed)
        .await
        .is_err()
    {
        tracing::warn!("some requests did not finish before the shutdown");
    }
}

async fn connection(slot: Slot, socket: TcpStream, tls: TlsAcceptor, router: Router) {
    let controller = slot.controller.clone();
    let options = socket2::SockRef::from(&socket);
    let unread = controller.config.unread();
    if let Err(error) = socket
        .set_nodelay(true)
        .and_then(|()| options.set_tcp_user_timeout(Some(unread)))
    {
        tracing::debug!("cannot set up a connection: {error}");
        return;
    }
    let handshake = tokio::select! {
        handshake = tokio::time::timeout(controller.config.request_timeout(), tls.accept(socket)) => handshake,
        () = controller.shutdown_requested() => return,
    };
    let stream = match handshake {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            controller.metrics.refused("handshake");
            tracing::debug!(address = %slot.address, "TLS handshake failed: {error}");
            return;
        }
        Err(_) => {
            controller.metrics.refused("slow_handshake");
            return;
        }
    };
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let peer = Peer {
        address: slot.address,
        presented: certificate.and_then(|der| Presented::of(der)),
    };
    serve_http(&controller, stream, peer, router).await;
}

/// Returns a builder of connections with limits on what a client can make the controller keep.
fn limited_builder(config: &Config, is_node: bool) -> Builder<TokioExecutor> {
    let streams = if is_node {
        NODE_STREAMS
    } else {
        ANONYMOUS_STREAMS
    };
    let unread = config.unread();
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.request_timeout())
        .max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .max_send_buf_size(MAX_UNSENT_BYTES)
        .keep_alive_interval(unread)
        .keep_alive_timeout(unread);
    builder
}

async fn serve_http(
    controller: &Arc<Controller>,
    stream: TlsStream<TcpStream>,
    peer: Peer,
    router: Router,
) {
    let responses = Arc::new(Responses::default());
    let is_node = peer.presented.is_some();
    let in_service = responses.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let in_flight = in_service.begin();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        let answer = router.clone().oneshot(request);
        async move {
            let response = answer.await?;
            Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, in_flight)))
        }
    });
    let unread = controller.config.unread();
    let builder = limited_builder(&controller.config, is_node);
    // ALPN is authoritative; detection from the first bytes would have to wait for them.
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let builder = if is_http2 {
        builder.http2_only()
    } else {
        builder.http1_only()
    };
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                tracing::debug!("connection failed: {error}");
            }
            return;
        }
        () = responses.are_unread(unread) => {
            controller.metrics.refused("unread_answer");
            return;
        }
        () = responses.are_idle(Duration::from_secs(controller.config.limits.idle_timeout_s.into())) => {
            controller.metrics.refused("idle_connection");
        }
        () = controller.shutdown_requested() => {}
    }
    connection.as_mut().graceful_shutdown();
    // A connection that does not finish in time is aborted.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, connection).await;
}
