use super::exchanges::Exchanges;
use super::network::{HOST, Network};
use anyhow::{Context, Result, ensure};
use hawser_testbed::process::Process;
use hawser_testbed::ring;
use nix::unistd::{Uid, User};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The interval between lines.
const INTERVAL: Duration = Duration::from_millis(100);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The maximum time for the session to open.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The maximum time for the last lines to be echoed.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// An SSH session from the car to the host, in which each line is echoed.
pub(super) struct Ssh {
    exchanges: Arc<Exchanges>,
    client: Process,
    _server: Process,
}

impl Ssh {
    /// Opens the session. Keys and logs go to `directory`. The server sees a subfolder of
    /// `directory` in place of root's home, so that only it accepts the generated key.
    pub(super) fn start(network: &Network, directory: &Path) -> Result<Ssh> {
        let home = directory.join("ssh");
        make_home(&home)?;
        let server = start_server(network, &home, &directory.join("sshd.log"))?;
        let deadline = Instant::now() + TIMEOUT;
        wait_for_server(network, deadline)
            .with_context(|| format!("see the logs in {}", directory.display()))?;
        let (typed, keyboard) = std::io::pipe()?;
        let (screen, shown) = std::io::pipe()?;
        let log = directory.join("ssh.log");
        let mut client = client(&home);
        client
            .stdin(typed)
            .stdout(shown)
            .stderr(File::create(&log)?);
        let client = Process::spawn(&network.car, client)?;
        let mut ssh = Ssh {
            exchanges: type_lines(keyboard, screen),
            client,
            _server: server,
        };
        ssh.wait_for_echo(deadline)
            .with_context(|| format!("see {}", log.display()))?;
        Ok(ssh)
    }

    /// Waits until the first line is echoed.
    fn wait_for_echo(&mut self, deadline: Instant) -> Result<()> {
        while self.exchanges.answered() == 0 {
            ensure!(
                self.is_alive()? && Instant::now() <= deadline,
                "the SSH session did not open"
            );
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns whether the session is still open.
    pub(super) fn is_alive(&mut self) -> Result<bool> {
        Ok(self.client.ended()?.is_none())
    }

    /// Waits for the last lines and closes the session.
    pub(super) fn stop(self) -> Result<Arc<Exchanges>> {
        thread::sleep(DRAIN_TIME);
        Ok(self.exchanges)
    }
}

/// Creates a home with the keys of server and client, of which the server accepts the client's.
fn make_home(home: &Path) -> Result<()> {
    fs::create_dir_all(home.join(".ssh"))
        .with_context(|| format!("cannot create {}", home.display()))?;
    make_key(&home.join("host"))?;
    let public = make_key(&home.join("identity"))?;
    Ok(fs::write(home.join(".ssh/authorized_keys"), public)?)
}

/// Creates a key in a file and returns its public part.
fn make_key(file: &Path) -> Result<String> {
    let mut command = Command::new("dropbearkey");
    let output = command.args(["-t", "ed25519", "-f"]).arg(file).output();
    let output = output.context("cannot run dropbearkey: install dropbear-bin")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let public = text.lines().find(|line| line.starts_with("ssh-ed25519 "));
    Ok(format!(
        "{}\n",
        public.with_context(|| format!("dropbearkey created no key: {output:?}"))?
    ))
}

/// Starts the server with `home` in place of root's home.
fn start_server(network: &Network, home: &Path, log: &Path) -> Result<Process> {
    let root = User::from_uid(Uid::from_raw(0))?.context("this machine has no user root")?;
    let mut server = Command::new("unshare");
    server.args(["--mount", "sh", "-c"]);
    server
        .arg(r#"mount --bind "$0" "$1" && exec dropbear -F -E -s -p 22 -P "$0/pid" -r "$0/host""#);
    server
        .arg(home)
        .arg(root.dir)
        .stdout(Stdio::null())
        .stderr(File::create(log)?);
    Ok(Process::spawn(&network.host, server)?)
}

fn wait_for_server(network: &Network, deadline: Instant) -> Result<()> {
    let connect = || TcpStream::connect((HOST, 22));
    while network.host.run(connect)?.is_err() {
        ensure!(
            Instant::now() < deadline,
            "the SSH server did not accept connections within {TIMEOUT:?}"
        );
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Returns a client that makes the host echo its input.
fn client(home: &Path) -> Command {
    let mut client = Command::new("dbclient");
    client
        .args(["-y", "-y", "-T", "-i"])
        .arg(home.join("identity"));
    client
        .arg(format!("root@{HOST}"))
        .arg("cat")
        .env("HOME", home);
    client
}

/// Sends lines and receives their echoes until the session ends.
fn type_lines(keyboard: PipeWriter, screen: PipeReader) -> Arc<Exchanges> {
    let exchanges = Arc::<Exchanges>::default();
    thread::spawn({
        let exchanges = Arc::clone(&exchanges);
        move || read(BufReader::new(screen), &exchanges)
    });
    thread::spawn({
        let exchanges = Arc::clone(&exchanges);
        move || write(keyboard, &exchanges)
    });
    exchanges
}

fn write(mut keyboard: PipeWriter, exchanges: &Exchanges) {
    let mut due = Instant::now();
    // The loop ends with the session.
    while writeln!(keyboard, "{}", exchanges.record_request(ring::now())).is_ok() {
        due += INTERVAL;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn read(screen: impl BufRead, exchanges: &Exchanges) {
    for line in screen.lines().map_while(Result::ok) {
        if let Ok(number) = line.parse() {
            exchanges.record_reply(number, ring::now());
        }
    }
}
