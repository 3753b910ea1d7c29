//! Connections: TLS, HTTP/1.1 and HTTP/2, with limits on their number and duration.

mod answer;
mod certificates;
mod places;

use crate::access::Peer;
use crate::authority::Presented;
use crate::config::TlsConfig;
use crate::controller::Controller;
use crate::tasks::Tasks;
use answer::{Responses, TrackedBody};
use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use certificates::{Certificates, OutsideFiles};
use hawser_io::clock::Period;
use hawser_io::failures::{Change, Failures};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use places::{Place, Places};
use rustls::ServerConfig;
use rustls::sign::CertifiedKey;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt;

/// The pause after a failure to accept, as when the system is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The time that requests have to finish when the controller stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that a connection without requests has to close. It is longer than the other, so that
/// the requests that a shutdown aborts are counted.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(6);

/// The time after which to try again when no certificate can be issued.
const REPLACE_AGAIN: Duration = Duration::from_secs(3600);

/// The maximum number of open connections without TLS. Scrapers and probes need few.
const PLAIN_CONNECTIONS: usize = 64;

const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The maximum amount of data that HTTP/2 buffers for sending.
const MAX_UNSENT_BYTES: usize = 64 * 1024;

/// The flow-control window of HTTP/2: bytes that the client may send before they are read.
const WINDOW_BYTES: u32 = 64 * 1024;

/// The maximum number of concurrent requests on one HTTP/2 connection of a node.
const NODE_STREAMS: u32 = 64;

/// The same for a client without a certificate.
const ANONYMOUS_STREAMS: u32 = 16;

/// The interval at which the files of the certificate from outside are read again.
const READ_OUTSIDE_EVERY: Duration = Duration::from_secs(5);

/// Returns a TLS acceptor with a server certificate of the authority, and starts a task that
/// replaces the certificate before it expires and when its names change. If the configuration names a
/// certificate from outside, the acceptor has that too, and another task follows its files.
pub(crate) fn tls(
    controller: &Arc<Controller>,
    names: watch::Receiver<Vec<String>>,
) -> Result<TlsAcceptor> {
    let (certificate, serves) = server_certificate(controller, &names)?;
    let trusted = controller.authority.roots()?;
    let certificates = Arc::new(Certificates::new(certificate, &trusted));
    if let Some(tls) = &controller.config.tls {
        follow_outside(controller, tls.clone(), certificates.clone())?;
    }
    let mut config = ServerConfig::builder_with_provider(hawser_tls::provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(controller.authority.verifier()?)
        .with_cert_resolver(certificates.clone());
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // A resumed session would carry the outdated identity of the client, so resumption is disabled.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    controller
        .tasks
        .spawn(replace(controller.clone(), certificates, names, serves));
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn server_certificate(
    controller: &Controller,
    names: &watch::Receiver<Vec<String>>,
) -> Result<(CertifiedKey, Period)> {
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
    certificates: Arc<Certificates>,
    mut names: watch::Receiver<Vec<String>>,
    mut serves: Period,
) {
    loop {
        tokio::select! {
            () = serves.over(tokio::time::sleep) => {}
            changed = names.changed() => if changed.is_err() { return },
            () = controller.shutdown_requested() => return,
        }
        serves = replace_own(&certificates, &controller, &names)
            .unwrap_or_else(|| serves.at_least(REPLACE_AGAIN));
    }
}

/// Replaces the certificate by a new one. Returns the period after which to replace that.
fn replace_own(
    certificates: &Certificates,
    controller: &Controller,
    names: &watch::Receiver<Vec<String>>,
) -> Option<Period> {
    match server_certificate(controller, names) {
        Ok((new, serves)) => {
            certificates.set_own(new);
            tracing::info!(names = ?*names.borrow(), "server certificate replaced");
            Some(serves)
        }
        Err(error) => {
            tracing::error!(
                "cannot replace the server's certificate, retrying in an hour: {error:#}"
            );
            None
        }
    }
}

/// Uses the certificate from outside, and starts a task that uses the next one when its files change.
fn follow_outside(
    controller: &Arc<Controller>,
    config: TlsConfig,
    certificates: Arc<Certificates>,
) -> Result<()> {
    let mut files = OutsideFiles::new(config);
    if let Some(first) = files.read()? {
        certificates.set_outside(first);
    }
    let controller = controller.clone();
    let tasks = controller.tasks.clone();
    tasks.spawn(async move {
        let mut failures = Failures::default();
        loop {
            tokio::select! {
                () = tokio::time::sleep(READ_OUTSIDE_EVERY) => {}
                () = controller.shutdown_requested() => return,
            }
            let read = files.read();
            if let Ok(None) = read {
                continue;
            }
            let used = read.map(|next| next.map(|next| certificates.set_outside(next)));
            if used.is_ok() {
                tracing::info!("the certificate of `tls` was replaced");
            }
            if let Some(Change::Failed(error)) = failures.record(used) {
                tracing::error!("the previous certificate of `tls` stays in use: {error:#}");
            }
        }
    });
    Ok(())
}

/// The place of one connection, which is counted until it is dropped.
struct Slot {
    place: Place,
    controller: Arc<Controller>,
}

impl Slot {
    fn of(place: Place, controller: &Arc<Controller>) -> Slot {
        controller.metrics.connection_opened();
        Slot {
            place,
            controller: controller.clone(),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.controller.metrics.connection_closed();
    }
}

/// Serves by TLS until the controller shuts down. Returns when all connections have ended.
pub(crate) async fn serve(
    controller: Arc<Controller>,
    listener: TcpListener,
    tls: TlsAcceptor,
    router: Router,
) {
    let server = HttpServer::new(controller, router);
    let limits = &server.controller.config.limits;
    let places = Places::new(limits.connections, limits.connections_per_address);
    let on_connection = |socket, address: SocketAddr| {
        let controller = &server.controller;
        match places.take(address.ip().to_canonical()) {
            Ok(place) => server.tasks.spawn(connection(
                Slot::of(place, controller),
                socket,
                tls.clone(),
                server.clone(),
            )),
            Err(reason) => controller.metrics.refused(reason),
        }
    };
    server.run(listener, on_connection).await;
}

/// Serves without TLS until the controller shuts down. Returns when all connections have ended.
pub(crate) async fn serve_plain(
    controller: Arc<Controller>,
    listener: TcpListener,
    router: Router,
) {
    let server = HttpServer::new(controller, router);
    let open = Arc::new(Semaphore::new(PLAIN_CONNECTIONS));
    let on_connection = |socket, address: SocketAddr| match open.clone().try_acquire_owned() {
        Ok(permit) => server.tasks.spawn(plain_connection(
            permit,
            socket,
            address.ip(),
            server.clone(),
        )),
        Err(_) => server.controller.metrics.refused("plain_connections"),
    };
    server.run(listener, on_connection).await;
}

/// The routes that a listener serves, and the tasks that do so.
#[derive(Clone)]
struct HttpServer {
    controller: Arc<Controller>,
    router: Router,
    /// The connections, and the requests of those with HTTP/2.
    tasks: Tasks,
}

impl HttpServer {
    fn new(controller: Arc<Controller>, router: Router) -> HttpServer {
        HttpServer {
            controller,
            router,
            tasks: Tasks::default(),
        }
    }

    /// Passes each connection to `on_connection` until the controller shuts down. Then waits until
    /// all connections have ended.
    async fn run(&self, listener: TcpListener, on_connection: impl Fn(TcpStream, SocketAddr)) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.controller.shutdown_requested() => break,
            };
            match accepted {
                Ok((socket, address)) => on_connection(socket, address),
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        let left = self.tasks.end_within(DRAIN_TIMEOUT).await;
        if left > 0 {
            tracing::warn!(
                left,
                "some connections and requests did not finish before the shutdown"
            );
        }
    }
}

async fn plain_connection(
    permit: OwnedSemaphorePermit,
    socket: TcpStream,
    address: IpAddr,
    server: HttpServer,
) {
    if is_set_up(&socket, &server.controller) {
        let presented = None;
        let peer = Peer { address, presented };
        serve_http(&server, socket, false, peer).await;
    }
    drop(permit);
}

/// Sets the options of a connection. Returns `false` if that is impossible.
fn is_set_up(socket: &TcpStream, controller: &Controller) -> bool {
    let options = socket2::SockRef::from(socket);
    let unread = Some(controller.config.unread());
    let outcome = socket
        .set_nodelay(true)
        .and_then(|()| options.set_tcp_user_timeout(unread));
    outcome
        .inspect_err(|error| tracing::debug!("cannot set up a connection: {error}"))
        .is_ok()
}

async fn connection(mut slot: Slot, socket: TcpStream, tls: TlsAcceptor, server: HttpServer) {
    if !is_set_up(&socket, &server.controller) {
        return;
    }
    let Some(stream) = handshake(&slot, socket, &tls).await else {
        return;
    };
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let peer = Peer {
        address: slot.place.address(),
        presented: certificate.and_then(|der| Presented::of(der)),
    };
    if peer.presented.is_some() {
        slot.place.is_known();
    }
    // ALPN is authoritative; detection from the first bytes would have to wait for them.
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    serve_http(&server, stream, is_http2, peer).await;
}

/// Performs the TLS handshake of a connection. Returns `None` if that fails, takes too long, or the
/// controller shuts down.
async fn handshake(
    slot: &Slot,
    socket: TcpStream,
    tls: &TlsAcceptor,
) -> Option<TlsStream<TcpStream>> {
    let controller = &slot.controller;
    let handshake = tokio::select! {
        handshake = tokio::time::timeout(controller.config.request_timeout(), tls.accept(socket)) => handshake,
        () = controller.shutdown_requested() => return None,
    };
    match handshake {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            controller.metrics.refused("handshake");
            tracing::debug!(address = %slot.place.address(), "TLS handshake failed: {error}");
            None
        }
        Err(_) => {
            controller.metrics.refused("slow_handshake");
            None
        }
    }
}

async fn serve_http(
    server: &HttpServer,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    is_http2: bool,
    peer: Peer,
) {
    let controller = &server.controller;
    let builder = limited_builder(server, peer.presented.is_some());
    let builder = if is_http2 {
        builder.http2_only()
    } else {
        builder.http1_only()
    };
    let responses = Arc::new(Responses::default());
    let service = tracked_service(server.router.clone(), peer, responses.clone());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                tracing::debug!("connection failed: {error}");
            }
            return;
        }
        end = end_of_connection(controller, &responses) => match end {
            End::AtOnce => return,
            End::AfterRequests => {}
        },
    }
    connection.as_mut().graceful_shutdown();
    // A connection that does not finish in time is aborted.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, connection).await;
}

/// Returns a builder of connections with limits on what a client can make the controller keep.
fn limited_builder(server: &HttpServer, is_node: bool) -> Builder<Tasks> {
    let streams = if is_node {
        NODE_STREAMS
    } else {
        ANONYMOUS_STREAMS
    };
    let config = &server.controller.config;
    let unread = config.unread();
    let mut builder = Builder::new(server.tasks.clone());
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

/// Returns the service of one connection. It adds the peer to requests and tracks the responses.
fn tracked_service(
    router: Router,
    peer: Peer,
    responses: Arc<Responses>,
) -> impl Service<
    Request<Incoming>,
    Response = Response<TrackedBody>,
    Error = Infallible,
    Future: Send + 'static,
> {
    service_fn(move |request: Request<Incoming>| {
        let in_flight = responses.begin();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        let answer = router.clone().oneshot(request);
        async move {
            let response = answer.await?;
            Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, in_flight)))
        }
    })
}

/// The way in which a connection is ended.
enum End {
    AtOnce,
    AfterRequests,
}

/// Waits until a connection has to end: its client does not read, it is idle, or the controller
/// shuts down.
async fn end_of_connection(controller: &Controller, responses: &Responses) -> End {
    let config = &controller.config;
    let idle = Duration::from_secs(config.limits.idle_timeout_s.into());
    tokio::select! {
        () = responses.are_unread(config.unread()) => {
            controller.metrics.refused("unread_answer");
            End::AtOnce
        }
        () = responses.are_idle(idle) => {
            controller.metrics.refused("idle_connection");
            End::AfterRequests
        }
        () = controller.shutdown_requested() => End::AfterRequests,
    }
}
