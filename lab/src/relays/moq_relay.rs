//! moq-relay of the crate of this name: a relay for Media over QUIC, which is run as a program of its own. Its
//! publisher and its subscribers speak QUIC with the library that it is built on.

mod peers;

pub(crate) use peers::{Audience, Publisher};

use super::{Network, RELAY};
use anyhow::{Context, Result, bail, ensure};
use hawser_testbed::process::Process;
use hawser_tls::authorities;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::RootCertStore;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The variable of the environment that names the program.
const VARIABLE: &str = "HAWSER_MOQ_RELAY";

/// The place where `make rivals` installs it.
const INSTALLED: &str = "target/tools/bin/moq-relay";

/// How it is installed.
pub(crate) const HOW_TO_INSTALL: &str =
    "install it with `make rivals`, or name the program in $HAWSER_MOQ_RELAY";

/// The name of the server in its certificate.
const SERVER_NAME: &str = "localhost";

/// The port at which it listens.
const PORT: u16 = 4443;

/// The time within which it listens, all subscribers have joined, and objects arrive.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The time that it has to end.
const GRACE: Duration = Duration::from_millis(200);

/// The program.
#[derive(Debug, Clone)]
pub(crate) struct MoqRelay {
    program: OsString,
    /// Its name and version.
    pub(crate) version: String,
}

/// The program as it runs.
pub(crate) struct Running {
    /// Its name and version.
    pub(crate) version: String,
    process: Process,
    authorities: Arc<RootCertStore>,
}

impl MoqRelay {
    /// Returns the program that `$HAWSER_MOQ_RELAY` names, or else the installed one; `None` if there is none.
    ///
    /// # Errors
    /// If the program that is named does not run.
    pub(crate) fn find() -> Result<Option<Self>> {
        if let Some(named) = env::var_os(VARIABLE) {
            let found = Self::at(named.clone());
            let found = found.with_context(|| format!("{VARIABLE}={}", named.display()))?;
            return Ok(Some(found));
        }
        let places = [INSTALLED, "moq-relay"].into_iter();
        Ok(places.map(OsString::from).find_map(|at| Self::at(at).ok()))
    }

    fn at(program: OsString) -> Result<Self> {
        let output = Command::new(&program)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .context("cannot start it")?;
        ensure!(output.status.success(), "it has no version");
        let version = String::from_utf8(output.stdout)?.trim().to_owned();
        Ok(MoqRelay { program, version })
    }

    /// Starts it in the relay's namespace on the processors that the calling thread may use, with real-time
    /// priority as the other relays have. `folder` gets its certificate and its log.
    pub(crate) fn start(&self, network: &Network, folder: &Path) -> Result<Running> {
        let [certificate, key] = ["certificate.pem", "key.pem"]
            .map(|name| folder.join("moq-relay").with_extension(name));
        let authority = sign(&certificate, &key)?;
        let log = folder.join("moq-relay.log");
        let log = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut command = Command::new("chrt");
        command
            .args(["--fifo", "10"])
            .arg(&self.program)
            .args(["--listen", &format!("0.0.0.0:{PORT}")])
            .args(["--auth-public", "**", "--log-level", "warn"])
            .env_remove("RUST_LOG")
            .arg("--listen-tls-cert")
            .arg(certificate)
            .arg("--listen-tls-key")
            .arg(key)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut running = Running {
            version: self.version.clone(),
            process: Process::spawn(&network.relay, command)?,
            authorities: authorities(&authority)?,
        };
        running.wait()?;
        Ok(running)
    }
}

impl Running {
    /// Returns the id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the CPU time of the process.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        super::cpu_of_process(self.id())
    }

    /// Waits until it listens.
    fn wait(&mut self) -> Result<()> {
        let sockets = format!("/proc/{}/net/udp", self.id());
        let port = format!(":{PORT:04X} ");
        let begun = Instant::now();
        while !fs::read_to_string(&sockets).is_ok_and(|sockets| sockets.contains(&port)) {
            if let Some(status) = self.process.ended()? {
                bail!("moq-relay has ended ({status}); its log is beside the results");
            }
            ensure!(begun.elapsed() < TIMEOUT, "moq-relay does not listen");
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Ends it. The calling thread must not have real-time priority, and the process has none any more then: one
    /// that removes an ended process from /proc waits, without sleeping, for the process that reads there, and never ends if
    /// that is a thread that it keeps from its processor.
    pub(crate) fn stop(self) -> Result<()> {
        let ordinary = Command::new("chrt")
            .args(["--all-tasks", "--other", "--pid", "0"])
            .arg(self.id().to_string())
            .status()
            .context("cannot start chrt")?;
        ensure!(ordinary.success(), "moq-relay keeps its priority");
        self.process.stop(GRACE)?;
        Ok(())
    }

    /// Returns what a client connects to: its publisher, or a subscriber.
    fn server(&self, of_publisher: bool) -> Server {
        Server {
            address: (RELAY[usize::from(!of_publisher)], PORT).into(),
            authorities: Arc::clone(&self.authorities),
        }
    }
}

/// The server that clients connect to.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    authorities: Arc<RootCertStore>,
}

/// Writes a certificate and its key. Returns the authority that has signed it.
fn sign(certificate: &Path, key: &Path) -> Result<String> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let own_key = KeyPair::generate()?;
    let parameters = CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
    let signed = parameters.signed_by(&own_key, &authority)?;
    fs::write(certificate, signed.pem())?;
    fs::write(key, own_key.serialize_pem())?;
    Ok(authority.pem())
}
