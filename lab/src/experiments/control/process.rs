use anyhow::{Context, Result, bail};
use hawser_client::{Controller, OperatorClient};
use hawser_io::netns::Namespace;
use hawser_io::process::Process;
use hawser_testbed::logs::redirect;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const URL: &str = "https://127.0.0.1:14750";

/// The maximum time for the controller to create its certificate authority and to start, and to
/// exit.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The unit of processor time in `/proc`: hundredths of a second (USER_HZ).
pub(super) const TICK: Duration = Duration::from_millis(10);

/// A running controller. It is stopped when this is dropped.
pub(super) struct ControllerProcess {
    process: Process,
    folder: PathBuf,
}

/// The address and credentials of the controller, and its process id.
#[derive(Debug, Clone)]
pub(super) struct Access {
    pub(super) controllers: [Controller; 1],
    authority_pem: String,
    token: String,
    process_id: u32,
}

/// The resource usage of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    pub(super) at: Instant,
    pub(super) cpu: Duration,
    pub(super) memory_bytes: u64,
}

impl ControllerProcess {
    /// Starts `hawser controller` with a database of its own in `folder` and waits until it accepts
    /// connections.
    pub(super) fn start(binary: &Path, namespace: &Namespace, folder: &Path) -> Result<Self> {
        let configuration = folder.join("controller.toml");
        fs::write(&configuration, settings(folder))
            .with_context(|| format!("cannot write {}", configuration.display()))?;
        let mut command = Command::new(binary);
        command
            .args(["controller", "--config"])
            .arg(&configuration)
            .env("RUST_LOG", "warn");
        redirect(&mut command, &folder.join("controller.log"))?;
        let mut controller = ControllerProcess {
            process: Process::spawn(namespace, command)?,
            folder: folder.to_owned(),
        };
        controller.wait_until_ready(namespace)?;
        Ok(controller)
    }

    /// Returns the access to the controller as its first administrator.
    pub(super) fn access(&self) -> Result<Access> {
        let read = |name: &str| {
            let path = self.state().join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        Ok(Access {
            controllers: [URL.parse()?],
            authority_pem: read("authority.pem")?,
            token: read("admin.token")?,
            process_id: self.process.id(),
        })
    }

    /// Stops the controller with SIGTERM.
    pub(super) fn stop(self) -> Result<()> {
        let log = self.folder.join("controller.log");
        let status = self.process.stop(TIMEOUT)?;
        if !status.success() {
            bail!(
                "the controller exited with {status}; see its log {}",
                log.display()
            );
        }
        Ok(())
    }

    fn wait_until_ready(&mut self, namespace: &Namespace) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        let address = URL.trim_start_matches("https://");
        while !namespace.run(|| std::net::TcpStream::connect(address).is_ok())? {
            let log = self.folder.join("controller.log");
            if let Some(status) = self.process.ended()? {
                bail!(
                    "the controller exited with {status}; see its log {}",
                    log.display()
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "the controller did not accept connections within {TIMEOUT:?}; see its log {}",
                    log.display()
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn state(&self) -> PathBuf {
        self.folder.join("state")
    }
}

impl Access {
    /// Returns a client with all rights.
    pub(super) fn operator(&self) -> Result<OperatorClient> {
        Ok(OperatorClient::new(
            &self.controllers,
            &self.authority_pem,
            &self.token,
        )?)
    }

    /// Returns the resource usage of the controller so far.
    pub(super) fn usage(&self) -> Result<Usage> {
        let read = |name: &str| {
            let path = format!("/proc/{}/{name}", self.process_id);
            fs::read_to_string(&path)
                .with_context(|| format!("cannot read {path}; the controller may have exited"))
        };
        Ok(Usage {
            at: Instant::now(),
            cpu: cpu(&read("stat")?).context("cannot parse /proc/PID/stat")?,
            memory_bytes: resident(&read("status")?).context("cannot parse /proc/PID/status")?,
        })
    }
}

/// Returns the controller's configuration. It raises the limits per address and per operator,
/// because all nodes are on one machine.
fn settings(folder: &Path) -> String {
    format!(
        "listen = \"127.0.0.1:14750\"\nstate = {:?}\n\n\
         [limits]\nconnections = 30000\nconnections_per_address = 30000\noperator_requests_per_s = 1000000.0\n",
        folder.join("state")
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
