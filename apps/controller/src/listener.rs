//! Connections: TLS, HTTP/1.1 and HTTP/2, and how many of them and for how long.

mod answer;

use crate::access::Peer;
use crate::authority::Presented;
use crate::controller::Controller;
use crate::limit::source;
use answer::{Answers, Followed};
use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt;

/// When the machine is out of descriptors or memory, accepting waits so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long requests may take to finish when the controller ends.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// How long connections that are cut may take to be closed.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);

const MAX_HEAD_BYTES: usize = 16 * 1024;

/// What a connection may hold that its other end has not taken.
const MAX_UNSENT_BYTES: usize = 64 * 1024;

/// Bytes that the other end of an HTTP/2 connection may send before they are read.
const WINDOW_BYTES: u32 = 64 * 1024;

/// Requests at once on one HTTP/2 connection of a node.
const NODE_STREAMS: u32 = 64;

/// The same when no certificate says who it is.
const STRANGER_STREAMS: u32 = 16;

/// The server's certificate, replaced while it runs.
#[derive(Debug)]
struct Certificate(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(
            self.0
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        )
    }
}

/// TLS with the authority's certificates, and a task that replaces the server's before it ends and when it is to have other
/// names.
pub(crate) fn tls(
    controller: &Arc<Controller>,
    names: watch::Receiver<Vec<String>>,
) -> Result<TlsAcceptor> {
    let (certificate, replace_after) = server_certificate(controller, &names)?;
    let certificate = Arc::new(Certificate(RwLock::new(Arc::new(certificate))));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(controller.authority.verifier()?)
        .with_cert_resolver(certificate.clone());
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // What a resumed session says of the client's certificate would be from before.
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
        .context("cannot make the server's certificate")
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
            () = controller.ended() => return,
        }
        match server_certificate(&controller, &names) {
            Ok((new, replace_after)) => {
                *certificate
                    .0
                    .write()
                    .unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                after = replace_after;
                tracing::info!(names = ?*names.borrow(), "the server has a new certificate");
            }
            Err(error) => {
                tracing::error!("the server's certificate stays as it was: {error:#}");
                after = Duration::from_secs(3600);
            }
        }
    }
}

/// How many connections there are, in all and by address.
#[derive(Default)]
struct Open {
    by_address: Mutex<HashMap<IpAddr, usize>>,
    all: AtomicUsize,
    closed: Notify,
}

/// One connection's place among those.
struct Place {
    open: Arc<Open>,
    controller: Arc<Controller>,
    address: IpAddr,
}

impl Open {
    fn enter(
        self: &Arc<Self>,
        controller: &Arc<Controller>,
        address: IpAddr,
    ) -> Result<Place, &'static str> {
        let limits = &controller.config.limits;
        if self.all.load(Ordering::Relaxed) >= limits.connections {
            return Err("connections");
        }
        let mut by_address = self
            .by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = by_address.entry(source(address)).or_insert(0);
        if *count >= limits.connections_per_address {
            return Err("connections_per_address");
        }
        *count += 1;
        drop(by_address);
        self.all.fetch_add(1, Ordering::Relaxed);
        controller.metrics.connection_opened();
        Ok(Place {
            open: self.clone(),
            controller: controller.clone(),
            address,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_address = self
            .open
            .by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_address.get_mut(&source(self.address)) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&source(self.address));
            }
        }
        drop(by_address);
        self.controller.metrics.connection_closed();
        if self.open.all.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.open.closed.notify_waiters();
        }
    }
}

/// Serves until the controller ends, then waits for what is on its way.
pub(crate) async fn serve(
    controller: Arc<Controller>,
    listener: TcpListener,
    tls: TlsAcceptor,
    router: Router,
) {
    let open = Arc::new(Open::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = controller.ended() => break,
        };
        let (socket, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match open.enter(&controller, address.ip().to_canonical()) {
            Ok(place) => drop(tokio::spawn(connection(
                place,
                socket,
                tls.clone(),
                router.clone(),
            ))),
            Err(reason) => controller.metrics.refused(reason),
        }
    }
    drop(listener);
    let closed = async {
        let mut closed = pin!(open.closed.notified());
        closed.as_mut().enable();
        if open.all.load(Ordering::Relaxed) > 0 {
            closed.await;
        }
    };
    // Each connection is cut after that time, and then it is closed.
    if tokio::time::timeout(FINISH_WITHIN + CLOSED_WITHIN, closed)
        .await
        .is_err()
    {
        tracing::warn!("some requests did not finish");
    }
}

async fn connection(place: Place, socket: TcpStream, tls: TlsAcceptor, router: Router) {
    let controller = place.controller.clone();
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
        () = controller.ended() => return,
    };
    let stream = match handshake {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            controller.metrics.refused("handshake");
            tracing::debug!(address = %place.address, "handshake: {error}");
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
        address: place.address,
        presented: certificate.and_then(|der| Presented::of(der)),
    };
    serve_http(&controller, stream, peer, router).await;
}

async fn serve_http(
    controller: &Arc<Controller>,
    stream: TlsStream<TcpStream>,
    peer: Peer,
    router: Router,
) {
    let answers = Arc::new(Answers::default());
    let streams = if peer.presented.is_some() {
        NODE_STREAMS
    } else {
        STRANGER_STREAMS
    };
    let in_service = answers.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let in_flight = in_service.begin();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        let answer = router.clone().oneshot(request);
        async move {
            let response = answer.await?;
            Ok::<_, Infallible>(response.map(|body| Followed::new(body, in_flight)))
        }
    });
    let timeout = controller.config.request_timeout();
    let unread = controller.config.unread();
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout)
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
    // Told by TLS; to guess from the first bytes would mean to wait for them.
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
                tracing::debug!("a connection: {error}");
            }
            return;
        }
        () = answers.are_unread(unread) => {
            controller.metrics.refused("unread_answer");
            return;
        }
        () = answers.are_idle(Duration::from_secs(controller.config.limits.idle_s.into())) => {
            controller.metrics.refused("idle_connection");
        }
        () = controller.ended() => {}
    }
    connection.as_mut().graceful_shutdown();
    // What does not end then is cut.
    let _ = tokio::time::timeout(FINISH_WITHIN, connection).await;
}
