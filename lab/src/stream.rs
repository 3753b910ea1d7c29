//! A volumetric stream through a lab: a publisher at the source, a viewer at the other end.

use crate::logs::last_words;
use crate::topology::{Lab, Stop};
use anyhow::{Context, Result, bail};
use hawser_io::process::Process;
use hawser_qoe::{Frame, Window};
use hawser_units::Instant;
use hawser_view::timeline::{self, Arrival, Row};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PORT: u16 = 14748;

/// How long the publisher may take to load its recording, and the first frame to arrive.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a process may take to end.
const GRACE: Duration = Duration::from_secs(10);

/// What is streamed.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// A recording's description, or "synthetic".
    pub recording: String,
    /// Points a frame: `nfov`, `hd` or `fhd`.
    pub level: String,
    /// Frames a second.
    pub fps: f64,
    /// TCP congestion control.
    pub congestion: String,
    /// Frames that the viewer asks for ahead; the viewer's own number when not given.
    pub in_flight: Option<usize>,
    /// Whether frames are encoded before the stream begins.
    pub encode_ahead: bool,
    /// Whether publisher and viewer speak MPTCP.
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

/// A stream that runs. It ends when this is dropped.
#[derive(Debug)]
pub struct Stream {
    publisher: Process,
    viewer: Process,
    directory: PathBuf,
    /// When the stream began, nanoseconds since 1970: the first frame had arrived.
    began_ns: u64,
}

/// What the viewer and the publisher wrote down.
#[derive(Debug, Clone)]
pub struct Record {
    /// Frames, in the order in which they arrived.
    pub frames: Vec<Row>,
    /// What the reads of the viewer's socket returned.
    pub arrivals: Vec<Arrival>,
    /// When each frame was captured, nanoseconds since 1970.
    pub captured_ns: Vec<u64>,
    /// When the stream began, nanoseconds since 1970.
    pub began_ns: u64,
}

impl Stream {
    /// Starts publisher and viewer and waits for the first frame. `binary` is `hawser`; logs go to `directory`.
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
        let mut publish = command(binary, directory, "publisher")?;
        publish.args([
            "publish",
            "--recording",
            &source.recording,
            "--level",
            &source.level,
            "--listen",
            &address,
        ]);
        publish.args([
            "--fps",
            &source.fps.to_string(),
            "--congestion",
            &source.congestion,
        ]);
        publish.args(source.encode_ahead.then_some("--encode-ahead"));
        publish.args(source.mptcp.then_some("--mptcp"));
        publish.arg("--log").arg(directory.join("captured.csv"));
        let mut publisher = Process::spawn(lab.source(), publish)?;
        await_rows(&mut publisher, directory, "publisher", "captured.csv", stop)?;

        let mut view = command(binary, directory, "viewer")?;
        view.args(["view", &address]);
        view.arg("--timeline").arg(directory.join("frames.csv"));
        view.arg("--arrivals").arg(directory.join("arrivals.csv"));
        view.args(
            source
                .in_flight
                .map(|frames| format!("--in-flight={frames}")),
        );
        view.args(source.mptcp.then_some("--mptcp"));
        let mut viewer = Process::spawn(lab.viewer(), view)?;
        await_rows(&mut viewer, directory, "viewer", "frames.csv", stop)?;
        Ok(Stream {
            publisher,
            viewer,
            directory: directory.to_owned(),
            began_ns: unix_now_ns(),
        })
    }

    /// Ends both processes and reads what they wrote.
    pub fn stop(mut self) -> Result<Record> {
        self.check_running()?;
        let viewer = self.viewer.stop(GRACE)?;
        if !viewer.success() {
            bail!(
                "the viewer ended with {viewer}: {}",
                last_words(&self.directory.join("viewer.log"))
            );
        }
        self.publisher.stop(GRACE)?;
        let read = |name: &str| self.directory.join(name);
        Ok(Record {
            frames: timeline::read(&read("frames.csv"))?,
            arrivals: timeline::read_arrivals(&read("arrivals.csv"))?,
            captured_ns: captured(&read("captured.csv"))?,
            began_ns: self.began_ns,
        })
    }

    /// An error when the publisher or the viewer has ended.
    pub fn check_running(&mut self) -> Result<()> {
        for (process, name) in [
            (&mut self.publisher, "publisher"),
            (&mut self.viewer, "viewer"),
        ] {
            if let Some(status) = process.ended()? {
                bail!(
                    "the {name} ended with {status}: {}",
                    last_words(&self.directory.join(format!("{name}.log")))
                );
            }
        }
        Ok(())
    }
}

impl Record {
    /// The part of the stream from one time to another after its beginning.
    ///
    /// # Panics
    /// When `from` is not before `to`.
    pub fn window(&self, from: Duration, to: Duration) -> Window {
        let began = Instant::from_nanos(self.began_ns);
        Window::new(began + from, began + to).expect("a window has a length")
    }

    /// The frames as the measure of experience takes them.
    pub fn timeline(&self) -> Vec<Frame> {
        self.frames.iter().map(|row| (*row).into()).collect()
    }

    /// Seconds from the stream's beginning to a time in nanoseconds since 1970.
    pub fn seconds(&self, unix_ns: u64) -> f64 {
        (unix_ns as f64 - self.began_ns as f64) / 1e9
    }

    /// Frames that were captured in a second of the stream, on average over a part of it.
    pub fn captured_fps(&self, from: Duration, to: Duration) -> f64 {
        let within = from.as_secs_f64()..to.as_secs_f64();
        let count = self
            .captured_ns
            .iter()
            .filter(|&&at| within.contains(&self.seconds(at)))
            .count();
        count as f64 / (to - from).as_secs_f64()
    }
}

/// Waits until a process has written the first line below the header of its table: the publisher has loaded its recording
/// and captures, the viewer has received a frame.
fn await_rows(
    process: &mut Process,
    directory: &Path,
    name: &str,
    table: &str,
    stop: &Stop,
) -> Result<()> {
    let deadline = std::time::Instant::now() + PATIENCE;
    let log = directory.join(format!("{name}.log"));
    while !fs::read_to_string(directory.join(table)).is_ok_and(|text| text.lines().count() > 1) {
        if let Some(status) = process.ended()? {
            bail!("the {name} ended with {status}: {}", last_words(&log));
        }
        if stop.requested() {
            bail!("stopped");
        }
        if std::time::Instant::now() > deadline {
            bail!(
                "the {name} has no frame after {PATIENCE:?}: {}",
                last_words(&log)
            );
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn captured(path: &Path) -> Result<Vec<u64>> {
    #[derive(serde::Deserialize)]
    struct Row {
        captured_ns: u64,
    }
    let rows: Result<Vec<Row>, _> = csv::Reader::from_path(path)?.deserialize().collect();
    Ok(rows
        .with_context(|| format!("cannot read {}", path.display()))?
        .iter()
        .map(|row| row.captured_ns)
        .collect())
}

fn command(binary: &Path, directory: &Path, name: &str) -> Result<Command> {
    let log = directory.join(format!("{name}.log"));
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(binary);
    command.stdout(output.try_clone()?).stderr(output);
    Ok(command)
}

fn unix_now_ns() -> u64 {
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("the clock stands after 1970");
    u64::try_from(since_1970.as_nanos()).expect("the clock stands before 2554")
}
