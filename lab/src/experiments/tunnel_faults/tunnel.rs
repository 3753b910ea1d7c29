//! The processes of the tunnel: a client and two servers.

use super::fault::UPLINKS;
use super::network::{HOST, INNER, Network};
use crate::programs::certificates;
use anyhow::{Context, Result, bail};
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use hawser_tunnel::status::{SessionStatus, Status};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const SERVERS: [&str; 2] = ["one", "two"];
const CLIENT: &str = "car";

/// The maximum time for the tunnel to come up.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The running client and servers. They are stopped when this is dropped.
pub(super) struct Tunnel {
    servers: [Option<Process>; 2],
    _client: Process,
    binary: PathBuf,
    directory: PathBuf,
}

impl Tunnel {
    /// Starts both servers and the client. Configurations, status and logs go to `directory`.
    pub(super) fn start(network: &Network, binary: &Path, directory: &Path) -> Result<Tunnel> {
        certificates::write(directory, &[SERVERS[0], SERVERS[1], CLIENT])?;
        for name in SERVERS {
            write_config(directory, name, &server_config(name, directory))?;
        }
        write_config(directory, CLIENT, &client_config(directory))?;
        let start = |namespace, role, name| start(binary, directory, namespace, role, name);
        let servers = [0, 1]
            .map(|number| start(&network.servers[number], "server", SERVERS[number]).map(Some));
        let [one, two] = servers;
        let servers = [one?, two?];
        let client = start(&network.car, "client", CLIENT)?;
        Ok(Tunnel {
            servers,
            _client: client,
            binary: binary.to_owned(),
            directory: directory.to_owned(),
        })
    }

    /// Waits until the client's session has the given number of paths, and returns it.
    pub(super) fn wait_for_paths(&self, paths: usize) -> Result<SessionStatus> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.session() {
                Ok(Some(session)) if session.paths.len() == paths => return Ok(session),
                other if Instant::now() > deadline => {
                    bail!(
                        "the tunnel did not come up within {TIMEOUT:?}: {other:?}; see the logs in {}",
                        self.directory.display()
                    )
                }
                _ => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Returns the client's session at present.
    pub(super) fn session(&self) -> Result<Option<SessionStatus>> {
        let status = Status::read(&self.directory.join(CLIENT).join("status.json"))?;
        Ok(status.sessions.into_iter().next())
    }

    /// Kills a server with SIGKILL, and returns its number.
    pub(super) fn kill(&mut self, name: &str) -> Result<usize> {
        let number = SERVERS.iter().position(|server| *server == name);
        let number = number.with_context(|| format!("there is no server {name:?}"))?;
        drop(
            self.servers[number]
                .take()
                .with_context(|| format!("server {name} is not running"))?,
        );
        Ok(number)
    }

    /// Starts a server that was killed.
    pub(super) fn start_server(&mut self, network: &Network, number: usize) -> Result<()> {
        let server = start(
            &self.binary,
            &self.directory,
            &network.servers[number],
            "server",
            SERVERS[number],
        )?;
        self.servers[number] = Some(server);
        Ok(())
    }
}

fn start(
    binary: &Path,
    directory: &Path,
    namespace: &Namespace,
    role: &str,
    name: &str,
) -> Result<Process> {
    let log = directory.join(format!("{name}.log"));
    let output = File::options().create(true).append(true).open(&log);
    let output = output.with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(binary);
    command
        .args(["tunnel", role, "--config"])
        .arg(directory.join(format!("{name}.toml")));
    command.stdout(output.try_clone()?).stderr(output);
    Ok(Process::spawn(namespace, command)?)
}

fn write_config(directory: &Path, name: &str, text: &str) -> Result<()> {
    let file = directory.join(format!("{name}.toml"));
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn server_config(name: &str, directory: &Path) -> String {
    format!(
        "[tunnel]\naddresses = [\"{INNER}\"]\nnat = false\n{}",
        common(name, directory)
    )
}

/// Returns the last keys of `[tunnel]`, and `[tls]`.
fn common(name: &str, directory: &Path) -> String {
    format!(
        "name = \"{name}\"\nstate = {directory:?}\n\n{}",
        certificates::section(name)
    )
}

fn client_config(directory: &Path) -> String {
    let mut config = format!(
        "[tunnel]\nroutes = [\"{}/32\"]\n{}",
        HOST,
        common(CLIENT, directory)
    );
    for (number, name) in SERVERS.iter().enumerate() {
        let address = Network::server_address(number);
        config += &format!("\n[[server]]\nname = \"{name}\"\naddresses = [\"{address}:14752\"]\n");
    }
    for uplink in 0..UPLINKS {
        config += &format!("\n[[uplink]]\ninterface = \"wan{uplink}\"\n");
    }
    config
}
