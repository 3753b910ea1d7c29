//! A volumetric stream that is pushed through a lab or its tunnel.

use super::ends::{self, End, Ends};
use anyhow::{Context, Result, ensure};
use hawser_testbed::topology::Stop;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use super::ends::Places;

/// The parameters of a stream that is pushed.
#[derive(Debug, Clone, PartialEq)]
pub struct PushSource {
    /// A recording's description, or "synthetic".
    pub recording: String,
    /// The codec as `hawser publish --codec` takes it.
    pub codec: String,
    /// The number of encodings of each track.
    pub encodings: u8,
    /// Frames per second.
    pub fps: f64,
    /// The highest rate of the flow, Mb/s.
    pub max_rate_mbps: f64,
    /// Whether the flow has the highest rate all the time, whatever the network bears.
    pub is_constant: bool,
}

impl PushSource {
    /// Adds the publisher's arguments. Its tables go to `directory`.
    pub(super) fn configure(&self, publish: &mut Command, key: &Path, directory: &Path) {
        publish.args(["--recording", &self.recording]);
        publish.args(["--codec", &self.codec]);
        publish.args(["--encodings", &self.encodings.to_string()]);
        publish.args(["--fps", &self.fps.to_string()]);
        let rate = self.max_rate_mbps.to_string();
        publish.args(["--max-rate", &rate]);
        if self.is_constant {
            publish.args(["--min-rate", &rate]);
        }
        publish.arg("--key").arg(key);
        publish.arg("--log").arg(directory.join("encoded.csv"));
        publish.arg("--stats").arg(directory.join("flows.csv"));
    }
}

/// The name of the viewer's picture of the newest frame, which it writes once a second.
pub const PICTURE: &str = "picture.png";

/// A running stream. It stops when this is dropped.
#[derive(Debug)]
pub struct PushedStream(Ends);

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
        places: &Places<'_>,
        binary: &Path,
        directory: &Path,
        source: &PushSource,
        stop: &Stop,
    ) -> Result<Self> {
        ends::create(directory)?;
        let key = directory.join("media.key");
        generate_key(binary, &["--media"], &key)?;
        let mut publisher = End::publisher(places, (binary, "publish"), directory, |publish| {
            source.configure(publish, &key, directory);
        })?;
        let mut viewer = End::viewer(places, (binary, "view"), directory, |view| {
            view.arg(places.address());
            view.arg("--key").arg(&key);
            view.arg("--timeline").arg(directory.join("frames.csv"));
            view.arg("--snapshot").arg(directory.join(PICTURE));
        })?;
        viewer.await_rows(&directory.join("frames.csv"), stop)?;
        publisher.await_rows(&directory.join("encoded.csv"), stop)?;
        Ok(PushedStream(Ends::new(publisher, viewer, directory)))
    }

    /// Stops both processes and returns their logs.
    pub fn stop(self) -> Result<PushLogs> {
        let logs = PushLogs {
            frames: self.0.file("frames.csv"),
            encoded: self.0.file("encoded.csv"),
            flows: self.0.file("flows.csv"),
            began_ns: self.0.began_ns,
        };
        self.0.stop()?;
        Ok(logs)
    }

    /// Returns an error if the publisher or the viewer has exited.
    pub fn check_running(&mut self) -> Result<()> {
        self.0.check_running()
    }
}

/// Has `hawser keygen` write a key.
pub(super) fn generate_key(binary: &Path, kind: &[&str], key: &Path) -> Result<()> {
    if key.exists() {
        fs::remove_file(key).with_context(|| format!("cannot remove {}", key.display()))?;
    }
    let status = Command::new(binary)
        .arg("keygen")
        .args(kind)
        .arg(key)
        .status()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    ensure!(
        status.success(),
        "the secret of the broadcast is not generated"
    );
    Ok(())
}
