//! A volumetric stream through a lab, with a publisher at the source and a viewer at the other end.

use crate::logs::{last_log_line, redirect};
use crate::topology::{Lab, Stop};
use anyhow::{Context, Result, anyhow, bail};
use hawser_io::clock::unix_ns;
use hawser_io::process::Process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const PORT: u16 = 14748;

/// The maximum time for the publisher to load its recording, and for the first frame to arrive.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum time for a process to exit.
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The parameters of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// A recording's description, or "synthetic".
    pub recording: String,
    /// Resolution of a frame: `nfov`, `hd` or `fhd`.
    pub level: String,
    /// Frames per second.
    pub fps: f64,
    /// TCP congestion control.
    pub congestion: String,
    /// Number of frames that the viewer requests ahead. Without it, the viewer's default.
    pub in_flight: Option<usize>,
    /// Whether all frames are encoded before the stream begins.
    pub encode_ahead: bool,
    /// Whether publisher and viewer use MPTCP.
    pub mptcp: bool,
}

impl Default for Source {
    /// The synthetic performer at full resolution and 30 frames a second, over TCP with BBR.
    fn default() -> Self {
        Source {
            recording: "synthetic".to_owned(),
            level: "fhd".to_owned(),
            fps: 30.0,
            congestion: "bbr".to_owned(),
            in_flight: None,
            encode_ahead: false,
            mptcp: false,
        }
    }
}

/// A running stream. It stops when this is dropped.
#[derive(Debug)]
pub struct Stream {
    publisher: Process,
    viewer: Process,
    directory: PathBuf,
    /// The time at which the first frame had arrived, nanoseconds since 1970.
    began_ns: u64,
}

/// The logs of a stream that has stopped.
#[derive(Debug, Clone)]
pub struct Logs {
    /// The viewer's table of frames.
    pub frames: PathBuf,
    /// The viewer's table of the reads of its socket.
    pub arrivals: PathBuf,
    /// The publisher's table of captured frames.
    pub captured: PathBuf,
    /// The time at which the first frame had arrived, nanoseconds since 1970.
    pub began_ns: u64,
}

impl Stream {
    /// Starts publisher and viewer and waits for the first frame. `binary` is `hawser`. Logs go to
    /// `directory`.
    pub fn start(
        lab: &Lab,
        binary: &Path,
        directory: &Path,
        source: &Source,
        stop: &Stop,
    ) -> Result<Self> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let address = format!("{}:{PORT}", lab.source_v4());
        let publish = publish(binary, directory, source, &address)?;
        let mut publisher = Process::spawn(lab.source(), publish)?;
        await_rows(&mut publisher, directory, "publisher", "captured.csv", stop)?;
        let view = view(binary, directory, source, &address)?;
        let mut viewer = Process::spawn(lab.viewer(), view)?;
        await_rows(&mut viewer, directory, "viewer", "frames.csv", stop)?;
        Ok(Stream {
            publisher,
            viewer,
            directory: directory.to_owned(),
            began_ns: unix_ns(),
        })
    }

    /// Stops both processes and returns their logs.
    pub fn stop(mut self) -> Result<Logs> {
        self.check_running()?;
        let viewer = self.viewer.stop(EXIT_TIMEOUT)?;
        if !viewer.success() {
            bail!(
                "the viewer exited with {viewer}: {}",
                last_log_line(&self.directory.join("viewer.log"))
            );
        }
        self.publisher.stop(EXIT_TIMEOUT)?;
        let file = |name: &str| self.directory.join(name);
        Ok(Logs {
            frames: file("frames.csv"),
            arrivals: file("arrivals.csv"),
            captured: file("captured.csv"),
            began_ns: self.began_ns,
        })
    }

    /// Returns an error if the publisher or the viewer has exited.
    pub fn check_running(&mut self) -> Result<()> {
        for (process, name) in [
            (&mut self.publisher, "publisher"),
            (&mut self.viewer, "viewer"),
        ] {
            if let Some(status) = process.ended()? {
                bail!(
                    "the {name} exited with {status}: {}",
                    last_log_line(&self.directory.join(format!("{name}.log")))
                );
            }
        }
        Ok(())
    }
}

/// Returns the command of the publisher, which listens at `address`.
fn publish(binary: &Path, directory: &Path, source: &Source, address: &str) -> Result<Command> {
    let mut publish = command(binary, directory, "publisher")?;
    publish.args(["publish", "--recording", &source.recording]);
    publish.args(["--level", &source.level]);
    publish.args(["--listen", address]);
    publish.args(["--fps", &source.fps.to_string()]);
    publish.args(["--congestion", &source.congestion]);
    publish.args(source.encode_ahead.then_some("--encode-ahead"));
    publish.args(source.mptcp.then_some("--mptcp"));
    publish.arg("--log").arg(directory.join("captured.csv"));
    Ok(publish)
}

/// Returns the command of the viewer of the publisher at `address`.
fn view(binary: &Path, directory: &Path, source: &Source, address: &str) -> Result<Command> {
    let mut view = command(binary, directory, "viewer")?;
    view.args(["view", address]);
    view.arg("--timeline").arg(directory.join("frames.csv"));
    view.arg("--arrivals").arg(directory.join("arrivals.csv"));
    let in_flight = source.in_flight;
    view.args(in_flight.map(|frames| format!("--in-flight={frames}")));
    view.args(source.mptcp.then_some("--mptcp"));
    Ok(view)
}

/// Waits until a process has written the first row of its table. The publisher has then loaded its
/// recording and captures, the viewer has received a frame.
pub(crate) fn await_rows(
    process: &mut Process,
    directory: &Path,
    name: &str,
    table: &str,
    stop: &Stop,
) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    let log = directory.join(format!("{name}.log"));
    let failed = |how: String| anyhow!("the {name} {how}: {}", last_log_line(&log));
    while !fs::read_to_string(directory.join(table)).is_ok_and(|text| text.lines().count() > 1) {
        if let Some(status) = process.ended()? {
            return Err(failed(format!("exited with {status}")));
        }
        if stop.requested() {
            bail!("stopped");
        }
        if Instant::now() > deadline {
            return Err(failed(format!("has no frame within {TIMEOUT:?}")));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

pub(crate) fn command(binary: &Path, directory: &Path, name: &str) -> Result<Command> {
    let mut command = Command::new(binary);
    redirect(&mut command, &directory.join(format!("{name}.log")))?;
    Ok(command)
}
