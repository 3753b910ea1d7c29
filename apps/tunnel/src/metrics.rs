//! The status as Prometheus metrics, served over HTTP at a loopback address.

use crate::status::Status;
use anyhow::{Context, Result};
use std::fmt::{Display, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The largest number of concurrent requests.
const MAX_REQUESTS: usize = 8;

/// The time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves the result of `status` as metrics at `address`, for any request path.
pub(crate) async fn serve<F, S>(address: SocketAddr, status: F) -> Result<()>
where
    F: Fn() -> S + Send + Sync + 'static,
    S: Future<Output = Status> + Send,
{
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot serve metrics at {address}"))?;
    let (status, requests) = (Arc::new(status), Arc::new(Semaphore::new(MAX_REQUESTS)));
    tokio::spawn(async move {
        loop {
            let Ok(permit) = Arc::clone(&requests).acquire_owned().await else {
                return;
            };
            // `accept` fails if the connection was closed before, or if no file descriptor is left;
            // neither stops the server.
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let status = Arc::clone(&status);
            tokio::spawn(async move {
                // A client that is slow or disconnects gets no answer.
                let _ = timeout(REQUEST_TIMEOUT, answer(stream, &*status)).await;
                drop(permit);
            });
        }
    });
    Ok(())
}

/// Answers a request with enough of HTTP/1.0 for a scraper.
async fn answer<F, S>(mut stream: TcpStream, status: &F) -> Result<()>
where
    F: Fn() -> S,
    S: Future<Output = Status>,
{
    let mut request = [0; 4096];
    let mut length = 0;
    while length < request.len() && !request[..length].windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut request[length..]).await? {
            0 => break,
            more => length += more,
        }
    }
    let page = text(&status().await);
    let header = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n",
        page.len()
    );
    stream.write_all(header.as_bytes()).await?;
    stream.write_all(page.as_bytes()).await?;
    stream.shutdown().await?;
    Ok(())
}

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(
            self.0,
            "# HELP hawser_tunnel_{name} {help}\n# TYPE hawser_tunnel_{name} {kind}"
        );
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels = labels.iter().map(|(label, text)| {
            format!(
                "{label}=\"{}\"",
                text.replace('\\', "\\\\")
                    .replace('"', "\\\"")
                    .replace('\n', "\\n")
            )
        });
        let labels: Vec<_> = labels.collect();
        let _ = writeln!(
            self.0,
            "hawser_tunnel_{name}{{{}}} {value}",
            labels.join(",")
        );
    }
}

/// Formats the status in the text format of Prometheus.
fn text(status: &Status) -> String {
    let mut page = Page(String::new());
    page.family("sessions", "gauge", "Sessions");
    page.value("sessions", &[], status.sessions.len());
    page.family(
        "tables_restored_total",
        "counter",
        "nftables tables restored after another program changed or removed them",
    );
    page.value("tables_restored_total", &[], status.tables_restored);
    session_metrics(&mut page, status);
    path_metrics(&mut page, status);
    page.family(
        "dropped_total",
        "counter",
        "Packets not forwarded and connections not admitted, by reason",
    );
    for (reason, count) in &status.dropped {
        page.value("dropped_total", &[("peer", ""), ("reason", reason)], count);
    }
    for session in &status.sessions {
        for (reason, count) in &session.dropped {
            page.value(
                "dropped_total",
                &[("peer", &session.peer), ("reason", reason)],
                count,
            );
        }
    }
    page.0
}

fn session_metrics(page: &mut Page, status: &Status) {
    type Figure = fn(&crate::status::SessionStatus) -> f64;
    let families: [(&str, &str, &str, Figure); 8] = [
        (
            "sent_bytes_total",
            "counter",
            "Bytes of packets accepted for sending to the peer",
            |s| s.sent_bytes as f64,
        ),
        (
            "received_bytes_total",
            "counter",
            "Bytes of received packets that were forwarded",
            |s| s.received_bytes as f64,
        ),
        (
            "sent_packets_total",
            "counter",
            "Packets accepted for sending to the peer",
            |s| s.sent_packets as f64,
        ),
        (
            "received_packets_total",
            "counter",
            "Packets received from the peer",
            |s| s.received_packets as f64,
        ),
        (
            "recovered_packets_total",
            "counter",
            "Lost packets recovered from coded packets",
            |s| s.recovered_packets as f64,
        ),
        (
            "marked_packets_total",
            "counter",
            "Sent packets that were marked to slow down their senders (ECN)",
            |s| s.marked_packets as f64,
        ),
        (
            "redundancy_ratio",
            "gauge",
            "Bytes sent besides first transmissions, as a share of these",
            |s| s.redundancy_ratio,
        ),
        (
            "mtu_bytes",
            "gauge",
            "The largest packet that fits all paths",
            |s| s.mtu_bytes.into(),
        ),
    ];
    for (name, kind, help, figure) in families {
        page.family(name, kind, help);
        for session in &status.sessions {
            page.value(name, &[("peer", &session.peer)], figure(session));
        }
    }
}

fn path_metrics(page: &mut Page, status: &Status) {
    type Figure = fn(&crate::status::PathStatus) -> f64;
    let families: [(&str, &str, &str, Figure); 7] = [
        (
            "path_sent_bytes_total",
            "counter",
            "Bytes of datagrams sent over a path",
            |p| p.sent_bytes as f64,
        ),
        (
            "path_received_bytes_total",
            "counter",
            "Bytes of datagrams received over a path",
            |p| p.received_bytes as f64,
        ),
        (
            "path_lost_total",
            "counter",
            "Transmissions over a path that were considered lost",
            |p| p.lost as f64,
        ),
        (
            "path_congestion_marks_total",
            "counter",
            "Acknowledgements that reported packets marked by the network (ECN)",
            |p| p.congestion_marks as f64,
        ),
        (
            "path_rtt_seconds",
            "gauge",
            "Smoothed round-trip time",
            |p| p.rtt_ms.unwrap_or(f64::NAN) / 1e3,
        ),
        ("path_window_bytes", "gauge", "Congestion window", |p| {
            p.window_bytes as f64
        }),
        (
            "path_unacknowledged_seconds",
            "gauge",
            "Time for which sent packets have not been acknowledged",
            |p| p.unacknowledged_ms as f64 / 1e3,
        ),
    ];
    for (name, kind, help, figure) in families {
        page.family(name, kind, help);
        for session in &status.sessions {
            for path in &session.paths {
                page.value(
                    name,
                    &[("peer", &session.peer), ("path", &path.name)],
                    figure(path),
                );
            }
        }
    }
}
