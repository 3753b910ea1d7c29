use hawser_units::Line;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::{self, JoinHandle};

/// The reason that a video cannot be decoded or encoded.
#[derive(Debug, thiserror::Error)]
pub enum VideoError {
    /// The file does not exist or cannot be read.
    #[error("cannot open {path}: {error}", path = path.display())]
    Open {
        /// The video.
        path: PathBuf,
        /// The error from the system.
        error: io::Error,
    },
    /// A program is missing.
    #[error("cannot run {program}: {error}; install it with \"apt install ffmpeg\"")]
    Program {
        /// `ffmpeg` or `ffprobe`.
        program: &'static str,
        /// The error from the system.
        error: io::Error,
    },
    /// ffmpeg failed.
    #[error("{path}: {complaint}", path = path.display())]
    Decode {
        /// The video, or the options of a live input.
        path: PathBuf,
        /// The error message of ffmpeg.
        complaint: String,
    },
    /// A pattern or an index file that does not name images that can be played.
    #[error("{path}: {reason}", path = path.display())]
    Images {
        /// The pattern or the index file.
        path: PathBuf,
        /// The missing number, the wrong line, or the kind of the images.
        reason: String,
    },
    /// ffmpeg failed to encode.
    #[error("cannot write {path}: {complaint}", path = path.display())]
    Encode {
        /// The video.
        path: PathBuf,
        /// The error message of ffmpeg.
        complaint: String,
    },
    /// A depth video that is not 16 bits deep.
    #[error("{path} has the pixel format {found}, depth must be 16-bit grey (gray16le)", path = path.display())]
    NotDepth {
        /// The video.
        path: PathBuf,
        /// Its pixel format.
        found: String,
    },
    /// A live input delivers nothing.
    #[error("{path} has delivered no image for {seconds} s", path = path.display())]
    Stalled {
        /// The options of the input.
        path: PathBuf,
        /// The time without an image.
        seconds: f64,
    },
    /// A live input has ended.
    #[error("{path} has ended, but a live input must not", path = path.display())]
    Ended {
        /// The options of the input.
        path: PathBuf,
    },
}

/// The format in which the images of a video are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PixelFormat {
    /// Red, green, blue, one byte each.
    Rgb24,
    /// 16 bits, little-endian.
    Gray16,
}

impl PixelFormat {
    /// Returns the bytes of an image of this size.
    pub(crate) fn image_bytes(self, (width, height): (usize, usize)) -> usize {
        let pixel_bytes = match self {
            PixelFormat::Rgb24 => 3,
            PixelFormat::Gray16 => 2,
        };
        width * height * pixel_bytes
    }
}

/// The largest width and height of an image that is decoded, in pixels.
pub(crate) const MAX_SIDE: usize = 16_384;

/// Parses the width and height of an image.
pub(crate) fn parse_size(width: &str, height: &str) -> Option<(usize, usize)> {
    let side = |text: &str| {
        let side: usize = text.parse().ok()?;
        (1..=MAX_SIDE).contains(&side).then_some(side)
    };
    Some((side(width)?, side(height)?))
}

/// A process of ffmpeg, which is killed when this is dropped.
pub(crate) struct Ffmpeg {
    /// The name of the input in errors.
    name: PathBuf,
    child: Child,
    complaints: Option<JoinHandle<String>>,
}

impl Ffmpeg {
    /// Returns a command with the options that all uses share.
    pub(crate) fn command() -> Command {
        let mut command = Command::new("ffmpeg");
        command.args(["-nostdin", "-v", "error"]);
        command
    }

    /// Starts a command. Returns its output, too.
    pub(crate) fn start(
        name: &Path,
        mut command: Command,
        stdin: Stdio,
    ) -> Result<(Self, ChildStdout), VideoError> {
        let mut child = command
            // A group of its own: an interrupt from the terminal is for the program, which then stops
            // playing.
            .process_group(0)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| VideoError::Program {
                program: "ffmpeg",
                error,
            })?;
        let output = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        let ffmpeg = Ffmpeg {
            name: name.to_owned(),
            child,
            complaints: Some(thread::spawn(move || read_text(stderr))),
        };
        Ok((ffmpeg, output))
    }

    /// Returns the pipe into the process, if it was started with one.
    pub(crate) fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    /// Waits for the end of the process.
    pub(crate) fn finish(&mut self) -> Result<(), VideoError> {
        let status = self
            .child
            .wait()
            .map_err(|error| self.decode_error(error.to_string()))?;
        let complaint = self
            .complaints
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default();
        if status.success() {
            Ok(())
        } else {
            Err(self.decode_error(format!("{complaint} (ffmpeg: {status})")))
        }
    }

    pub(crate) fn decode_error(&self, complaint: String) -> VideoError {
        VideoError::Decode {
            path: self.name.clone(),
            complaint,
        }
    }
}

impl Drop for Ffmpeg {
    fn drop(&mut self) {
        // It may have exited by itself; what it has not decoded yet is not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn read_text(mut from: impl Read) -> String {
    let mut text = Vec::new();
    // On an error, the text read so far is used.
    let _ = from.read_to_end(&mut text);
    Line::of_output(&text).into_string()
}
