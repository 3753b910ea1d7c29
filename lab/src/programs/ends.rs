//! The two processes of a stream: a publisher at the source of a lab, and a viewer at the other end.

use super::decoders;
use anyhow::{Context, Result, bail, ensure};
use hawser_io::clock::unix_ns;
use hawser_testbed::logs::{last_log_line, redirect, redirect_again};
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use hawser_testbed::topology::{Lab, Stop};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const PORT: u16 = 14748;

/// The maximum time for the publisher to open its recording, and for the first frame to arrive.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum time for a process to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The two places of a stream.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    publisher: &'a Namespace,
    viewer: &'a Namespace,
    address: IpAddr,
}

impl<'a> Places<'a> {
    /// The publisher at the source of a lab, the viewer at the other end.
    pub fn across(lab: &'a Lab) -> Self {
        Places {
            publisher: lab.source(),
            viewer: lab.viewer(),
            address: lab.source_v4().into(),
        }
    }

    /// The same, where the publisher listens at all addresses of the source.
    pub fn anywhere_across(lab: &'a Lab) -> Self {
        Places {
            address: Ipv4Addr::UNSPECIFIED.into(),
            ..Places::across(lab)
        }
    }

    /// The publisher at the other end of a lab, the viewer at its source.
    pub fn back(lab: &'a Lab) -> Self {
        Places {
            publisher: lab.viewer(),
            viewer: lab.source(),
            address: lab.viewer_v4().into(),
        }
    }

    /// The publisher at a tunnel's client with this inner address, the viewer at its server.
    pub fn in_tunnel(lab: &'a Lab, client: IpAddr) -> Self {
        Places {
            publisher: lab.ingress(),
            viewer: lab.egress(),
            address: client,
        }
    }

    /// Returns the address at which the publisher listens.
    pub(super) fn address(&self) -> String {
        Places::address_at(self.address)
    }

    /// Returns the address of a publisher at an address of its machine.
    pub(super) fn address_at(address: IpAddr) -> String {
        SocketAddr::new(address, PORT).to_string()
    }
}

/// A running publisher and its viewer. They stop when this is dropped.
#[derive(Debug)]
pub(super) struct Ends {
    publisher: End,
    viewer: End,
    directory: PathBuf,
    /// The time at which the first frame had arrived, nanoseconds since 1970.
    pub(super) began_ns: u64,
}

impl Ends {
    /// Returns the ends of a stream whose first frame has arrived.
    pub(super) fn new(publisher: End, viewer: End, directory: &Path) -> Self {
        Ends {
            publisher,
            viewer,
            directory: directory.to_owned(),
            began_ns: unix_ns(),
        }
    }

    /// Returns the path of a log of the stream.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns an error if the publisher or the viewer has exited.
    pub(super) fn check_running(&mut self) -> Result<()> {
        self.publisher.check_running()?;
        self.viewer.check_running()
    }

    /// Stops both processes.
    pub(super) fn stop(mut self) -> Result<()> {
        self.check_running()?;
        self.viewer.stop()?;
        self.publisher.stop()
    }
}

/// One of the two processes, which writes its messages to `NAME.log`.
#[derive(Debug)]
pub(super) struct End {
    process: Process,
    name: &'static str,
    log: PathBuf,
}

impl End {
    /// Starts the publisher by this command of `hawser`. `configure` adds its arguments.
    pub(super) fn publisher(
        places: &Places<'_>,
        (binary, name): (&Path, &str),
        directory: &Path,
        configure: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let mut command = Command::new(binary);
        configure(command.arg(name).args(["--listen", &places.address()]));
        decoders::on_all_processors(&mut command, directory)?;
        End::start("publisher", places.publisher, command, directory)
    }

    /// Starts the viewer by this command of `hawser`. `configure` adds its arguments.
    pub(super) fn viewer(
        places: &Places<'_>,
        (binary, name): (&Path, &str),
        directory: &Path,
        configure: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let mut command = Command::new(binary);
        configure(command.arg(name));
        End::start("viewer", places.viewer, command, directory)
    }

    /// Starts a command.
    pub(super) fn start(
        name: &'static str,
        namespace: &Namespace,
        mut command: Command,
        directory: &Path,
    ) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        redirect(&mut command, &log)?;
        Ok(End {
            process: Process::spawn(namespace, command)?,
            name,
            log,
        })
    }

    /// Kills the process with SIGKILL.
    pub(super) fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill()?)
    }

    /// Starts a command in place of the process, which was killed. It appends to the log.
    pub(super) fn start_again(
        &mut self,
        namespace: &Namespace,
        mut command: Command,
    ) -> Result<()> {
        redirect_again(&mut command, &self.log)?;
        self.process = Process::spawn(namespace, command)?;
        Ok(())
    }

    /// Waits until the process has written the first row of its table. The publisher has then opened
    /// its recording and captures, the viewer has received a frame.
    pub(super) fn await_rows(&mut self, table: &Path, stop: &Stop) -> Result<()> {
        self.wait_for("no frame", stop, || {
            let text = fs::read_to_string(table).ok()?;
            (text.lines().count() > 1).then_some(())
        })
    }

    /// Waits until `look` finds something. `missing` completes an error: the publisher "has ... within a minute".
    pub(super) fn wait_for<T>(
        &mut self,
        missing: &str,
        stop: &Stop,
        look: impl Fn() -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            self.check_running()?;
            ensure!(!stop.requested(), "stopped");
            ensure!(
                Instant::now() <= deadline,
                "the {} has {missing} within {START_TIMEOUT:?}: {}",
                self.name,
                last_log_line(&self.log)
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns an error if the process has exited.
    pub(super) fn check_running(&mut self) -> Result<()> {
        if let Some(status) = self.process.ended()? {
            let line = last_log_line(&self.log);
            bail!("the {} exited with {status}: {line}", self.name);
        }
        Ok(())
    }

    /// Stops the process, which has to succeed.
    pub(super) fn stop(self) -> Result<()> {
        let status = self.process.stop(EXIT_TIMEOUT)?;
        ensure!(
            status.success(),
            "the {} exited with {status}: {}",
            self.name,
            last_log_line(&self.log)
        );
        Ok(())
    }
}

/// Creates the directory of a stream's logs.
pub(super) fn create(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))
}
