//! An etcd for one test, on loopback, with its own directory. It can be killed and restarted with
//! its data.

use hawser_controller::store::{Etcd, EtcdSettings};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than a start takes on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct EtcdServer {
    process: Child,
    directory: TempDir,
    client: String,
    peer: String,
    extra: Vec<String>,
}

impl EtcdServer {
    pub(crate) fn start() -> EtcdServer {
        EtcdServer::start_with(&[])
    }

    /// Starts etcd with additional options.
    pub(crate) fn start_with(extra: &[&str]) -> EtcdServer {
        let directory = TempDir::new().expect("a directory");
        let extra: Vec<String> = extra.iter().map(|option| option.to_string()).collect();
        let scheme = if extra.iter().any(|option| option.starts_with("--cert-file")) {
            "https"
        } else {
            "http"
        };
        let (client, peer) = (
            format!("{scheme}://127.0.0.1:{}", free_port()),
            format!("http://127.0.0.1:{}", free_port()),
        );
        let process = spawn(&directory, &client, &peer, &extra);
        EtcdServer {
            process,
            directory,
            client,
            peer,
            extra,
        }
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.client
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }

    /// Stops or continues the process (SIGSTOP, SIGCONT).
    pub(crate) fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.process.id()).expect("the kernel's are positive i32");
        kill(Pid::from_raw(id), signal).expect("it runs");
    }

    /// Restarts etcd with its address and data.
    pub(crate) fn start_again(&mut self) {
        self.process = spawn(&self.directory, &self.client, &self.peer, &self.extra);
    }

    /// Returns the settings to connect to it. Every call uses a new prefix unless one is given.
    pub(crate) fn settings(&self, prefix: &str) -> EtcdSettings {
        EtcdSettings {
            endpoints: vec![self.client.clone()],
            prefix: prefix.into(),
            user: None,
            tls: None,
            timeout: Duration::from_secs(15),
        }
    }

    /// Returns a separate client, as another process would have.
    pub(crate) async fn connect(&self, prefix: &str) -> Etcd {
        connect(self.settings(prefix)).await
    }
}

/// Waits until etcd has started.
pub(crate) async fn connect(settings: EtcdSettings) -> Etcd {
    let began = Instant::now();
    loop {
        match Etcd::connect(settings.clone()).await {
            Ok(etcd) => return etcd,
            Err(e) => assert!(
                began.elapsed() < START_TIMEOUT,
                "etcd does not start: {e:?}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        // The process may have been killed by the test.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(directory: &TempDir, client: &str, peer: &str, extra: &[String]) -> Child {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(directory.path().join("log"))
        .expect("a log");
    Command::new("etcd")
        .args(["--name", "test", "--data-dir"])
        .arg(directory.path().join("data"))
        .args([
            "--listen-client-urls",
            client,
            "--advertise-client-urls",
            client,
        ])
        .args([
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
        ])
        .args([
            "--initial-cluster",
            &format!("test={peer}"),
            "--logger",
            "zap",
        ])
        // It has no other member whose votes could be delayed.
        .args(["--heartbeat-interval", "10", "--election-timeout", "100"])
        .args(extra)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("etcd is installed (Debian package etcd-server)")
}

/// Returns a free port, because etcd cannot choose one and report it. The port is below the range
/// of ephemeral ports, in a separate range per process, so that no other process takes it before
/// etcd does.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let place = std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + u16::try_from(place % 20_000).expect("it fits");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
