//! Clients that are slow, not authorised or too many.

mod support;

use hawser_moq::ServerStats;
use hawser_packets::moq::{self, track_name};
use moq_net::Version;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use support::*;
use tokio::task::JoinSet;
use tokio::time::timeout;

const TOKEN: &str = "0123456789abcdef";

fn version(name: &str) -> Version {
    name.parse().unwrap()
}

/// Waits until a condition holds.
async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.unwrap();
}

const SIZE: usize = 100_000;

/// Publishes 800 groups while a client reads nothing. Returns how many of them it gets afterwards.
async fn publish_to_a_slow_client(version: Version, cache: u64) -> (u32, ServerStats) {
    let (server, mut egress) = open(|config| config.cache_bytes = cache);
    let mut publisher = Publisher::new(1);
    publisher.announce(&mut egress, 0);
    let connect = || async {
        let fingerprint = server.fingerprint();
        let address = server.local_address();
        let client = Client::connect(address, &fingerprint, Over::Quic, version, "/");
        let client = client.await.unwrap();
        let broadcast = client.broadcast(NAME).await;
        let track = subscribe(&broadcast, &track_name(ALIAS, 0)).await;
        (client, broadcast, track)
    };
    let (slow, _slow_broadcast, mut slow_track) = connect().await;
    let (_fast, _fast_broadcast, mut fast_track) = connect().await;
    egress.publish(&publisher.object(0, 0, &[0; SIZE]));
    next(&mut slow_track).await.unwrap();
    next(&mut fast_track).await.unwrap();

    slow.is_shut.store(true, Relaxed);
    for group in 1..=800 {
        egress.publish(&publisher.object(group, 0, &[group as u8; SIZE]));
        let taken = next(&mut fast_track).await.unwrap();
        assert!(taken.len() > SIZE, "the other one gets every object");
        let cached = server.stats().cached_bytes;
        assert!(cached < cache + 2 * SIZE as u64, "{cached}");
    }
    slow.is_shut.store(false, Relaxed);
    let last = publisher.object(801, 0, &[7; SIZE]);
    egress.publish(&last);
    let last = moq::emit(last.datagrams.iter().map(|d| &d[..])).unwrap();
    let mut taken = 0;
    while next(&mut slow_track).await.unwrap() != last {
        taken += 1;
    }
    (taken, server.stats())
}

#[tokio::test]
async fn a_slow_client_misses_groups_and_each_is_counted() {
    for name in ["moq-transport-22", "moq-transport-21", "moq-lite-06"] {
        let (taken, stats) = publish_to_a_slow_client(version(name), 2 << 20).await;
        assert!(taken < 100, "{taken}");
        let missed = u64::from(800 - taken);
        let not_sent = stats.offered_groups - stats.sent_groups + stats.stale_groups;
        // The client itself may pass over some that it was sent.
        assert!(not_sent + 20 > missed, "{name}: {missed} missed: {stats:?}");
        assert!(stats.cut_groups > 0, "{name}: {stats:?}");
    }
}

#[tokio::test]
async fn those_without_the_token_are_refused() {
    let (server, mut egress) = open(|config| config.token = Some(TOKEN.parse().unwrap()));
    Publisher::new(1).announce(&mut egress, 0);
    let fingerprint = server.fingerprint();
    for over in [Over::Quic, Over::WebTransport] {
        let connect = async |target: String| {
            let version = version("moq-transport-22");
            let client =
                Client::connect(server.local_address(), &fingerprint, over, version, &target);
            client.await.unwrap()
        };
        for target in ["/", "/?token=0123456789abcdeF"] {
            let refused = connect(target.to_owned()).await;
            refused.session.closed().await;
        }
        let elsewhere = connect(format!("/else?token={TOKEN}")).await;
        elsewhere.session.closed().await;
        let admitted = connect(format!("/?token={TOKEN}")).await;
        catalog(&admitted.broadcast(NAME).await).await;
    }
    let stats = server.stats();
    assert_eq!((stats.unauthorised, stats.wrong_path), (4, 2), "{stats:?}");
}

#[tokio::test]
async fn there_are_no_more_sessions_than_there_may_be() {
    let (server, mut egress) = open(|config| config.sessions = 1);
    Publisher::new(1).announce(&mut egress, 0);
    let fingerprint = server.fingerprint();
    let connect = || {
        let (address, version) = (server.local_address(), version("moq-lite-06"));
        Client::connect(address, &fingerprint, Over::Quic, version, "/")
    };
    let first = connect().await.unwrap();
    catalog(&first.broadcast(NAME).await).await;
    assert!(connect().await.is_err());
    // A client that is slow asks a second time before it hears the answer.
    assert!(server.stats().full > 0);
    drop(first);
    until(|| server.stats().sessions == 0).await;
    let second = connect().await.unwrap();
    catalog(&second.broadcast(NAME).await).await;
}

#[tokio::test]
async fn sessions_of_a_source_leave_places_to_others() {
    let (server, mut egress) = open(|config| config.sessions = 4);
    Publisher::new(1).announce(&mut egress, 0);
    let fingerprint = server.fingerprint();
    let connect = |from: [u8; 4]| {
        let (address, version) = (server.local_address(), version("moq-lite-06"));
        Client::connect_from(from.into(), address, &fingerprint, version)
    };
    let mut clients = Vec::new();
    for _ in 0..3 {
        let client = connect([127, 0, 0, 1]).await.unwrap();
        catalog(&client.broadcast(NAME).await).await;
        clients.push(client);
    }
    assert!(connect([127, 0, 0, 1]).await.is_err());
    assert!(server.stats().full > 0);
    let other = connect([127, 9, 0, 1]).await.unwrap();
    catalog(&other.broadcast(NAME).await).await;
}

#[tokio::test]
async fn silent_handshakes_of_a_source_shut_out_nobody_else() {
    let (server, mut egress) = open(|config| {
        config.sessions = 4;
        config.token = Some(TOKEN.parse().unwrap());
    });
    Publisher::new(1).announce(&mut egress, 0);
    let (address, fingerprint) = (server.local_address(), server.fingerprint());
    let mut silent = Vec::new();
    let connecting = async {
        while server.stats().handshakes == 0 {
            // At the same time, so that none ends before the last one begins.
            let mut connecting = JoinSet::new();
            for _ in 0..48 {
                let fingerprint = fingerprint.clone();
                let from = [127, 0, 0, 2].into();
                connecting
                    .spawn(async move { connect_in_silence(from, address, &fingerprint).await });
            }
            silent.extend(connecting.join_all().await.into_iter().flatten());
        }
    };
    timeout(LONG, connecting).await.unwrap();
    assert!(silent.len() > 4);
    let (version, target) = (version("moq-transport-22"), format!("/?token={TOKEN}"));
    let client = Client::connect(address, &fingerprint, Over::Quic, version, &target);
    catalog(&client.await.unwrap().broadcast(NAME).await).await;
    assert_eq!(server.stats().full, 0);
}

/// Forwards datagrams to a server, and none back, as if the address of the sender were forged.
fn one_way(server: SocketAddr) -> SocketAddr {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut datagram = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut datagram) {
            if from != server {
                let _ = socket.send_to(&datagram[..length], server);
            }
        }
    });
    address
}

#[tokio::test]
async fn packets_with_forged_addresses_take_no_place() {
    let (server, mut egress) = open(|config| config.sessions = 1);
    Publisher::new(1).announce(&mut egress, 0);
    let fingerprint = server.fingerprint();
    let forged = one_way(server.local_address());
    let connect = |to| Client::connect(to, &fingerprint, Over::Quic, version("moq-lite-06"), "/");
    let forging = async { tokio::time::timeout(Duration::from_secs(1), connect(forged)).await };
    assert!(forging.await.is_err(), "nothing comes back");
    let client = connect(server.local_address()).await.unwrap();
    catalog(&client.broadcast(NAME).await).await;
    assert_eq!(server.stats().full, 0);
}

#[tokio::test]
async fn a_client_of_another_version_is_refused() {
    let (server, _egress) = open(|_| {});
    let fingerprint = server.fingerprint();
    let address = server.local_address();
    let old = version("moq-transport-16");
    for over in [Over::Quic, Over::WebTransport] {
        let client = Client::connect(address, &fingerprint, over, old, "/");
        assert!(client.await.is_err());
    }
    until(|| server.stats().failed == 2).await;
}

#[tokio::test]
async fn a_stream_without_a_header_is_kept_and_holds_up_nobody() {
    let (server, mut egress) = open(|_| {});
    Publisher::new(1).announce(&mut egress, 0);
    let (address, fingerprint) = (server.local_address(), server.fingerprint());
    // Its set-up is in a later stream.
    let lite = version("moq-lite-05");
    let client = Client::connect(address, &fingerprint, Over::WebTransport, lite, "/");
    let client = client.await.unwrap();
    catalog(&client.broadcast(NAME).await).await;
    let silent = client.silent.as_ref().unwrap();
    let stopped = tokio::time::timeout(Duration::from_millis(100), silent.stopped()).await;
    assert!(stopped.is_err(), "browsers close the session: {stopped:?}");
}
