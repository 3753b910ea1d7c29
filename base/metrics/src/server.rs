//! Serves pages of metrics over HTTP, and other pages with the same limits.

use crate::{Metrics, page};
use axum::extract::ConnectInfo;
use axum::http::header::CONTENT_TYPE;
use axum::{Extension, Router};
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The largest number of connections; more wait until one is closed.
const MAX_CONNECTIONS: usize = 64;

/// The time limit of a connection, which carries one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit for the head of a request. A collector sends it at once.
const HEAD_TIMEOUT: Duration = Duration::from_secs(1);

/// The largest head of a request, in bytes. Bodies are not read.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The bytes that wait in the kernel to be sent, from which on it takes no more.
const UNSENT_BYTES: u32 = 64 * 1024;

/// The pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Parses an address at which metrics may be served. It has to be of the loopback interface, because
/// metrics are not protected.
///
/// # Errors
/// A message that says what is wrong.
pub fn parse_loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("\"{text}\" is not ADDRESS:PORT"))?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "{address} is not a loopback address such as 127.0.0.1:9478: metrics are not protected"
        ));
    }
    Ok(address)
}

/// Checks the address of metrics in a configuration file. `port` is the one of the message's example.
///
/// # Errors
/// A message that says what is wrong.
pub fn check_loopback(address: SocketAddr, port: u16) -> Result<(), String> {
    match address.ip().is_loopback() {
        true => Ok(()),
        false => Err(format!(
            "metrics is a loopback address such as 127.0.0.1:{port}, because metrics are not protected"
        )),
    }
}

/// Serves the figures that `figures` returns at `address`, for any request path, with `prefix` in front of their names.
///
/// # Errors
/// If the address is in use or not one of this machine.
pub async fn serve<M: Metrics + 'static>(
    address: SocketAddr,
    prefix: &'static str,
    figures: impl Fn() -> M + Clone + Send + Sync + 'static,
) -> io::Result<()> {
    let listener = bind(address, "metrics").await?;
    let router = router(prefix, figures);
    tokio::spawn(accept(listener, router, None, REQUEST_TIMEOUT));
    Ok(())
}

async fn bind(address: SocketAddr, content: &str) -> io::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let message = format!("cannot serve {content} at {address}: {error}");
        io::Error::new(error.kind(), message)
    })
}

/// Does what [`serve`] does, in a thread of its own, for a program that has no executor. Returns the
/// address, whose port is free before if that of `address` is 0.
///
/// # Errors
/// If the address is in use or not one of this machine, or no thread can be started.
pub fn serve_in_thread<M: Metrics + 'static>(
    address: SocketAddr,
    prefix: &'static str,
    figures: impl Fn() -> M + Clone + Send + Sync + 'static,
) -> io::Result<SocketAddr> {
    serve_router_in_thread(address, "metrics", router(prefix, figures), None)
}

/// Serves the answers of a router, with the limits of metrics: one request for each connection, and few connections. Requests
/// have the client's address (`ConnectInfo`). A connection that is upgraded to another protocol is beyond these limits. The
/// thread has the name of the content. With `tls`, it is HTTPS.
///
/// # Errors
/// As those of [`serve_in_thread`].
pub fn serve_router_in_thread(
    address: SocketAddr,
    content: &'static str,
    router: Router,
    tls: Option<Arc<ServerConfig>>,
) -> io::Result<SocketAddr> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = runtime.block_on(bind(address, content))?;
    let address = listener.local_addr()?;
    let tls = tls.map(TlsAcceptor::from);
    let accept = accept(listener, router, tls, REQUEST_TIMEOUT);
    thread::Builder::new()
        .name(content.to_owned())
        .spawn(move || runtime.block_on(accept))?;
    Ok(address)
}

fn router<M: Metrics + 'static>(
    prefix: &'static str,
    figures: impl Fn() -> M + Clone + Send + Sync + 'static,
) -> Router {
    let page = move || page(prefix, &figures());
    Router::new().fallback(async move || ([(CONTENT_TYPE, OPENMETRICS)], page()))
}

/// Accepts connections and closes each after its request, or after `limit`.
async fn accept(listener: TcpListener, router: Router, tls: Option<TlsAcceptor>, limit: Duration) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Ok(permit) = Arc::clone(&connections).acquire_owned().await {
        // `accept` fails if the connection was closed before, or if no file descriptor is left;
        // neither stops the server.
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let router = router.clone().layer(Extension(ConnectInfo(from)));
        let tls = tls.clone();
        tokio::spawn(async move {
            // A client that is slow or disconnects gets no answer.
            let _ = timeout(limit, serve_client(stream, router, tls)).await;
            drop(permit);
        });
    }
}

async fn serve_client(stream: TcpStream, router: Router, tls: Option<TlsAcceptor>) {
    // Bytes on an upgraded connection leave at once, and wait where later ones can still take their place.
    // Without these options it is slower only.
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES);
    let Some(tls) = tls else {
        return answer(stream, router).await;
    };
    match tls.accept(stream).await {
        Ok(stream) => answer(stream, router).await,
        Err(error) => tracing::debug!("no handshake of TLS: {error}"),
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let mut http = Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_HEAD_BYTES);
    let service = TowerToHyperService::new(router);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.with_upgrades().await {
        tracing::debug!("cannot answer a request: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::watch;
    use tokio::task::JoinSet;

    /// Longer than a busy machine takes for a request.
    const SLOW: Duration = Duration::from_secs(60);

    /// Starts a server that closes connections after `limit`; returns its address.
    async fn server(router: Router, limit: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(accept(listener, router, None, limit));
        address
    }

    /// Requests a page, again if it is not served because the request came too late.
    async fn request(address: SocketAddr) -> String {
        loop {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
            let mut page = String::new();
            if stream.write_all(request).await.is_ok()
                && stream.read_to_string(&mut page).await.is_ok()
                && page.starts_with("HTTP/1.1 200")
            {
                return page;
            }
        }
    }

    #[tokio::test]
    async fn silent_connections_close_before_others_time_out() {
        let address = server(Router::new().fallback(async || "page"), SLOW).await;
        let mut silent = Vec::new();
        for _ in 0..2 * MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let began = tokio::time::Instant::now();
        let page = request(address).await;
        assert!(page.ends_with("page"), "{page}");
        assert!(began.elapsed() < SLOW / 2);
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_wait_for_a_place() {
        let (running, release) = (watch::Sender::new(0), Arc::new(Semaphore::new(0)));
        let router = Router::new().fallback({
            let (running, release) = (running.clone(), Arc::clone(&release));
            async move || {
                running.send_modify(|count| *count += 1);
                let _ = release.acquire().await;
                let count = *running.borrow();
                running.send_modify(|count| *count -= 1);
                count.to_string()
            }
        });
        let address = server(router, REQUEST_TIMEOUT * 100).await;
        let mut clients = JoinSet::new();
        for _ in 0..2 * MAX_CONNECTIONS {
            clients.spawn(request(address));
        }
        let mut running = running.subscribe();
        running
            .wait_for(|count| *count == MAX_CONNECTIONS)
            .await
            .unwrap();
        release.close();
        for page in clients.join_all().await {
            let (_, count) = page.split_once("\r\n\r\n").unwrap();
            assert!(count.parse::<usize>().unwrap() <= MAX_CONNECTIONS, "{page}");
        }
    }

    #[tokio::test]
    async fn a_client_that_sends_no_request_is_disconnected() {
        let address = server(Router::new(), Duration::from_millis(50)).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may close the connection before.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n").await;
        assert_eq!(stream.read(&mut [0; 64]).await.unwrap_or(0), 0);
    }

    #[tokio::test]
    async fn a_request_without_end_is_rejected() {
        let address = server(Router::new().fallback(async || ""), REQUEST_TIMEOUT * 100).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let header = [b'a'; 2 * MAX_HEAD_BYTES];
        // The server may close the connection before it has read all.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nname: ").await;
        let _ = stream.write_all(&header).await;
        let mut page = Vec::new();
        let _ = stream.read_to_end(&mut page).await;
        assert!(!page.starts_with(b"HTTP/1.1 200"));
    }

    #[test]
    fn metrics_are_served_on_loopback_only() {
        for address in ["127.0.0.1:9478", "[::1]:0"] {
            assert_eq!(parse_loopback(address).unwrap().to_string(), address);
        }
        for (address, message) in [
            ("0.0.0.0:9478", "not a loopback address"),
            ("192.0.2.1:9478", "not a loopback address"),
            ("localhost", "is not ADDRESS:PORT"),
        ] {
            assert!(parse_loopback(address).unwrap_err().contains(message));
        }
    }

    struct Count(u64);

    impl Metrics for Count {
        fn write(&self, page: &mut crate::Page, _: Option<crate::Family>, _: &[&'static str]) {
            page.gauge("pages", "Pages before", self.0);
        }
    }

    #[tokio::test]
    async fn a_program_without_executor_serves_pages_of_the_present() {
        let count = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let figures = move || Count(count.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let address = std::thread::spawn(move || {
            serve_in_thread("127.0.0.1:0".parse().unwrap(), "test", figures).unwrap()
        });
        let address = address.join().unwrap();
        for expected in ["test_pages{} 0.0\n# EOF\n", "test_pages{} 1.0\n# EOF\n"] {
            let page = request(address).await;
            assert!(
                page.contains(OPENMETRICS) && page.ends_with(expected),
                "{page}"
            );
        }
        let taken = std::thread::spawn(move || serve_in_thread(address, "test", || None::<u64>));
        let error = taken.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
