//! Tunnel client and server in a lab: the client at the ingress edge, the server at the egress
//! edge, an uplink for each path.

use super::certificates;
use anyhow::{Context, Result, anyhow, ensure};
use hawser_io::interface;
use hawser_testbed::logs::{last_log_lines, redirect_again};
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use hawser_testbed::topology::Lab;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// The server's address, the same over all uplinks.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);

/// The server's inner address.
pub const INNER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// The client's tunnel device.
pub const DEVICE: &str = "hawser-tun";

/// The maximum time for a tunnel to come up.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The name in the certificates of client and server.
pub const NAME: &str = "bench";

/// The processes of client and server. They are stopped when this is dropped.
#[derive(Debug)]
pub struct TunnelProcesses {
    server: Process,
    client: Process,
    binary: PathBuf,
    /// The places of client and server.
    places: [Namespace; 2],
    folder: PathBuf,
}

/// One of the two ends of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The end with the uplinks.
    Client,
    /// The other end.
    Server,
}

impl Role {
    /// The name in commands and of files.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Server => "server",
        }
    }
}

/// The members of a tunnel client's status that show whether it is up.
#[derive(Deserialize)]
struct Status {
    sessions: Vec<Session>,
}

#[derive(Deserialize)]
struct Session {
    addresses: Vec<IpAddr>,
    paths: Vec<IgnoredAny>,
}

impl TunnelProcesses {
    /// Starts client and server with `binary`. Configurations, certificates, logs and status files
    /// go to `folder`. `uplinks` is the pattern of the client's interfaces, `coding` is appended to
    /// the server's configuration.
    pub fn start(
        binary: &Path,
        client: &Namespace,
        server: &Namespace,
        folder: &Path,
        uplinks: &str,
        coding: &str,
    ) -> Result<TunnelProcesses> {
        certificates::write(folder, &[NAME])?;
        let (server_config, client_config) = (
            server_config(folder, coding),
            client_config(folder, uplinks),
        );
        Ok(TunnelProcesses {
            server: start(binary, server, folder, Role::Server, &server_config)?,
            client: start(binary, client, folder, Role::Client, &client_config)?,
            binary: binary.to_owned(),
            places: [client, server].map(Namespace::clone),
            folder: folder.to_owned(),
        })
    }

    /// Returns the process ids of the client and of the server.
    pub fn ids(&self) -> [u32; 2] {
        [self.client.id(), self.server.id()]
    }

    /// Kills one end with SIGKILL.
    pub fn kill(&mut self, role: Role) -> Result<()> {
        let process = match role {
            Role::Client => &mut self.client,
            Role::Server => &mut self.server,
        };
        Ok(process.kill()?)
    }

    /// Starts one end again after it was killed. It appends to its log.
    pub fn start_again(&mut self, role: Role) -> Result<()> {
        let [client, server] = &self.places;
        let (process, place) = match role {
            Role::Client => (&mut self.client, client),
            Role::Server => (&mut self.server, server),
        };
        *process = spawn(&self.binary, place, &self.folder, role)?;
        Ok(())
    }

    /// Waits until the client's session has `paths` paths and returns the client's inner address.
    pub fn client_address(&self, paths: usize) -> Result<IpAddr> {
        wait_for(|| {
            let file = self.folder.join("client").join("status.json");
            let status: Status = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
            let session = status.sessions.into_iter().next()?;
            let address = session.addresses.iter().copied().find(IpAddr::is_ipv4)?;
            (session.paths.len() == paths).then_some(address)
        })
        .map_err(|error| self.explain(&error))
    }

    /// Adds the last lines that client and server have logged to an error about the tunnel.
    pub fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        const LINES: usize = 5;
        let [client, server] = ["client", "server"]
            .map(|role| last_log_lines(&self.folder.join(format!("{role}.log")), LINES));
        anyhow!(
            "{error:#}\nthe client's log ends with:\n{client}\nthe server's log ends with:\n{server}"
        )
    }
}

/// Writes the configuration of one end and starts it.
fn start(
    binary: &Path,
    namespace: &Namespace,
    folder: &Path,
    role: Role,
    config: &str,
) -> Result<Process> {
    let file = folder.join(format!("{}.toml", role.name()));
    fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
    spawn(binary, namespace, folder, role)
}

fn spawn(binary: &Path, namespace: &Namespace, folder: &Path, role: Role) -> Result<Process> {
    let role = role.name();
    let mut command = Command::new(binary);
    command
        .args(["tunnel", role, "--config"])
        .arg(folder.join(format!("{role}.toml")))
        .env("RUST_LOG", "warn");
    redirect_again(&mut command, &folder.join(format!("{role}.log")))?;
    Ok(Process::spawn(namespace, command)?)
}

fn server_config(folder: &Path, coding: &str) -> String {
    let addresses = "addresses = [\"10.77.0.0/16\"]\nnat = false\n";
    format!(
        "{}{addresses}{}{coding}",
        common("server", folder),
        certificates::section(NAME)
    )
}

fn client_config(folder: &Path, uplinks: &str) -> String {
    format!(
        "{}{}[[server]]\nname = \"{NAME}\"\naddresses = [\"{SERVER}:14752\"]\n\
         [[uplink]]\ninterface = \"{uplinks}\"\n",
        common("client", folder),
        certificates::section(NAME)
    )
}

/// Returns the keys of `[tunnel]` that both ends have.
fn common(role: &str, folder: &Path) -> String {
    format!("[tunnel]\nname = \"{role}\"\nstate = {folder:?}\n")
}

/// Makes the server reachable over every path of the lab, with the lowest metric on the first.
pub fn route_to_server(lab: &Lab) -> Result<()> {
    lab.egress().ip(&format!("addr add {SERVER}/32 dev lo"))?;
    let route = |(path, metric)| {
        let link = lab.path(path);
        format!(
            "route add default via {} dev {} metric {metric}\n",
            link.far.v4, link.near.device
        )
    };
    Ok(lab
        .ingress()
        .ip(&lab.paths().zip(100..).map(route).collect::<String>())?)
}

/// Waits until the route from `client` to `address` uses `device`. Before the tunnel is up, packets
/// may take another route.
pub fn wait_for_route(client: &Namespace, address: Ipv4Addr, device: &str) -> Result<()> {
    let route = || {
        interface::route(address.into(), None)
            .ok()
            .filter(|route| route.interface == device)
    };
    wait_for(|| client.run(route).ok().flatten().map(drop))
}

/// Waits until `look` returns a value, at most [`TIMEOUT`].
pub fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        ensure!(
            start.elapsed() < TIMEOUT,
            "the tunnel did not come up within {TIMEOUT:?}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}
