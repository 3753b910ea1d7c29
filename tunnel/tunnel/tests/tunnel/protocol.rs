//! A server and handwritten clients: invalid messages, and the limits of their number.

use crate::certificates::Authority;
use crate::process::resident_bytes;
use crate::rig::{HOST4, PORT, Rig, TIMEOUT, nft};
use crate::traffic::echo;
use hawser_quic::{Congestion, Live, Transport, tls};
use hawser_testbed::netns::Namespace;
use noq::{ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, TokioRuntime};
use serde_json::{Value, json};
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SERVER: &str = "203.0.0.1";

/// The largest memory of one idle client at a server, in bytes.
const IDLE_CLIENT_BYTES: u64 = 200_000;

/// The memory counted for a session, and for the stream of its connection, in bytes.
const SESSION_BYTES: u64 = 128 << 10;
const STREAM_BYTES: u64 = 88 << 10;

const CLIENTS: u64 = 100;

/// Handshakes of one source, more than a server has slots for unknown sources.
const HALF_OPEN: usize = 400;

/// Bytes of notices from one client.
const FLOOD_BYTES: usize = 6_000_000;

/// Runs `work` with an endpoint in the namespace.
fn with_endpoint<T: Send, F: Future<Output = T>>(
    namespace: &Namespace,
    work: impl FnOnce(Endpoint) -> F + Send,
) -> T {
    let run = || {
        // A thread of its own keeps the connections alive while a test waits for the server.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async { work(endpoint_at("0.0.0.0")).await })
    };
    namespace.run(run).unwrap()
}

fn quic(authority: &Authority, folder: &Path, name: &str) -> ClientConfig {
    quic_of(b"hawser-tunnel/1", authority, folder, name)
}

/// Returns the configuration of a client of this protocol.
fn quic_of(protocol: &[u8], authority: &Authority, folder: &Path, name: &str) -> ClientConfig {
    authority.credentials(folder, name);
    let read = |end: &str| fs::read_to_string(folder.join(format!("{name}{end}"))).unwrap();
    let authorities = tls::authorities(&read(".authority.pem")).unwrap();
    let identity = tls::Identity::from_pem(&read(".pem"), &read(".key")).unwrap();
    let mut config = ClientConfig::new(tls::client(authorities, &identity, protocol).unwrap());
    let transport = Transport {
        keep_alive: Some(Duration::from_secs(5)),
        ..Transport::default()
    };
    let transport = transport
        .config(Congestion::bbr(Arc::new(Live::new(|| {})), 1))
        .unwrap();
    config.transport_config(Arc::new(transport));
    config
}

fn endpoint_at(address: &str) -> Endpoint {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    Endpoint::new(
        EndpointConfig::default(),
        None,
        socket,
        Arc::new(TokioRuntime),
    )
    .unwrap()
}

/// Connects. On a busy machine, a handshake may take longer than the server allows, and is begun again.
async fn connect(endpoint: &Endpoint, config: &ClientConfig) -> Connection {
    let server = format!("{SERVER}:{PORT}").parse().unwrap();
    let end = Instant::now() + TIMEOUT;
    loop {
        let connecting = endpoint.connect_with(config.clone(), server, "one");
        match connecting.unwrap().await {
            Ok(connection) => return connection,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
}

/// Sends a message on a new stream; returns the answer, if any.
async fn say(connection: &Connection, message: &[u8]) -> Option<Value> {
    let (mut send, mut receive) = connection.open_bi().await.ok()?;
    send.write_all(&framed(message)).await.ok()?;
    let mut length = [0; 2];
    receive.read_exact(&mut length).await.ok()?;
    let mut text = vec![0; u16::from_be_bytes(length).into()];
    receive.read_exact(&mut text).await.ok()?;
    // Closing the stream would close the path.
    std::mem::forget(send);
    Some(serde_json::from_slice(&text).unwrap())
}

/// Returns the message with its length in front.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    [&length, message].concat()
}

fn open() -> Vec<u8> {
    json!({ "open": { "addresses": [], "path": { "index": 0, "standby": false } } })
        .to_string()
        .into_bytes()
}

fn join(session: &Value, proof: &str) -> Vec<u8> {
    let path = json!({ "index": 1, "standby": false });
    json!({ "join": { "session": session, "path": path, "proof": proof } })
        .to_string()
        .into_bytes()
}

fn reason(answer: Option<Value>) -> String {
    answer.map_or("no answer".to_owned(), |answer| {
        answer["refused"]["reason"].to_string()
    })
}

#[test]
fn sessions_are_joined_by_their_own_client_alone() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let folder = rig.folder.path();
    with_endpoint(&rig.client, async |endpoint| {
        let (car, thief) = (
            quic(&rig.authority, folder, "car"),
            quic(&rig.authority, folder, "thief"),
        );
        let first = connect(&endpoint, &car).await;
        let opened = say(&first, &open()).await.unwrap();
        let session = &opened["opened"]["session"];
        let proof = "0".repeat(64);
        let unknown = json!("00000000000000000000000000000000");
        assert_eq!(
            reason(say(&connect(&endpoint, &car).await, &join(session, &proof)).await),
            "\"proof\""
        );
        assert_eq!(
            reason(say(&connect(&endpoint, &car).await, &join(session, "")).await),
            "\"proof\""
        );
        let other = connect(&endpoint, &thief).await;
        assert_eq!(
            reason(say(&other, &join(session, &proof)).await),
            "\"unknown_session\""
        );
        let other = connect(&endpoint, &car).await;
        assert_eq!(
            reason(say(&other, &join(&unknown, &proof)).await),
            "\"unknown_session\""
        );
        server.wait_until_counted("connection_proof", 2);
        server.wait_until_counted("connection_unknown_session", 2);
        assert_eq!(server.session().paths.len(), 1);
        drop(first);
    });
}

#[test]
fn a_client_of_another_version_is_told_that_of_the_server() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let folder = rig.folder.path();
    with_endpoint(&rig.client, async |endpoint| {
        let config = quic_of(b"hawser-tunnel", &rig.authority, folder, "car");
        let closed = connect(&endpoint, &config).await.closed().await;
        let ConnectionError::ApplicationClosed(close) = closed else {
            panic!("{closed}");
        };
        assert_eq!(&close.reason[..], b"1");
        server.wait_until_counted("connection_version", 1);
    });
}

#[test]
fn nonsense_is_refused_and_counted() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let folder = rig.folder.path();
    with_endpoint(&rig.client, async |endpoint| {
        let car = quic(&rig.authority, folder, "car");
        let path = r#"{"open":{"addresses":[],"path":{"index":200,"standby":false}}}"#;
        for message in [
            &b"{}"[..],
            b"",
            b"\xff\xfe",
            &[b'['; 4096],
            path.as_bytes(),
            &[b' '; 60_000],
        ] {
            let answer = say(&connect(&endpoint, &car).await, message).await;
            assert_eq!(reason(answer), "\"malformed\"", "{} bytes", message.len());
        }
        server.wait_until_counted("connection_malformed", 6);

        let connection = connect(&endpoint, &car).await;
        say(&connection, &open()).await.unwrap();
        let mut state = 7u64;
        for length in 0..600 {
            let datagram: Vec<u8> = (0..length)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(99);
                    (state >> 40) as u8
                })
                .collect();
            connection
                .send_datagram_wait(datagram.into())
                .await
                .unwrap();
        }
        server.wait_until_counted("malformed", 100);
    });
    // The next client is served.
    let _client = rig.client("");
    echo(&rig.client, &rig.host, HOST4);
}

/// Starts handshakes from these addresses with the server that never complete: packets larger than
/// a Retry to `deaf`, which contains the addresses, are dropped.
async fn half_open(
    rig: &Rig,
    deaf: &str,
    addresses: &[String],
    server: &'static str,
) -> Vec<tokio::task::JoinHandle<()>> {
    let family = if deaf.contains(':') { "ip6" } else { "ip" };
    nft(
        &rig.client,
        &format!(
            "table inet deaf {{\nchain input {{\ntype filter hook input priority 0;\n\
             {family} daddr {deaf} udp sport 14752 udp length > 600 drop\n}}\n}}"
        ),
    );
    let config = quic(&rig.authority, rig.folder.path(), "deaf");
    // One for each address: the buffers of an endpoint are large, and each process that the tests start is a
    // fork of this one.
    let endpoints: Vec<_> = addresses.iter().map(|own| endpoint_at(own)).collect();
    let begin = |endpoint: Endpoint| {
        let config = config.clone();
        tokio::spawn(async move {
            loop {
                // Each attempt fails after a while and is repeated, a little later if it was
                // refused.
                let _ = endpoint
                    .connect_with(config.clone(), server.parse().unwrap(), "one")
                    .unwrap()
                    .await;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        })
    };
    let endpoints = endpoints.into_iter().cycle().take(HALF_OPEN);
    endpoints.map(begin).collect()
}

#[test]
fn unfinished_handshakes_leave_room_for_others() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let folder = rig.folder.path();
    rig.client.ip("addr add 10.1.0.66/24 dev wan0").unwrap();
    with_endpoint(&rig.client, async |_| {
        let one = ["10.1.0.66".to_owned()];
        let handshakes = half_open(&rig, "10.1.0.66", &one, "203.0.0.1:14752").await;
        let others = async {
            server.wait_until_counted("connection_too_many_of_source", 100);
            let car = connect(
                &endpoint_at("10.1.1.1"),
                &quic(&rig.authority, folder, "car"),
            )
            .await;
            assert!(say(&car, &open()).await.unwrap()["opened"].is_object());
        };
        tokio::time::timeout(TIMEOUT, others).await.unwrap();
        handshakes.iter().for_each(tokio::task::JoinHandle::abort);
    });
}

#[test]
fn ipv6_handshakes_of_one_network_leave_room_for_others() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let folder = rig.folder.path();
    let networks: Vec<String> = (0..32)
        .map(|network| format!("fd66:0:0:{network:x}::1"))
        .collect();
    let add = |address: &String| format!("addr add {address}/128 dev wan0 nodad\n");
    rig.client
        .ip(&networks.iter().map(add).collect::<String>())
        .unwrap();
    rig.router.ip("route add fd66::/48 via fd01:0::1").unwrap();
    with_endpoint(&rig.client, async |_| {
        let handshakes = half_open(&rig, "fd66::/48", &networks, "[fd20:0::1]:14752").await;
        let others = async {
            server.wait_until_counted("connection_too_many_of_source", 500);
            let car = connect(
                &endpoint_at("10.1.1.1"),
                &quic(&rig.authority, folder, "car"),
            )
            .await;
            assert!(say(&car, &open()).await.unwrap()["opened"].is_object());
            // Another client of the same allocation receives a refusal.
            let config = quic(&rig.authority, folder, "neighbour");
            let address = "[fd20:0::1]:14752".parse().unwrap();
            let refused = loop {
                let endpoint = endpoint_at(&networks[0]);
                let attempt = endpoint
                    .connect_with(config.clone(), address, "one")
                    .unwrap();
                if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(1), attempt).await
                {
                    break error.to_string();
                }
            };
            assert!(refused.contains("refused"), "{refused}");
        };
        tokio::time::timeout(2 * TIMEOUT, others).await.unwrap();
        handshakes.iter().for_each(tokio::task::JoinHandle::abort);
    });
    let counted = server.until("the status", |_| true).dropped;
    assert_eq!(
        counted.get("connection_too_many_handshakes"),
        None,
        "{counted:?}"
    );
}

#[test]
fn an_address_of_another_client_is_not_given_on_request() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let car = rig.client("");
    let had = car.session().addresses;
    assert!(car.process.stop(TIMEOUT).unwrap().success());
    server.until("it has gone", |status| status.sessions.is_empty());
    let path = json!({ "index": 0, "standby": false });
    let wish = json!({ "open": { "addresses": had, "path": path } }).to_string();
    with_endpoint(&rig.client, async |endpoint| {
        let thief = connect(&endpoint, &quic(&rig.authority, rig.folder.path(), "thief")).await;
        let answer = say(&thief, wish.as_bytes()).await.unwrap();
        let got = answer["opened"]["addresses"].to_string();
        assert!(
            had.iter()
                .all(|address| !got.contains(&format!("\"{address}\""))),
            "{got}"
        );
        assert_eq!(rig.client("").session().addresses, had);
    });
}

#[test]
fn a_flood_of_notices_costs_no_memory() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let _client = rig.client("");
    let folder = rig.folder.path();
    let memory = || resident_bytes(server.process.id());
    with_endpoint(&rig.client, async |endpoint| {
        let greedy = connect(&endpoint, &quic(&rig.authority, folder, "greedy")).await;
        let (mut send, _receive) = greedy.open_bi().await.unwrap();
        send.write_all(&framed(&open())).await.unwrap();
        let notice = |standby: bool| framed(json!({ "standby": standby }).to_string().as_bytes());
        let notices = [notice(true), notice(false)].concat().repeat(1000);
        send.write_all(&notices).await.unwrap();
        let before = memory();
        for _ in 0..FLOOD_BYTES / notices.len() {
            send.write_all(&notices).await.unwrap();
            let more = memory().saturating_sub(before);
            assert!(more < 16 << 20, "{more} bytes more");
        }
        echo(&rig.client, &rig.host, HOST4);
        server.until("both have sessions", |status| status.sessions.len() == 2);
    });
}

#[test]
fn clients_that_do_not_answer_cost_little_each() {
    let rig = Rig::new();
    let idle = "[coding]\nprobe_idle_ms = 10000\nprobe_rest_ms = 10000\n";
    let server = rig.server(0, "", idle);
    let folder = rig.folder.path();
    let memory = || resident_bytes(server.process.id());
    with_endpoint(&rig.client, async |endpoint| {
        let first = connect(&endpoint, &quic(&rig.authority, folder, "first")).await;
        say(&first, &open()).await.unwrap();
        let before = memory();
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let client = connect(
                &endpoint,
                &quic(&rig.authority, folder, &format!("car-{number}")),
            )
            .await;
            assert!(say(&client, &open()).await.unwrap()["opened"].is_object());
            clients.push(client);
        }
        let count =
            |wanted: usize| server.until("all sessions", |status| status.sessions.len() == wanted);
        count(1 + CLIENTS as usize);
        let each = memory().saturating_sub(before) / CLIENTS;
        println!("{CLIENTS} clients, {each} bytes for each");
        assert!(each < IDLE_CLIENT_BYTES, "{each} bytes for each client");
    });
}

#[test]
fn a_client_that_opens_many_sessions_is_told_to_wait() {
    let rig = Rig::new();
    let server = rig.server(0, "", "");
    let folder = rig.folder.path();
    with_endpoint(&rig.client, async |endpoint| {
        let car = quic(&rig.authority, folder, "car");
        let mut opened = 0;
        while opened < 100 {
            let connection = connect(&endpoint, &car).await;
            let answer = say(&connection, &open()).await.unwrap();
            if answer["opened"].is_null() {
                assert_eq!(reason(Some(answer)), "\"too_often\"");
                break;
            }
            opened += 1;
        }
        assert!(
            (5..50).contains(&opened),
            "{opened} sessions, one after the other"
        );
        server.wait_until_counted("connection_too_often", 1);
        let bus = connect(&endpoint, &quic(&rig.authority, folder, "bus")).await;
        assert!(
            say(&bus, &open()).await.unwrap()["opened"].is_object(),
            "another client is not affected"
        );
    });
}

#[test]
fn a_server_without_memory_serves_its_clients_and_no_others() {
    let rig = Rig::new();
    let server = rig.server(0, "memory_mb = 16", "");
    let _client = rig.client("");
    let folder = rig.folder.path();
    with_endpoint(&rig.client, async |endpoint| {
        let mut clients = Vec::new();
        let refused = loop {
            let name = format!("car-{}", clients.len());
            let client = connect(&endpoint, &quic(&rig.authority, folder, &name)).await;
            let answer = say(&client, &open()).await.unwrap();
            if answer["opened"].is_null() {
                break answer;
            }
            clients.push(client);
            assert!(clients.len() < 200, "16 MB are enough for all clients");
        };
        assert_eq!(reason(Some(refused)), "\"memory\"");
        assert!(clients.len() > 40, "{} clients", clients.len());
        server.wait_until_counted("connection_memory", 1);
        echo(&rig.client, &rig.host, HOST4);
        let status = server.until("the status", |_| true);
        assert!(
            (8_000_000..16_000_000).contains(&status.memory_bytes),
            "{} bytes",
            status.memory_bytes
        );
        let each = status.memory_bytes / status.sessions.len() as u64;
        assert!(
            each >= SESSION_BYTES + STREAM_BYTES,
            "{each} bytes for each, with what its connection may keep"
        );
        // A client with a session may open another one.
        let again = connect(&endpoint, &quic(&rig.authority, folder, "car-0")).await;
        assert!(say(&again, &open()).await.unwrap()["opened"].is_object());
        // A client that leaves frees its memory.
        clients
            .drain(..20)
            .for_each(|client| client.close(0u8.into(), b""));
        server.until("twenty have gone", |status| status.memory_bytes < 9_000_000);
        let late = connect(&endpoint, &quic(&rig.authority, folder, "late")).await;
        assert!(say(&late, &open()).await.unwrap()["opened"].is_object());
    });
}
