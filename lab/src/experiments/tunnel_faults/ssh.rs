use super::exchanges::Exchanges;
use super::network::{HOST, Network};
use anyhow::{Context, Result, bail, ensure};
use hawser_io::process::Process;
use hawser_io::ring;
use nix::unistd::{Uid, User};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The interval between lines.
const INTERVAL: Duration = Duration::from_millis(100);

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
        fs::create_dir_all(home.join(".ssh"))
            .with_context(|| format!("cannot create {}", home.display()))?;
        make_key(&home.join("host"))?;
        let public = make_key(&home.join("identity"))?;
        fs::write(home.join(".ssh/authorized_keys"), public)?;
        let log = |name: &str| File::create(directory.join(name));
        let root = User::from_uid(Uid::from_raw(0))?
            .context("this machine has no user root")?
            .dir;
        let mut server = Command::new("unshare");
        server.args(["--mount", "sh", "-c"]);
        server.arg(
            r#"mount --bind "$0" "$1" && exec dropbear -F -E -s -p 22 -P "$0/pid" -r "$0/host""#,
        );
        server
            .arg(&home)
            .arg(root)
            .stdout(Stdio::null())
            .stderr(log("sshd.log")?);
        let server = Process::spawn(&network.host, server)?;
        let deadline = Instant::now() + TIMEOUT;
        while network
            .host
            .run(|| std::net::TcpStream::connect((HOST, 22)))?
            .is_err()
        {
            ensure!(
                Instant::now() < deadline,
                "the SSH server did not accept connections within {TIMEOUT:?}; see the logs in {}",
                directory.display()
            );
            thread::sleep(Duration::from_millis(20));
        }

        let (typed, keyboard) = std::io::pipe()?;
        let (screen, shown) = std::io::pipe()?;
        let mut client = Command::new("dbclient");
        client
            .args(["-y", "-y", "-T", "-i"])
            .arg(home.join("identity"));
        client
            .arg(format!("root@{HOST}"))
            .arg("cat")
            .env("HOME", &home);
        client.stdin(typed).stdout(shown).stderr(log("ssh.log")?);
        let client = Process::spawn(&network.car, client)?;
        let exchanges = Arc::<Exchanges>::default();
        thread::spawn({
            let exchanges = Arc::clone(&exchanges);
            move || read(BufReader::new(screen), &exchanges)
        });
        thread::spawn({
            let exchanges = Arc::clone(&exchanges);
            move || write(keyboard, &exchanges)
        });
        let mut ssh = Ssh {
            exchanges,
            client,
            _server: server,
        };
        while ssh.exchanges.answered() == 0 {
            if !ssh.is_alive()? || Instant::now() > deadline {
                bail!(
                    "the SSH session did not open; see {}",
                    directory.join("ssh.log").display()
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(ssh)
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
