//! The processes under test: controllers, and the etcd that they may share.

use super::LEASE;
use anyhow::{Context, Result, bail, ensure};
use hawser_client::{Controller, OperatorClient};
use hawser_testbed::logs::{last_log_line, redirect};
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// The port of the first controller; the others have the next ones.
const PORT: u16 = 14750;

/// The ports of etcd.
const ETCD_CLIENTS: &str = "127.0.0.1:2379";
const ETCD_PEERS: &str = "127.0.0.1:2380";

/// The maximum time for a controller to create its certificate authority and to start, and to
/// exit.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The unit of processor time in `/proc`: hundredths of a second (USER_HZ).
pub(super) const TICK: Duration = Duration::from_millis(10);

/// The name of the log in the folder of a process.
const LOG: &str = "log";

/// Controllers of one store, and the store if it is a process. They end when this is dropped.
pub(super) struct Cluster {
    // Controllers end before their store.
    controllers: Vec<Server>,
    etcd: Option<Server>,
}

/// A process that accepts connections on a TCP port, with a folder of its own.
struct Server {
    name: String,
    process: Process,
    folder: PathBuf,
}

/// The addresses and credentials of the controllers, and the process ids.
#[derive(Debug, Clone)]
pub(super) struct Access {
    /// The controllers in the order in which they were started.
    pub(super) controllers: Vec<Controller>,
    authority_pem: String,
    token: String,
    processes: Vec<(String, u32)>,
    etcd: Option<(u32, PathBuf)>,
}

/// The resource usage of processes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    pub(super) at: Instant,
    pub(super) cpu: Duration,
    pub(super) memory_bytes: u64,
}

impl Cluster {
    /// Starts controllers and waits until they accept connections: one with a database of its own,
    /// or any number with a new etcd.
    pub(super) fn start(
        binary: &Path,
        namespace: &Namespace,
        folder: &Path,
        controllers: u16,
        with_etcd: bool,
    ) -> Result<Self> {
        let etcd = with_etcd.then(|| start_etcd(namespace, folder));
        let mut cluster = Cluster {
            controllers: Vec::new(),
            etcd: etcd.transpose()?,
        };
        for number in 0..controllers {
            let server = cluster.start_controller(binary, namespace, folder, number)?;
            cluster.controllers.push(server);
        }
        Ok(cluster)
    }

    fn start_controller(
        &self,
        binary: &Path,
        namespace: &Namespace,
        folder: &Path,
        number: u16,
    ) -> Result<Server> {
        let name = format!("controller-{number}");
        let folder = folder.join(&name);
        let state = folder.join("state");
        fs::create_dir_all(&state).with_context(|| format!("cannot create {}", state.display()))?;
        if let Some(first) = self.controllers.first() {
            for file in ["authority.pem", "authority.key"] {
                fs::copy(first.folder.join("state").join(file), state.join(file))
                    .with_context(|| format!("cannot copy {file} of the first controller"))?;
            }
        }
        let address = format!("127.0.0.1:{}", PORT + number);
        let configuration = folder.join("controller.toml");
        let settings = settings(&name, &address, &state, self.etcd.is_some());
        fs::write(&configuration, settings)
            .with_context(|| format!("cannot write {}", configuration.display()))?;
        let mut command = Command::new(binary);
        command
            .args(["controller", "--config"])
            .arg(&configuration)
            .env("RUST_LOG", "warn");
        Server::start(name, command, namespace, &folder, &address)
    }

    /// Returns the access to the controllers as their first administrator.
    pub(super) fn access(&self) -> Result<Access> {
        let first = self.controllers.first().context("no controller runs")?;
        let read = |name: &str| {
            let path = first.folder.join("state").join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let addresses = (PORT..).zip(&self.controllers);
        let controllers = addresses
            .map(|(port, _)| format!("https://127.0.0.1:{port}").parse())
            .collect::<Result<_, _>>()?;
        let process = |server: &Server| (server.name.clone(), server.process.id());
        let etcd = self.etcd.as_ref();
        Ok(Access {
            controllers,
            authority_pem: read("authority.pem")?,
            token: read("admin.token")?,
            processes: self.controllers.iter().map(process).collect(),
            etcd: etcd.map(|etcd| (etcd.process.id(), etcd.folder.clone())),
        })
    }

    /// Stops all processes with SIGTERM, except controllers that were killed.
    pub(super) fn stop(self, killed: Option<&str>) -> Result<()> {
        for server in self.controllers {
            if Some(&*server.name) != killed {
                server.stop()?;
            }
        }
        self.etcd.map_or(Ok(()), Server::stop)
    }
}

/// Starts an etcd with one member, and its data in `folder`.
fn start_etcd(namespace: &Namespace, folder: &Path) -> Result<Server> {
    let folder = folder.join("etcd");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let (clients, peers) = (
        format!("http://{ETCD_CLIENTS}"),
        format!("http://{ETCD_PEERS}"),
    );
    let mut command = Command::new("etcd");
    command
        .args(["--name", "lab", "--logger", "zap", "--log-level", "warn"])
        .arg("--data-dir")
        .arg(folder.join("data"))
        .args(["--listen-client-urls", &clients])
        .args(["--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &peers])
        .args(["--initial-advertise-peer-urls", &peers])
        .args(["--initial-cluster", &format!("lab={peers}")])
        // As docs/controller.md recommends.
        .args(["--auto-compaction-mode", "periodic"])
        .args(["--auto-compaction-retention", "1h"]);
    Server::start("etcd".to_owned(), command, namespace, &folder, ETCD_CLIENTS)
        .context("etcd does not start; the Debian package etcd-server contains it")
}

impl Server {
    /// Starts a process and waits until it accepts connections.
    fn start(
        name: String,
        mut command: Command,
        namespace: &Namespace,
        folder: &Path,
        address: &str,
    ) -> Result<Server> {
        redirect(&mut command, &folder.join(LOG))?;
        let mut server = Server {
            name,
            process: Process::spawn(namespace, command)?,
            folder: folder.to_owned(),
        };
        let deadline = Instant::now() + TIMEOUT;
        while !namespace.run(|| TcpStream::connect(address).is_ok())? {
            if let Some(status) = server.process.ended()? {
                bail!(
                    "{} exited with {status}: {}",
                    server.name,
                    server.last_line()
                );
            }
            if Instant::now() > deadline {
                let (name, line) = (&server.name, server.last_line());
                bail!("{name} did not accept connections within {TIMEOUT:?}: {line}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn stop(self) -> Result<()> {
        let (name, line) = (self.name.clone(), self.last_line());
        let status = self.process.stop(TIMEOUT)?;
        // etcd ends itself by the signal.
        let is_regular = status.success() || name == "etcd";
        ensure!(is_regular, "{name} exited with {status}: {line}");
        Ok(())
    }

    fn last_line(&self) -> String {
        last_log_line(&self.folder.join(LOG))
    }
}

impl Access {
    /// Returns a client with all rights, of the first controller that answers.
    pub(super) fn operator(&self) -> Result<OperatorClient> {
        self.operator_of(&self.controllers)
    }

    /// Returns a client of each controller.
    pub(super) fn operators(&self) -> Result<Vec<OperatorClient>> {
        let each = self.controllers.iter();
        each.map(|one| self.operator_of(std::slice::from_ref(one)))
            .collect()
    }

    fn operator_of(&self, controllers: &[Controller]) -> Result<OperatorClient> {
        let (authority, token) = (&self.authority_pem, &self.token);
        Ok(OperatorClient::new(controllers, authority, token)?)
    }

    /// Returns the controllers as a node with this index knows them: a third of the nodes begins
    /// with each of three.
    pub(super) fn controllers_of(&self, node: usize) -> Vec<Controller> {
        let mut controllers = self.controllers.clone();
        let first = node % controllers.len();
        controllers.rotate_left(first);
        controllers
    }

    /// Returns the access without a controller.
    pub(super) fn without(&self, name: &str) -> Access {
        let mut rest = self.clone();
        if let Some(index) = self.processes.iter().position(|(known, _)| known == name) {
            rest.controllers.remove(index);
            rest.processes.remove(index);
        }
        rest
    }

    /// Returns the process id of a controller.
    pub(super) fn process_id(&self, name: &str) -> Option<u32> {
        let mut processes = self.processes.iter();
        let (_, id) = processes.find(|(known, _)| known == name)?;
        Some(*id)
    }

    /// Returns the resource usage of all controllers together so far.
    pub(super) fn usage(&self) -> Result<Usage> {
        let mut sum = Usage {
            at: Instant::now(),
            cpu: Duration::ZERO,
            memory_bytes: 0,
        };
        for (_, id) in &self.processes {
            let one = usage(*id)?;
            sum.cpu += one.cpu;
            sum.memory_bytes += one.memory_bytes;
        }
        Ok(sum)
    }

    /// Returns the resource usage of etcd so far; `None` if there is none.
    pub(super) fn etcd_usage(&self) -> Result<Option<Usage>> {
        let etcd = self.etcd.as_ref();
        etcd.map(|(id, _)| usage(*id)).transpose()
    }

    /// Returns the size of etcd's database file, bytes; `None` if there is none.
    pub(super) fn etcd_database_bytes(&self) -> Result<Option<u64>> {
        let size = |(_, folder): &(u32, PathBuf)| {
            let path = folder.join("data/member/snap/db");
            let metadata = fs::metadata(&path);
            let metadata = metadata.with_context(|| format!("cannot read {}", path.display()))?;
            Ok(metadata.len())
        };
        self.etcd.as_ref().map(size).transpose()
    }
}

/// Returns the resource usage of a process so far.
fn usage(process_id: u32) -> Result<Usage> {
    let read = |name: &str| {
        let path = format!("/proc/{process_id}/{name}");
        fs::read_to_string(&path)
            .with_context(|| format!("cannot read {path}; the process may have exited"))
    };
    Ok(Usage {
        at: Instant::now(),
        cpu: cpu(&read("stat")?).context("cannot parse /proc/PID/stat")?,
        memory_bytes: resident(&read("status")?).context("cannot parse /proc/PID/status")?,
    })
}

/// Returns a controller's configuration. It raises the limits per address and per operator, because
/// all nodes are on one machine.
fn settings(name: &str, address: &str, state: &Path, with_etcd: bool) -> String {
    let store = if with_etcd {
        format!("[store]\nkind = \"etcd\"\nendpoints = [\"http://{ETCD_CLIENTS}\"]\n\n")
    } else {
        String::new()
    };
    format!(
        "name = \"{name}\"\nlisten = \"{address}\"\nstate = {state:?}\n\n{store}\
         [nodes]\nlease_s = {}\n\n[limits]\nconnections = 30000\nconnections_per_address = 30000\noperator_requests_per_s = 1000000.0\n",
        LEASE.as_secs()
    )
}

/// Parses user and system time, fields 14 and 15 of `/proc/PID/stat`. The second field is a name
/// that may contain spaces.
fn cpu(stat: &str) -> Option<Duration> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(TICK * (ticks()? + ticks()?))
}

fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_accounts_are_read() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 900 0 0 0 250 50 0 0 20 0 4 0 100 0 0";
        assert_eq!(cpu(stat), Some(Duration::from_secs(3)));
        assert_eq!(
            resident("Name:\thawser\nVmRSS:\t    2048 kB\n"),
            Some(2 << 20)
        );
    }
}
