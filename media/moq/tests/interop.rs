//! With programs of others: moq-relay, the command moq, and Chromium with the library @moq/net. `make interop`
//! installs the first two and the library, and runs this.

mod support;

use hawser_moq::{
    Catalog, Config, Egress, Ingest, IngestConfig, IngestSource, Server, SourceUrl, Trust,
};
use hawser_objects::Seed;
use hawser_packets::moq::{CATALOG, track_name};
use hawser_tls::{certificates, digest};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use support::source::payload;
use support::viewer::Watching;
use support::*;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

const TOKEN: &str = "0123456789abcdef";

/// The time within which a program has to respond.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A program that ends with the test, and its files.
struct Running {
    program: Child,
    _files: TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn tools() -> PathBuf {
    let tools = std::env::var_os("HAWSER_TOOLS").expect("HAWSER_TOOLS, which make interop sets");
    tools.into()
}

fn tool(name: &str) -> Command {
    let mut command = Command::new(tools().join("bin").join(name));
    command.env_clear().stdin(Stdio::null());
    command
}

fn ingest(from: IngestSource) -> Ingest {
    Ingest::open(IngestConfig {
        from,
        access: secret().access(),
        hop_salt: [4; 16],
        seed: Seed::new([5; 32]),
    })
    .unwrap()
}

fn open_with_token() -> (Server, Egress) {
    open(|config| config.token = Some(TOKEN.parse().unwrap()))
}

/// Returns a free port.
fn free_port() -> u16 {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

/// Publishes objects in real time until all of them have arrived or many have been sent.
async fn publish_until(
    egress: &mut Egress,
    publisher: &mut Publisher,
    watching: &mut Watching,
    objects: usize,
) -> u32 {
    for group in 0..2000 {
        for layer in 0..LAYERS {
            egress.publish(&publisher.object(group, layer, &bytes(group, layer)));
        }
        watching.watch(Duration::from_millis(20)).await;
        if watching.objects.len() >= objects {
            for (id, opened) in &watching.objects {
                assert_eq!(opened, &bytes(id.group, id.layer));
            }
            return group + 1;
        }
    }
    panic!("{} objects", watching.objects.len());
}

/// Bytes of an object that need several packets, and differ.
fn bytes(group: u32, layer: u8) -> Vec<u8> {
    vec![group as u8 ^ layer; 900 + 700 * (group as usize % 7) + 3000 * usize::from(layer)]
}

/// Starts moq-relay, which takes what a server of ours has. Returns its address and fingerprint.
fn start_relay(server: &Server) -> (Running, SocketAddr, [u8; 32]) {
    let directory = tempfile::tempdir().unwrap();
    let [chain, key] = certificate();
    let files = ["chain.pem", "key.pem"].map(|name| directory.path().join(name));
    std::fs::write(&files[0], &chain).unwrap();
    std::fs::write(&files[1], &key).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let upstream = format!("https://{}/?token={TOKEN}", server.local_address());
    let relay = tool("moq-relay")
        .args(["--listen", &address.to_string(), "--auth-public", "**"])
        .args(["--cluster-connect", &upstream])
        .args(["--connect-tls-fingerprint", &server.fingerprint()])
        .args(["--log-level", "warn"])
        .arg("--listen-tls-cert")
        .arg(&files[0])
        .arg("--listen-tls-key")
        .arg(&files[1])
        .spawn()
        .expect("moq-relay");
    let certificate = certificates("the certificate", &chain).unwrap();
    let relay = Running {
        program: relay,
        _files: directory,
    };
    (relay, address, digest(&certificate[0]))
}

/// Takes the newest group of a track with the command moq.
async fn fetch(server: SocketAddr, fingerprint: &str, target: &str, track: &str) -> Vec<u8> {
    let url = format!("https://{server}{target}");
    let mut command = tool("moq");
    command
        .args(["--connect", &url, "--connect-tls-fingerprint", fingerprint])
        .args(["--broadcast", NAME, "fetch", track]);
    let fetched = tokio::task::spawn_blocking(move || command.output().expect("moq"));
    let fetched = tokio::time::timeout(TIMEOUT, fetched).await;
    let fetched = fetched.unwrap().unwrap();
    let log = String::from_utf8_lossy(&fetched.stderr);
    assert!(fetched.status.success(), "{log}");
    fetched.stdout
}

#[tokio::test]
async fn the_command_moq_fetches_catalog_and_objects() {
    let (server, mut egress) = open_with_token();
    let mut publisher = Publisher::new(1);
    publisher.announce(&mut egress, 0);
    let (address, fingerprint) = (server.local_address(), server.fingerprint());
    let target = format!("/?token={TOKEN}");
    let catalog = fetch(address, &fingerprint, &target, CATALOG).await;
    let contents = Catalog::verify(&catalog, &secret().access()).unwrap();
    assert_eq!(contents, publisher.contents(0));
    let object = publisher.object(1, 0, &bytes(1, 0));
    egress.publish(&object);
    let fetched = fetch(address, &fingerprint, &target, &track_name(ALIAS, 0)).await;
    assert_eq!(fetched, payload(&object));
}

#[tokio::test]
async fn a_broadcast_passes_a_standard_relay_and_is_taken_behind_it() {
    for scheme in ["https", "moqt"] {
        let (server, mut egress) = open_with_token();
        let mut publisher = Publisher::new(1);
        publisher.announce(&mut egress, 0);
        let (_relay, address, digest) = start_relay(&server);
        let url: SourceUrl = format!("{scheme}://{address}").parse().unwrap();
        let ingest = ingest(IngestSource::Server {
            url,
            name: NAME.to_owned(),
            trust: Trust::Certificate(digest),
        });
        let mut watching = Watching::connect(ingest.address()).await;
        watching.until_open().await;
        watching.watch(Duration::from_millis(500)).await;
        let groups = publish_until(&mut egress, &mut publisher, &mut watching, 200).await;
        let stats = ingest.stats();
        println!("{scheme}, {groups} frames of two layers through moq-relay: {stats:?}");
        assert_eq!(stats.lost_packets, 0, "{stats:?}");
        let refused = stats.invalid + stats.stale + stats.incomplete;
        assert_eq!(refused, 0, "{stats:?}");
        let catalog = fetch(address, &hex::encode(digest), "/", CATALOG).await;
        Catalog::verify(&catalog, &secret().access()).unwrap();
    }
}

/// Serves the page, and hands over what it tells.
async fn serve_page(listener: TcpListener, results: watch::Sender<Value>) {
    let bundle: Arc<Vec<u8>> = Arc::new(std::fs::read(tools().join("page/bundle.js")).unwrap());
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (bundle, results) = (Arc::clone(&bundle), results.clone());
        tokio::spawn(async move {
            let Some((head, body)) = read_request(&mut stream).await else {
                return;
            };
            let (kind, page): (_, &[u8]) = match head.split(' ').nth(1) {
                Some("/page.js") => ("text/javascript", &bundle),
                Some("/result") => {
                    results.send_replace(serde_json::from_slice(&body).unwrap());
                    ("text/plain", b"")
                }
                _ => ("text/html", b"<script type=module src=/page.js></script>"),
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                page.len()
            );
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(page).await;
        });
    }
}

async fn read_request(stream: &mut tokio::net::TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        let mut lengths = lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length = lengths
            .next()
            .map_or(Some(0), |(_, n)| n.trim().parse().ok())?;
        if bytes.len() >= end + 4 + length {
            return Some((head, bytes[end + 4..].to_vec()));
        }
    }
}

#[tokio::test]
async fn a_browser_takes_a_broadcast_and_publishes_it() {
    let (server, mut egress) = open_with_token();
    let mut publisher = Publisher::new(1);
    publisher.announce(&mut egress, 0);
    let mut config = Config::new("127.0.0.1:0".parse().unwrap(), NAME);
    config.token = Some(TOKEN.parse().unwrap());
    let ingest = ingest(IngestSource::Publisher(config));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (results, mut told) = watch::channel(Value::Null);
    tokio::spawn(serve_page(listener, results));
    let mut page: url::Url = format!("http://localhost:{port}/").parse().unwrap();
    let url = |address: SocketAddr| format!("https://{address}/?token={TOKEN}");
    page.query_pairs_mut()
        .append_pair("name", NAME)
        .append_pair("from", &url(server.local_address()))
        .append_pair("from", &server.fingerprint())
        .append_pair("to", &url(ingest.listens_at().unwrap()))
        .append_pair("to", &ingest.fingerprint().unwrap());
    let profile = tempfile::tempdir().unwrap();
    let browser = Command::new("chromium")
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(page.as_str())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("chromium");
    let _browser = Running {
        program: browser,
        _files: profile,
    };
    let first = tokio::time::timeout(TIMEOUT, told.wait_for(|told| !told.is_null())).await;
    let first = first.unwrap().unwrap().clone();
    let stats = server.stats();
    assert_eq!(
        first["error"],
        Value::Null,
        "{first} {stats:?} {:?}",
        ingest.server_stats()
    );

    let mut watching = Watching::connect(ingest.address()).await;
    watching.until_open().await;
    watching.watch(Duration::from_millis(500)).await;
    let groups = publish_until(&mut egress, &mut publisher, &mut watching, 200).await;
    let counted = |told: &Value| {
        let count = |layer| told["counts"][track_name(ALIAS, layer)]["objects"].as_u64();
        count(0)
            .zip(count(1))
            .is_some_and(|(base, higher)| base + higher >= 200)
    };
    let told = tokio::time::timeout(TIMEOUT, told.wait_for(counted)).await;
    let told = told.unwrap().unwrap().clone();
    println!(
        "{groups} frames of two layers: {told}\n{:?}",
        ingest.stats()
    );
    assert_eq!(told["error"], Value::Null);
    let catalog: Catalog = serde_json::from_value(told["catalog"].clone()).unwrap();
    let catalog = serde_json::to_vec(&catalog).unwrap();
    Catalog::verify(&catalog, &secret().access()).unwrap();
}
