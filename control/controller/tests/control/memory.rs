//! The memory that unauthenticated clients can make a controller use, measured in a controller in
//! its own process.

use crate::rig::{TIMEOUT, config, connector};
use axum::body::Bytes;
use axum::http::Request;
use h2::client::{Connection, SendRequest};
use hawser_controller::{Config, Server};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The environment variable with the state directory and `limits.unread_timeout_s`, for the process
/// in which the test below runs this test binary again.
const STATE: &str = "HAWSER_TEST_CONTROLLER_MEMORY";
const UNREAD_TIMEOUT_S: &str = "HAWSER_TEST_CONTROLLER_UNREAD_TIMEOUT_S";

/// More memory than an idle controller uses.
const ALLOWED_BYTES: u64 = 10_000_000;

/// Documents that need no authentication, and the bytes of each response that an attacker reads.
const DOCUMENTS: [&str; 2] = ["/openapi.json", "/docs/swagger-ui-bundle.js"];
const WINDOWS: [u32; 2] = [0, 100];

/// Long enough to measure an attack before its first connection is closed.
const PATIENT_S: u32 = 600;

/// Long enough for the requests of one connection.
const IMPATIENT_S: u32 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn runs_a_controller_in_the_child_process() {
    let Ok(state) = std::env::var(STATE) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config {
        state: state.into(),
        ..config(&directory)
    };
    config.limits.unread_timeout_s = std::env::var(UNREAD_TIMEOUT_S).unwrap().parse().unwrap();
    let server = Server::start(config).await.unwrap();
    println!("answers at {}", server.address());
    std::io::stdout().flush().unwrap();
    std::future::pending().await
}

/// A controller in another process.
struct Victim {
    child: Child,
    address: SocketAddr,
    tls: [TlsConnector; 2],
    idle_bytes: u64,
    _state: tempfile::TempDir,
}

impl Victim {
    async fn start(unread_timeout_s: u32) -> Victim {
        let state = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "memory::runs_a_controller_in_the_child_process",
                "--nocapture",
            ])
            .env(STATE, state.path())
            .env(UNREAD_TIMEOUT_S, unread_timeout_s.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let address = lines
            .find_map(|line| line.strip_prefix("answers at ")?.parse().ok())
            .unwrap();
        let authority = fs::read_to_string(state.path().join("authority.pem")).unwrap();
        let tls = [&b"http/1.1"[..], b"h2"].map(|protocol| connector(&authority, protocol));
        let mut victim = Victim {
            child,
            address,
            tls,
            idle_bytes: 0,
            _state: state,
        };
        // The first response of each kind allocates memory that is retained, independently of an
        // attack.
        for path in ["/openapi.json", "/docs/swagger-ui-bundle.js", "/metrics"] {
            let [begin, end] = [
                "GET ",
                " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            ];
            let mut connection = victim.connect(0).await;
            connection
                .write_all(format!("{begin}{path}{end}").as_bytes())
                .await
                .unwrap();
            let mut answer = Vec::new();
            connection.read_to_end(&mut answer).await.unwrap();
            assert!(
                answer.starts_with(b"HTTP/1.1 200"),
                "{}",
                String::from_utf8_lossy(&answer)
            );
        }
        victim.idle_bytes = victim.memory("VmRSS");
        // From now on, the peak is caused by the attack.
        fs::write(format!("/proc/{}/clear_refs", victim.child.id()), "5").unwrap();
        victim
    }

    async fn connect(&self, protocol: usize) -> TlsStream<TcpStream> {
        let socket = TcpStream::connect(self.address).await.unwrap();
        self.tls[protocol]
            .connect("localhost".try_into().unwrap(), socket)
            .await
            .unwrap()
    }

    /// Returns the resident memory, or its peak.
    fn memory(&self, which: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(which)).unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            * 1024
    }

    fn has_kept_its_memory(&self) {
        let peak = self.memory("VmHWM").saturating_sub(self.idle_bytes);
        println!(
            "idle {} bytes, under attack {peak} bytes more at the most",
            self.idle_bytes
        );
        assert!(
            peak <= ALLOWED_BYTES,
            "{peak} bytes more than the {} of idle",
            self.idle_bytes
        );
    }

    /// Requests `path` as often as HTTP/2 permits, up to 60 times, and reads only `window` bytes of
    /// each response. Answers pings.
    async fn take_nothing(&self, path: &str, window: u32) -> JoinHandle<()> {
        let connection = self.connect(1).await;
        let mut builder = h2::client::Builder::new();
        // No streams are allowed before the controller has sent its limit.
        builder
            .initial_max_send_streams(0)
            .initial_window_size(window);
        let (mut requests, connection): (SendRequest<Bytes>, Connection<_, _>) =
            builder.handshake(connection).await.unwrap();
        let lives = tokio::spawn(async move {
            // The controller aborts the connection, which may be an error here.
            let _ = connection.await;
        });
        let mut answers = Vec::new();
        let mut allowed = 1;
        while answers.len() < allowed {
            requests = requests.ready().await.unwrap();
            let request = Request::get(format!("https://localhost{path}"))
                .body(())
                .unwrap();
            let (answer, _) = requests.send_request(request, true).unwrap();
            answers.push(answer.await.unwrap().into_body());
            // The limit is known by now.
            allowed = requests.current_max_send_streams().min(60);
        }
        assert!(
            allowed >= 8,
            "a client may ask for some things at once: {allowed}"
        );
        tokio::spawn(async move {
            lives.await.unwrap();
            drop((requests, answers));
        })
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Errors cannot be handled in `drop`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_methods_create_no_labels() {
    let victim = Victim::start(PATIENT_S).await;
    let mut connection = victim.connect(0).await;
    for number in 0..1_500 {
        let method = format!("{}{number}", "X".repeat(12_000));
        let request = format!("{method} /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        connection.write_all(request.as_bytes()).await.unwrap();
        connection.flush().await.unwrap();
        let mut status = [0; 12];
        connection.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 405");
        skip_answer(&mut connection).await;
    }
    victim.has_kept_its_memory();
}

/// Reads the rest of a response's head and its body.
async fn skip_answer(connection: &mut TlsStream<TcpStream>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    connection.read_exact(&mut body).await.unwrap();
}

fn are_open(connections: &[JoinHandle<()>]) {
    let is_open = |connection: &JoinHandle<()>| !connection.is_finished();
    assert!(
        connections.iter().all(is_open),
        "all are open while it is measured"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_taken_cost_little() {
    let victim = Victim::start(PATIENT_S).await;
    let mut connections = Vec::new();
    for _ in 0..20 {
        connections.push(victim.take_nothing("/openapi.json", 0).await);
    }
    victim.has_kept_its_memory();
    are_open(&connections);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_connections_that_take_little_cost_little() {
    let victim = Victim::start(PATIENT_S).await;
    let attack =
        (0..100).map(|number| victim.take_nothing(DOCUMENTS[number % 2], WINDOWS[number / 2 % 2]));
    let connections = futures_util::future::join_all(attack).await;
    victim.has_kept_its_memory();
    are_open(&connections);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_take_little_are_cut() {
    let victim = Victim::start(IMPATIENT_S).await;
    let mut connections = Vec::new();
    for number in 0..20 {
        connections.push(
            victim
                .take_nothing(DOCUMENTS[number % 2], WINDOWS[number / 2 % 2])
                .await,
        );
    }
    for connection in connections {
        timeout(TIMEOUT, connection)
            .await
            .expect("it is cut")
            .unwrap();
    }
}
