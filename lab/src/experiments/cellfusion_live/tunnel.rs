use crate::programs::certificates;
use crate::programs::tunnel::SERVER;
use crate::rivals::schemes::Scheme;
use anyhow::{Context, Result, bail};
use hawser_io::interface;
use hawser_testbed::logs::{last_log_line, redirect};
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use hawser_testbed::topology::Lab;
use hawser_tunnel::status::{SessionStatus, Status};
use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// The cloud's address over all uplinks.
pub(super) const CLOUD: Ipv4Addr = SERVER;

/// The cloud's address inside the tunnel.
pub(super) const CLOUD_INSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// The name of client and server, and of their certificate.
const NAME: &str = "lab";

const DEVICE: &str = "hawser-tun";

/// The maximum time for a tunnel to come up, and the time for additional paths: some are dead when
/// a drive begins.
const TIMEOUT: Duration = Duration::from_secs(20);
const PATH_SETUP_TIME: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A client in the car and a server in the cloud. They are stopped when this is dropped.
pub(super) struct Tunnel {
    client: Process,
    _server: Process,
    directory: PathBuf,
}

impl Tunnel {
    /// Starts client and server and waits until they are connected over every path that works.
    pub(super) fn start(
        scheme: Scheme,
        lab: &Lab,
        binary: &Path,
        directory: &Path,
    ) -> Result<Self> {
        certificates::write(directory, &[NAME])?;
        let (server, client) = (server_config(directory), client_config(directory));
        let mut tunnel = Tunnel {
            _server: spawn(
                lab.egress(),
                command(scheme, binary)?,
                directory,
                "server",
                &server,
            )?,
            client: spawn(
                lab.ingress(),
                command(scheme, binary)?,
                directory,
                "client",
                &client,
            )?,
            directory: directory.to_owned(),
        };
        tunnel.wait(lab)?;
        Ok(tunnel)
    }

    /// Returns the client's status of the session, at most a second old.
    pub(super) fn session(&self) -> Result<SessionStatus> {
        let status = Status::read(&self.directory.join("client").join(NAME).join("status.json"))?;
        status
            .sessions
            .into_iter()
            .next()
            .context("the tunnel has no session")
    }

    fn wait(&mut self, lab: &Lab) -> Result<()> {
        let start = Instant::now();
        let all = lab.paths().count();
        let mut connected = None;
        loop {
            if let Some(status) = self.client.ended()? {
                bail!("the tunnel client exited with {status}: {}", self.log());
            }
            let paths = self.session().map_or(0, |session| session.paths.len());
            if paths > 0 && has_route(lab)? {
                let since = *connected.get_or_insert_with(Instant::now);
                if paths == all || since.elapsed() > PATH_SETUP_TIME {
                    return Ok(());
                }
            } else if start.elapsed() > TIMEOUT {
                bail!(
                    "the tunnel did not come up within {TIMEOUT:?}: {}",
                    self.log()
                );
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the last line of the client's log.
    fn log(&self) -> String {
        last_log_line(&self.directory.join("client.log"))
    }
}

fn spawn(
    namespace: &Namespace,
    mut command: Command,
    directory: &Path,
    role: &str,
    text: &str,
) -> Result<Process> {
    let config = directory.join(format!("{role}.toml"));
    fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
    command.args([role, "--config"]).arg(&config);
    redirect(&mut command, &directory.join(format!("{role}.log")))?;
    Ok(Process::spawn(namespace, command)?)
}

/// Returns the start of the command line of an end: of the product, or of this program, which has the
/// other schemes.
fn command(scheme: Scheme, binary: &Path) -> Result<Command> {
    if scheme == Scheme::Xnc {
        let mut command = Command::new(binary);
        command.arg("tunnel");
        return Ok(command);
    }
    let mut command = Command::new(env::current_exe()?);
    command.args(["tunnel", scheme.name()]);
    Ok(command)
}

fn server_config(directory: &Path) -> String {
    format!(
        "[tunnel]\naddresses = [\"10.77.0.0/16\"]\nnat = false\n{}",
        common("server", directory)
    )
}

fn client_config(directory: &Path) -> String {
    format!(
        "[tunnel]\n{}[[server]]\nname = \"{NAME}\"\naddresses = [\"{CLOUD}:14752\"]\n\
         [[uplink]]\ninterface = \"path*\"\n",
        common("client", directory)
    )
}

/// Returns the last keys of `[tunnel]`, and `[tls]`.
fn common(role: &str, directory: &Path) -> String {
    format!(
        "name = \"{NAME}\"\ninterface = \"{DEVICE}\"\nstate = \"{}\"\n{}",
        directory.join(role).display(),
        certificates::section(NAME)
    )
}

/// Returns whether packets to the cloud use the tunnel. Before the tunnel is up, the same address
/// has a route outside it.
fn has_route(lab: &Lab) -> Result<bool> {
    let route = lab
        .ingress()
        .run(|| interface::route(CLOUD_INSIDE.into(), None))?;
    Ok(route.is_ok_and(|route| route.interface == DEVICE))
}
