//! A volumetric stream through a lab, with a publisher at the source and a viewer at the other end.

use super::ends::{self, End, Ends, Places};
use anyhow::Result;
use hawser_testbed::topology::{Lab, Stop};
use std::path::{Path, PathBuf};

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
pub struct Stream(Ends);

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
        ends::create(directory)?;
        let places = Places::across(lab);
        let mut publisher = End::publisher(&places, (binary, "serve"), directory, |publish| {
            publish.args(["--recording", &source.recording]);
            publish.args(["--level", &source.level]);
            publish.args(["--fps", &source.fps.to_string()]);
            publish.args(["--congestion", &source.congestion]);
            publish.args(source.encode_ahead.then_some("--encode-ahead"));
            publish.args(source.mptcp.then_some("--mptcp"));
            publish.arg("--log").arg(directory.join("captured.csv"));
        })?;
        publisher.await_rows(&directory.join("captured.csv"), stop)?;
        let mut viewer = End::viewer(&places, (binary, "fetch"), directory, |view| {
            view.arg(places.address());
            view.arg("--timeline").arg(directory.join("frames.csv"));
            view.arg("--arrivals").arg(directory.join("arrivals.csv"));
            let in_flight = source.in_flight;
            view.args(in_flight.map(|frames| format!("--in-flight={frames}")));
            view.args(source.mptcp.then_some("--mptcp"));
        })?;
        viewer.await_rows(&directory.join("frames.csv"), stop)?;
        Ok(Stream(Ends::new(publisher, viewer, directory)))
    }

    /// Stops both processes and returns their logs.
    pub fn stop(self) -> Result<Logs> {
        let logs = Logs {
            frames: self.0.file("frames.csv"),
            arrivals: self.0.file("arrivals.csv"),
            captured: self.0.file("captured.csv"),
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
