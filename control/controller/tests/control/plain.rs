//! The listener without TLS.

use crate::rig::{Rig, TIMEOUT};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

async fn rig() -> (Rig, SocketAddr) {
    let rig = Rig::with(|config| {
        config.metrics_listen = Some((Ipv4Addr::LOCALHOST, 0).into());
        config.limits.idle_timeout_s = 1;
        config.limits.request_timeout_s = 1;
    })
    .await;
    let address = rig.server.metrics_address().unwrap();
    (rig, address)
}

/// Waits until the controller closes a connection. Returns the response.
async fn closed(mut socket: TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is an end too.
    let _ = timeout(TIMEOUT, socket.read_to_end(&mut text))
        .await
        .unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn plain_connections_are_closed_when_idle_or_slow() {
    let (rig, address) = rig().await;
    let answer = async |start: &str| {
        let mut socket = TcpStream::connect(address).await.unwrap();
        // A busy machine may be slow itself.
        let _ = socket.write_all(start.as_bytes()).await;
        closed(socket).await
    };
    let head = "GET /healthz HTTP/1.1\r\nHost: a\r\n";
    for start in ["", head] {
        let answer = answer(start).await;
        assert!(!answer.contains(" 200 "), "{start}: {answer}");
    }
    let whole = format!("{head}\r\n");
    rig.until(async || answer(&whole).await.contains(" 200 "))
        .await;
}

#[tokio::test]
async fn connections_without_tls_are_few() {
    let (rig, address) = rig().await;
    let mut open = Vec::new();
    let refused = r#"refused_total{reason="plain_connections"}"#;
    let is_refused = async || {
        let metrics = rig.get("/metrics").await.body;
        metrics.as_str().unwrap().contains(refused)
    };
    while !is_refused().await {
        assert!(open.len() < 1000);
        for _ in 0..32 {
            open.push(TcpStream::connect(address).await.unwrap());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(open);
    rig.until(async || {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let request = "GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        // The connection may be refused still.
        let _ = socket.write_all(request.as_bytes()).await;
        closed(socket).await.contains(" 200 ")
    })
    .await;
}
