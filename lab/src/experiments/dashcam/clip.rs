//! A clip of the recording, as a camera encodes and sends it.

use super::access_unit::{AccessUnit, split};
use anyhow::{Context, Result, ensure};
use hawser_recording::data_dir;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Frame rate of the camera.
pub(in crate::experiments) const FPS: u64 = 30;

/// Frames from one key frame to the next.
const GROUP: u64 = 30;

/// RTP packet size that results in packets of 1300 bytes with the IPv4 and UDP headers.
const RTP_PACKET_BYTES: u64 = 1272;

/// An encoded video that a camera can send.
pub(in crate::experiments) struct Clip {
    folder: TempDir,
    /// The number of its frames.
    frames: u64,
    /// Whether it was recorded with a camera.
    is_filmed: bool,
}

impl Clip {
    /// Encodes the first frames of the dashcam's recording, or of a test pattern on a machine without
    /// it, at 30 Mb/s. The settings are those with which the simulation's frame sizes were measured.
    ///
    /// # Errors
    /// If ffmpeg is not installed, or fails.
    pub(in crate::experiments) fn encode(frames: u64) -> Result<Self> {
        let filmed = data_dir().join("video/dashcam.mp4");
        let clip = Clip {
            folder: tempfile::tempdir()?,
            frames,
            is_filmed: filmed.exists(),
        };
        let (fps, group) = (FPS.to_string(), GROUP.to_string());
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-nostdin", "-v", "error", "-y"]);
        if clip.is_filmed {
            ffmpeg.args(["-stream_loop", "-1", "-r", &fps, "-i"]);
            ffmpeg.arg(filmed);
        } else {
            ffmpeg.args(["-f", "lavfi", "-i"]);
            ffmpeg.arg(format!("testsrc2=size=1920x1080:rate={FPS}"));
        }
        ffmpeg.args(["-frames:v", &frames.to_string()]);
        ffmpeg.args(["-an", "-vf", "scale=1920:1080,format=yuv420p"]);
        ffmpeg.args(["-c:v", "libx264", "-preset", "superfast"]);
        ffmpeg.args(["-tune", "zerolatency"]);
        ffmpeg.args(["-b:v", "30M", "-maxrate", "30M", "-bufsize", "3M"]);
        ffmpeg.args(["-g", &group]);
        ffmpeg.args(["-x264-params", "scenecut=0:nal-hrd=cbr"]);
        ffmpeg.args(["-f", "mpegts"]).arg(clip.file());
        finish(ffmpeg)?;
        Ok(clip)
    }

    /// Returns the name of the video in summaries.
    pub(in crate::experiments) fn name(&self) -> &'static str {
        if self.is_filmed {
            "dashcam"
        } else {
            "test picture"
        }
    }

    /// Returns its frames.
    ///
    /// # Errors
    /// If ffmpeg fails.
    pub(in crate::experiments) fn access_units(&self) -> Result<Vec<AccessUnit>> {
        let stream = self.folder.path().join("clip.h264");
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-nostdin", "-v", "error", "-y", "-i"]);
        ffmpeg.arg(self.file());
        // MPEG-TS has a delimiter in front of each frame, which stays in the stream.
        ffmpeg.args(["-map", "0:v", "-c", "copy", "-f", "h264"]);
        ffmpeg.arg(&stream);
        finish(ffmpeg)?;
        let bytes =
            fs::read(&stream).with_context(|| format!("cannot read {}", stream.display()))?;
        let units = split(&bytes);
        ensure!(
            units.len() as u64 == self.frames,
            "ffmpeg encoded {} frames of {}",
            units.len(),
            self.frames
        );
        Ok(units)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("clip.ts")
    }

    /// Returns a command that sends the video in real time to a local port as RTP packets, of which
    /// the last one of a frame has the marker. The clip is repeated for as long as the video lasts.
    pub(in crate::experiments) fn camera(&self, port: u16, length: Duration) -> Command {
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg
            .args(["-nostdin", "-v", "error", "-re", "-stream_loop", "-1", "-i"])
            .arg(self.file());
        ffmpeg.args([
            "-map",
            "0:v",
            "-c",
            "copy",
            "-frames:v",
            &frames(length).to_string(),
            "-f",
            "rtp",
        ]);
        ffmpeg.arg(format!(
            "rtp://127.0.0.1:{port}?pkt_size={RTP_PACKET_BYTES}"
        ));
        ffmpeg
    }
}

/// Returns the number of frames in a duration.
pub(in crate::experiments) fn frames(length: Duration) -> u64 {
    (length.as_secs_f64() * FPS as f64).round() as u64
}

/// Runs a command and waits until it exits.
pub(super) fn finish(mut command: Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output =
        output.with_context(|| format!("cannot run {program}: install the package ffmpeg"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} failed: {}",
        complaint.lines().last().unwrap_or_default()
    );
    Ok(())
}
