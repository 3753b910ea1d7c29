//! A volumetric stream that is pushed through a lab, with a publisher at the source and a viewer at
//! the other end.

use crate::logs::last_log_line;
use crate::stream::{EXIT_TIMEOUT, await_rows, command};
use crate::topology::{Lab, Stop};
use anyhow::{Context, Result, bail, ensure};
use hawser_io::clock::unix_ns;
use hawser_io::process::Process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PORT: u16 = 14748;

/// The parameters of a stream that is pushed.
#[derive(Debug, Clone, PartialEq)]
pub struct PushSource {
    /// A recording's description, or "synthetic".
    pub recording: String,
    /// The codec as `hawser publish --codec` takes it.
    pub codec: String,
    /// Frames per second.
    pub fps: f64,
    /// The highest rate of the flow, Mb/s.
    pub max_rate_mbps: f64,
}

/// A running stream. It stops when this is dropped.
#[derive(Debug)]
pub struct PushedStream {
    publisher: Process,
    viewer: Process,
    directory: PathBuf,
    began_ns: u64,
}

/// The logs of a stream that has stopped.
#[derive(Debug, Clone)]
pub struct PushLogs {
    /// The viewer's table of frames.
    pub frames: PathBuf,
    /// The publisher's table of encoded frames.
    pub encoded: PathBuf,
    /// The publisher's table of the flow's states.
    pub flows: PathBuf,
    /// The time at which the first frame had arrived, nanoseconds since 1970.
    pub began_ns: u64,
}

impl PushedStream {
    /// Starts publisher and viewer and waits for the first frame. `binary` is `hawser`. Logs and the
    /// secret of the broadcast go to `directory`.
    pub fn start(
        lab: &Lab,
        binary: &Path,
        directory: &Path,
        source: &PushSource,
        stop: &Stop,
    ) -> Result<Self> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        generate_key(binary, &directory.join("media.key"))?;
        let address = format!("{}:{PORT}", lab.source_v4());
        let mut publisher =
            Process::spawn(lab.source(), publish(binary, directory, source, &address)?)?;
        let mut viewer = Process::spawn(lab.viewer(), view(binary, directory, &address)?)?;
        await_rows(&mut viewer, directory, "viewer", "frames.csv", stop)?;
        await_rows(&mut publisher, directory, "publisher", "encoded.csv", stop)?;
        Ok(PushedStream {
            publisher,
            viewer,
            directory: directory.to_owned(),
            began_ns: unix_ns(),
        })
    }

    /// Stops both processes and returns their logs.
    pub fn stop(mut self) -> Result<PushLogs> {
        self.check_running()?;
        for (process, name) in [(self.viewer, "viewer"), (self.publisher, "publisher")] {
            let status = process.stop(EXIT_TIMEOUT)?;
            let log = self.directory.join(format!("{name}.log"));
            ensure!(
                status.success(),
                "the {name} exited with {status}: {}",
                last_log_line(&log)
            );
        }
        let file = |name: &str| self.directory.join(name);
        Ok(PushLogs {
            frames: file("frames.csv"),
            encoded: file("encoded.csv"),
            flows: file("flows.csv"),
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
                let log = self.directory.join(format!("{name}.log"));
                bail!("the {name} exited with {status}: {}", last_log_line(&log));
            }
        }
        Ok(())
    }
}

fn generate_key(binary: &Path, key: &Path) -> Result<()> {
    if key.exists() {
        fs::remove_file(key).with_context(|| format!("cannot remove {}", key.display()))?;
    }
    let status = Command::new(binary)
        .args(["keygen", "--media"])
        .arg(key)
        .status()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    ensure!(
        status.success(),
        "the secret of the broadcast is not generated"
    );
    Ok(())
}

/// Returns the command of the publisher, which listens at `address`.
fn publish(binary: &Path, directory: &Path, source: &PushSource, address: &str) -> Result<Command> {
    let mut publish = command(binary, directory, "publisher")?;
    publish.args(["publish", "--push", "--recording", &source.recording]);
    publish.args(["--codec", &source.codec, "--listen", address]);
    publish.args(["--fps", &source.fps.to_string()]);
    publish.args(["--max-rate", &source.max_rate_mbps.to_string()]);
    publish.arg("--key").arg(directory.join("media.key"));
    publish.arg("--log").arg(directory.join("encoded.csv"));
    publish.arg("--stats").arg(directory.join("flows.csv"));
    Ok(publish)
}

/// Returns the command of the viewer of the publisher at `address`.
fn view(binary: &Path, directory: &Path, address: &str) -> Result<Command> {
    let mut view = command(binary, directory, "viewer")?;
    view.args(["view", "--push", address]);
    view.arg("--key").arg(directory.join("media.key"));
    view.arg("--timeline").arg(directory.join("frames.csv"));
    view.arg("--snapshot").arg(directory.join("picture.png"));
    Ok(view)
}
