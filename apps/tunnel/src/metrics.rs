//! The status as metrics in the OpenMetrics text format, served over HTTP at a loopback address.

use crate::status::{PathStatus, SessionStatus, Status};
use anyhow::{Context, Result};
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The largest number of connections; more wait until one is closed.
const MAX_CONNECTIONS: usize = 64;

/// The time limit of a connection, which carries one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit for the head of a request. A collector sends it at once.
const HEAD_TIMEOUT: Duration = Duration::from_secs(1);

/// The largest head of a request, in bytes. Bodies are not read.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The last status that was written, which is served as metrics.
pub(crate) type LastStatus = Arc<Mutex<Status>>;

/// Serves the status as metrics at `address`, for any request path.
pub(crate) async fn serve(address: SocketAddr, status: LastStatus) -> Result<()> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot serve metrics at {address}"))?;
    let page = move || {
        let status = status.lock().clone();
        async move { ([(CONTENT_TYPE, OPENMETRICS)], text(status)) }
    };
    let router = Router::new().fallback(page);
    tokio::spawn(accept(listener, router, REQUEST_TIMEOUT));
    Ok(())
}

/// Accepts connections and closes each after its request, or after `limit`.
async fn accept(listener: TcpListener, router: Router, limit: Duration) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Ok(permit) = Arc::clone(&connections).acquire_owned().await {
        // `accept` fails if the connection was closed before, or if no file descriptor is left;
        // neither stops the server.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let router = router.clone();
        tokio::spawn(async move {
            // A client that is slow or disconnects gets no answer.
            let _ = timeout(limit, answer(stream, router)).await;
            drop(permit);
        });
    }
}

async fn answer(stream: TcpStream, router: Router) {
    let mut http = Builder::new(TokioExecutor::new()).http1_only();
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_HEAD_BYTES);
    let service = TowerToHyperService::new(router);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!("cannot answer a request for metrics: {error}");
    }
}

/// Formats the status in the OpenMetrics text format.
fn text(status: Status) -> String {
    let mut registry = Registry::with_prefix("hawser_tunnel");
    registry.register_collector(Box::new(Metrics(status)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes everything");
    text
}

/// A metric with its value for each `T`.
struct Metric<T> {
    name: &'static str,
    help: &'static str,
    value: Value<T>,
}

enum Value<T> {
    Counter(fn(&T) -> u64),
    Gauge(fn(&T) -> f64),
}

const STATUS_METRICS: [Metric<Status>; 2] = [
    gauge("sessions", "Sessions", |s| s.sessions.len() as f64),
    counter(
        "tables_restored",
        "nftables tables restored after another program changed or removed them",
        |s| s.tables_restored,
    ),
];

const SESSION_METRICS: [Metric<SessionStatus>; 9] = [
    counter(
        "sent_bytes",
        "Bytes of packets accepted for sending to the peer",
        |s| s.sent_bytes,
    ),
    counter(
        "received_bytes",
        "Bytes of received packets that were forwarded",
        |s| s.received_bytes,
    ),
    counter(
        "sent_packets",
        "Packets accepted for sending to the peer",
        |s| s.sent_packets,
    ),
    counter("received_packets", "Packets received from the peer", |s| {
        s.received_packets
    }),
    counter(
        "recovered_packets",
        "Lost packets recovered from coded packets",
        |s| s.recovered_packets,
    ),
    counter(
        "marked_packets",
        "Sent packets that were marked to slow down their senders (ECN)",
        |s| s.marked_packets,
    ),
    counter(
        "network_marked_packets",
        "Received packets that were marked because the network had marked their datagram (ECN)",
        |s| s.network_marked_packets,
    ),
    gauge(
        "redundancy_ratio",
        "Bytes sent besides first transmissions, as a share of these",
        |s| s.redundancy_ratio,
    ),
    gauge("mtu_bytes", "The largest packet that fits all paths", |s| {
        s.mtu_bytes.into()
    }),
];

const PATH_METRICS: [Metric<PathStatus>; 7] = [
    counter(
        "path_sent_bytes",
        "Bytes of datagrams sent over a path",
        |p| p.sent_bytes,
    ),
    counter(
        "path_received_bytes",
        "Bytes of datagrams received over a path",
        |p| p.received_bytes,
    ),
    counter(
        "path_lost",
        "Transmissions over a path that were considered lost",
        |p| p.lost,
    ),
    counter(
        "path_congestion_marks",
        "Acknowledgements that reported packets marked by the network (ECN)",
        |p| p.congestion_marks,
    ),
    gauge("path_rtt_seconds", "Smoothed round-trip time", |p| {
        p.rtt_ms.unwrap_or(f64::NAN) / 1e3
    }),
    gauge("path_window_bytes", "Congestion window", |p| {
        p.window_bytes as f64
    }),
    gauge(
        "path_unacknowledged_seconds",
        "Time for which sent packets have not been acknowledged",
        |p| p.unacknowledged_ms as f64 / 1e3,
    ),
];

const fn counter<T>(name: &'static str, help: &'static str, value: fn(&T) -> u64) -> Metric<T> {
    Metric {
        name,
        help,
        value: Value::Counter(value),
    }
}

const fn gauge<T>(name: &'static str, help: &'static str, value: fn(&T) -> f64) -> Metric<T> {
    Metric {
        name,
        help,
        value: Value::Gauge(value),
    }
}

impl<T> Metric<T> {
    /// Encodes one sample for each item of `samples`, a set of labels and what it describes.
    fn encode<'s, L: EncodeLabelSet>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        samples: impl Iterator<Item = (L, &'s T)>,
    ) -> fmt::Result
    where
        T: 's,
    {
        let metric_type = match self.value {
            Value::Counter(_) => MetricType::Counter,
            Value::Gauge(_) => MetricType::Gauge,
        };
        let mut family = encoder.encode_descriptor(self.name, self.help, None, metric_type)?;
        for (labels, status) in samples {
            let sample = family.encode_family(&labels)?;
            match self.value {
                Value::Counter(value) => ConstCounter::new(value(status)).encode(sample)?,
                Value::Gauge(value) => ConstGauge::new(value(status)).encode(sample)?,
            }
        }
        Ok(())
    }
}

/// The metrics of a status.
#[derive(Debug)]
struct Metrics(Status);

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = &self.0;
        let no_labels: [(&str, &str); 0] = [];
        for metric in STATUS_METRICS {
            metric.encode(&mut encoder, [(no_labels, status)].into_iter())?;
        }
        for metric in SESSION_METRICS {
            let sessions = status.sessions.iter();
            let samples = sessions.map(|session| ([("peer", session.peer.as_str())], session));
            metric.encode(&mut encoder, samples)?;
        }
        for metric in PATH_METRICS {
            let samples = status.sessions.iter().flat_map(|session| {
                let peer = ("peer", session.peer.as_str());
                let paths = session.paths.iter();
                paths.map(move |path| ([peer, ("path", path.name.as_str())], path))
            });
            metric.encode(&mut encoder, samples)?;
        }
        self.encode_drops(&mut encoder)
    }
}

impl Metrics {
    fn encode_drops(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let metric = counter(
            "dropped",
            "Packets not forwarded and connections not admitted, by reason",
            |count| *count,
        );
        let sessions = self.0.sessions.iter();
        let all = std::iter::once(("", &self.0.dropped))
            .chain(sessions.map(|session| (session.peer.as_str(), &session.dropped)));
        let samples = all.flat_map(|(peer, dropped)| {
            dropped
                .iter()
                .map(move |(reason, count)| ([("peer", peer), ("reason", reason.as_str())], count))
        });
        metric.encode(encoder, samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::watch;
    use tokio::task::JoinSet;

    /// The documentation with the table of metrics.
    const DOCUMENTATION: &str = include_str!("../../../docs/tunnel.md");

    fn status() -> Status {
        let path = serde_json::json!({
            "name": "wan0", "remote": null, "cost": 0, "standby": false, "rtt_ms": 12.5, "rtt_min_ms": 10.0,
            "unacknowledged_ms": 250, "window_bytes": 14_000, "in_flight_bytes": 0, "sent_bytes": 5_000,
            "received_bytes": 6_000, "arrived": 4, "lost": 3, "recovery": 0, "congestion_marks": 2,
            "sent_mbps": 0.0, "received_mbps": 0.0, "loss_ratio": 0.0,
        });
        let session = serde_json::json!({
            "peer": "the \"car\"", "addresses": [], "since_unix_ms": 0, "mtu_bytes": 1400, "sent_packets": 7,
            "sent_bytes": u64::MAX, "received_packets": 8, "received_bytes": 9, "recovered_packets": 10,
            "lost_packets": 11, "redundancy_ratio": 0.5, "sent_mbps": 0.0, "received_mbps": 0.0,
            "paths": [path], "dropped": { "spoofed": 12 },
        });
        serde_json::from_value(serde_json::json!({
            "name": "server", "role": "server", "version": "1", "pid": 1, "written_unix_ms": 0, "draining": false,
            "addresses": [], "sessions": [session], "uplinks": [], "dropped": { "no_client": 13 },
        }))
        .unwrap()
    }

    /// Returns name, type and labels of each metric in a page.
    fn served(page: &str) -> BTreeSet<(String, String, String)> {
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let described = types.map(|line| {
            let (name, kind) = line.split_once(' ').unwrap();
            let suffix = if kind == "counter" { "_total" } else { "" };
            let name = format!("{name}{suffix}");
            let sample = page
                .lines()
                .find(|line| line.split(['{', ' ']).next() == Some(&name))
                .unwrap_or_else(|| panic!("{name} has no sample: {page}"));
            let labels = sample.split(['{', ',']).skip(1);
            let labels = labels.filter_map(|label| Some(label.split_once('=')?.0));
            let labels: Vec<_> = labels.collect();
            (name, kind.to_owned(), labels.join(" "))
        });
        described.collect()
    }

    /// Returns the same from the documentation.
    fn documented() -> BTreeSet<(String, String, String)> {
        let rows = DOCUMENTATION
            .lines()
            .filter(|line| line.starts_with("| `hawser_tunnel_"));
        let rows = rows.map(|line| {
            let cells: Vec<_> = line
                .split('|')
                .map(|cell| cell.replace(['`', ','], ""))
                .collect();
            let cell = |number: usize| cells[number].trim().to_owned();
            (cell(1), cell(2), cell(3))
        });
        rows.collect()
    }

    #[test]
    fn the_metrics_are_those_of_the_documentation() {
        let (served, documented) = (served(&text(status())), documented());
        assert_eq!(served.len(), 19);
        assert_eq!(served, documented);
    }

    #[test]
    fn values_and_labels_are_those_of_the_status() {
        let page = text(status());
        for sample in [
            "hawser_tunnel_sessions{} 1.0",
            "hawser_tunnel_sent_bytes_total{peer=\"the \\\"car\\\"\"} 18446744073709551615",
            "hawser_tunnel_path_rtt_seconds{peer=\"the \\\"car\\\"\",path=\"wan0\"} 0.0125",
            "hawser_tunnel_dropped_total{peer=\"\",reason=\"no_client\"} 13",
            "hawser_tunnel_dropped_total{peer=\"the \\\"car\\\"\",reason=\"spoofed\"} 12",
        ] {
            assert!(page.lines().any(|line| line == sample), "{sample}: {page}");
        }
    }

    /// Starts a server that closes connections after `limit`; returns its address.
    async fn server(router: Router, limit: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(accept(listener, router, limit));
        address
    }

    async fn request(stream: &mut TcpStream) -> String {
        let request = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).await.unwrap();
        page
    }

    #[tokio::test]
    async fn silent_connections_are_closed_before_the_next_requests_time_out() {
        let address = server(Router::new().fallback(async || "page"), REQUEST_TIMEOUT).await;
        let mut silent = Vec::new();
        for _ in 0..2 * MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let began = tokio::time::Instant::now();
        let page = request(&mut TcpStream::connect(address).await.unwrap()).await;
        assert!(page.ends_with("page"), "{page}");
        assert!(began.elapsed() < 2 * HEAD_TIMEOUT + REQUEST_TIMEOUT / 2);
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_wait_until_another_one_is_closed() {
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
            clients.spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                request(&mut stream).await
            });
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
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\n")
            .await
            .unwrap();
        assert_eq!(stream.read(&mut [0; 64]).await.unwrap(), 0);
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
}
