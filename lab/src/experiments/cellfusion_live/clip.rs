use anyhow::{Context, Result, ensure};
use hawser_io::media::data_dir;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The camera's rate.
pub(super) const FPS: u64 = 30;

/// Frames from one key frame to the next.
const GROUP: u64 = 30;

/// What is encoded at most; it is repeated for as long as the video lasts.
const FRAMES: u64 = 10 * FPS;

/// What fills a packet of 1300 bytes with the headers of IPv4 and UDP.
const RTP_PACKET_BYTES: u64 = 1272;

/// An encoded video that a camera can send.
pub(super) struct Clip {
    file: PathBuf,
    /// Whether it was filmed.
    pub(super) is_filmed: bool,
}

impl Clip {
    /// Encodes the dashcam's recording, or a test picture on a machine without it, at 30 Mb/s: with the settings of which
    /// the simulation has the sizes of its frames. `length` is how long a camera is to send it.
    pub(super) fn encode(folder: &Path, length: Duration) -> Result<Self> {
        let filmed = data_dir().join("video/dashcam.mp4");
        let clip = Clip {
            file: folder.join("clip.ts"),
            is_filmed: filmed.exists(),
        };
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-nostdin", "-v", "error", "-y"]);
        if clip.is_filmed {
            ffmpeg
                .args(["-stream_loop", "-1", "-r", &FPS.to_string(), "-i"])
                .arg(filmed);
        } else {
            ffmpeg.args([
                "-f",
                "lavfi",
                "-i",
                &format!("testsrc2=size=1920x1080:rate={FPS}"),
            ]);
        }
        ffmpeg.args(["-frames:v", &frames(length).min(FRAMES).to_string()]);
        ffmpeg.args(["-an", "-vf", "scale=1920:1080,format=yuv420p"]);
        ffmpeg.args([
            "-c:v",
            "libx264",
            "-preset",
            "superfast",
            "-tune",
            "zerolatency",
        ]);
        ffmpeg.args([
            "-b:v",
            "30M",
            "-maxrate",
            "30M",
            "-bufsize",
            "3M",
            "-g",
            &GROUP.to_string(),
        ]);
        ffmpeg
            .args(["-x264-params", "scenecut=0:nal-hrd=cbr", "-f", "mpegts"])
            .arg(&clip.file);
        finish(ffmpeg)?;
        Ok(clip)
    }

    /// A command that sends the video in real time to a port of its own node: one packet of RTP after the other, the last
    /// of a frame with the marker.
    pub(super) fn camera(&self, port: u16, length: Duration) -> Command {
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg
            .args(["-nostdin", "-v", "error", "-re", "-stream_loop", "-1", "-i"])
            .arg(&self.file);
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

/// How many frames a time has.
pub(super) fn frames(length: Duration) -> u64 {
    (length.as_secs_f64() * FPS as f64).round() as u64
}

/// Runs a tool to its end.
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
