use hawser_io::process;
use hawser_units::Line;
use parking_lot::{Condvar, Mutex};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
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
    /// The images do not have the size that the intrinsics are for.
    #[error("{path} has images of {found_columns} x {found_rows} pixels, but the intrinsics of the camera are for {columns} x {rows}", path = path.display(), found_columns = found.0, found_rows = found.1, columns = expected.0, rows = expected.1)]
    Size {
        /// The video or the image, or the options of a live input.
        path: PathBuf,
        /// Its columns and rows.
        found: (usize, usize),
        /// Columns and rows of its images that the intrinsics are for.
        expected: (usize, usize),
    },
    /// The images are shown otherwise than they are stored, and so depth would not fit colour.
    #[error("{path}: its metadata say that it is shown {orientation}: store the images upright, as the intrinsics describe them, and remove the orientation", path = path.display())]
    Orientation {
        /// The video or the image, or the options of a live input.
        path: PathBuf,
        /// How they are shown.
        orientation: String,
    },
    /// Several images cannot be used.
    #[error("{first}; {others} other images cannot be used either")]
    Several {
        /// The error of the first one.
        first: Box<VideoError>,
        /// The number of the others.
        others: usize,
    },
    /// A live input delivers nothing.
    #[error("{path} has delivered no image for {seconds} s", path = path.display())]
    Stalled {
        /// The options of the input.
        path: PathBuf,
        /// The time without an image.
        seconds: f64,
    },
    /// An input has no sound.
    #[error("{path} has delivered no sound for {seconds} s", path = path.display())]
    Silent {
        /// The file, or the options of the input.
        path: PathBuf,
        /// The time without sound.
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

/// Changes the byte order of values of 16 bits.
pub(crate) fn swap_bytes(values: &mut [u8]) {
    for value in values.as_chunks_mut::<2>().0 {
        value.reverse();
    }
}

/// The largest width and height of an image that is decoded, in pixels.
pub(crate) const MAX_SIDE: usize = 16_384;

/// Returns the argument for a file, which is no protocol, no option and no pattern, whatever its name.
pub(crate) fn file_argument(path: &Path) -> OsString {
    let mut argument = OsString::from("file:");
    argument.push(path);
    argument
}

pub(crate) fn read_error(path: &Path) -> impl Fn(io::Error) -> VideoError {
    move |error| VideoError::Open {
        path: path.to_owned(),
        error,
    }
}

/// A process of ffmpeg, which is killed when this is dropped.
pub(crate) struct Ffmpeg {
    /// The name of the input in errors.
    name: PathBuf,
    child: Child,
    log: Arc<Log>,
    logging: Option<JoinHandle<()>>,
}

/// The messages of a process on its inputs and its errors.
#[derive(Default)]
pub(crate) struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

/// The most lines of errors that are kept, and their length.
const COMPLAINTS: usize = 32;
const COMPLAINT_CHARS: usize = 1_000;

#[derive(Default)]
struct LogState {
    complaints: Vec<String>,
    /// How the images are shown, if that is not as they are stored.
    orientation: Option<String>,
    /// Whether the inputs have been described.
    has_described: bool,
}

impl Log {
    /// Waits until the process has described its inputs. Says how their images are shown if that is not as they are
    /// stored. It is described only with the options of [`Ffmpeg::describing`].
    pub(crate) fn orientation(&self) -> Option<String> {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |state| !state.has_described);
        state.orientation.clone()
    }

    /// Reads until the process has ended.
    fn read(&self, from: impl Read) {
        // On an error, the text read so far is used.
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            self.add(&String::from_utf8_lossy(&line));
        }
        self.state.lock().has_described = true;
        self.changed.notify_all();
    }

    fn add(&self, line: &str) {
        let mut state = self.state.lock();
        if let Some((_, degrees)) = line.split_once("displaymatrix: rotation of ") {
            let degrees = degrees.trim();
            state.orientation = Some(format!("turned by {degrees} (display matrix)"));
        }
        if line.contains("Output #0") {
            state.has_described = true;
            self.changed.notify_all();
        }
        if !line.contains("[info]") && !line.contains("[warning]") {
            let text = ["[error] ", "[fatal] ", "[panic] "];
            let text = text
                .iter()
                .fold(line.to_owned(), |line, level| line.replace(level, ""));
            let text = text.trim_end().chars().take(COMPLAINT_CHARS).collect();
            // The first ones and the newest say the most.
            if state.complaints.len() == COMPLAINTS {
                state.complaints.remove(COMPLAINTS / 2);
            }
            state.complaints.push(text);
        }
    }
}

impl Ffmpeg {
    /// Returns a command with the options that all uses share.
    pub(crate) fn command() -> Command {
        let mut command = Command::new("ffmpeg");
        command.args(["-nostdin", "-v", "error"]);
        command
    }

    /// Returns a command as [`Ffmpeg::command`], which also describes its inputs.
    pub(crate) fn describing() -> Command {
        let mut command = Command::new("ffmpeg");
        command.args(["-nostdin", "-hide_banner", "-nostats", "-v", "level+info"]);
        command
    }

    /// Starts a command. Returns its output, too.
    pub(crate) fn start(
        name: &Path,
        mut command: Command,
        stdin: Stdio,
    ) -> Result<(Self, ChildStdout), VideoError> {
        command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // An interrupt from the terminal does not reach it: the program then stops playing.
        let mut child = process::spawn(command).map_err(|error| VideoError::Program {
            program: "ffmpeg",
            error,
        })?;
        let output = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        let log = Arc::<Log>::default();
        let reader = Arc::clone(&log);
        let ffmpeg = Ffmpeg {
            name: name.to_owned(),
            child,
            log,
            logging: Some(thread::spawn(move || reader.read(stderr))),
        };
        Ok((ffmpeg, output))
    }

    /// Takes the input of the process, if it was started with a pipe for it.
    pub(crate) const fn take_input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    pub(crate) fn log(&self) -> Arc<Log> {
        Arc::clone(&self.log)
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
        if let Some(logging) = self.logging.take() {
            // Its only panic is one of the allocation of memory.
            let _ = logging.join();
        }
        let complaint = self
            .log
            .state
            .lock()
            .complaints
            .join("\n")
            .trim()
            .to_owned();
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
