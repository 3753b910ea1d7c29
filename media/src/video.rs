use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::{self, JoinHandle};

/// The reason that a video cannot be decoded.
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
}

/// The format in which the images of a video are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PixelFormat {
    /// Red, green, blue, one byte each.
    Rgb24,
    /// 16 bits, little-endian.
    Gray16,
}

/// A video that ffmpeg decodes into a pipe, image by image.
pub(crate) struct Video {
    path: PathBuf,
    image: Vec<u8>,
    ffmpeg: Child,
    images: ChildStdout,
    complaints: Option<JoinHandle<String>>,
}

impl Video {
    pub(crate) fn open(path: &Path, format: PixelFormat) -> Result<Self, VideoError> {
        std::fs::File::open(path).map_err(|error| VideoError::Open {
            path: path.to_owned(),
            error,
        })?;
        let (width, height, found) = probe(path)?;
        let (name, pixel_bytes) = match format {
            PixelFormat::Rgb24 => ("rgb24", 3),
            PixelFormat::Gray16 => ("gray16le", 2),
        };
        if format == PixelFormat::Gray16 && !found.starts_with("gray16") {
            return Err(VideoError::NotDepth {
                path: path.to_owned(),
                found,
            });
        }
        let mut ffmpeg = decoder(path, name)?;
        let images = ffmpeg.stdout.take().expect("stdout is piped");
        let stderr = ffmpeg.stderr.take().expect("stderr is piped");
        let complaints = thread::spawn(move || read_text(stderr));
        let image = vec![0; width * height * pixel_bytes];
        Ok(Video {
            path: path.to_owned(),
            image,
            ffmpeg,
            images,
            complaints: Some(complaints),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the image that was read last.
    pub(crate) fn image(&self) -> &[u8] {
        &self.image
    }

    /// Reads the next image. Returns `false` at the end of the video.
    pub(crate) fn read_image(&mut self) -> Result<bool, VideoError> {
        match self.images.read_exact(&mut self.image) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.finish().map(|()| false)
            }
            Err(error) => Err(self.decode_error(error.to_string())),
        }
    }

    fn finish(&mut self) -> Result<(), VideoError> {
        let status = self
            .ffmpeg
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

    fn decode_error(&self, complaint: String) -> VideoError {
        VideoError::Decode {
            path: self.path.clone(),
            complaint,
        }
    }
}

impl Drop for Video {
    fn drop(&mut self) {
        // It may have exited by itself; the rest of the video is not needed.
        let _ = self.ffmpeg.kill();
        let _ = self.ffmpeg.wait();
    }
}

/// Starts to decode the first video stream of a file to raw images.
fn decoder(path: &Path, pixel_format: &str) -> Result<Child, VideoError> {
    Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-xerror", "-i"])
        .arg(path)
        .args(["-map", "0:v:0", "-fps_mode", "passthrough"])
        .args(["-f", "rawvideo", "-pix_fmt", pixel_format, "-"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| VideoError::Program {
            program: "ffmpeg",
            error,
        })
}

fn read_text(mut from: impl Read) -> String {
    let mut text = Vec::new();
    // On an error, the text read so far is used.
    let _ = from.read_to_end(&mut text);
    String::from_utf8_lossy(&text).trim().to_owned()
}

/// Returns width, height and pixel format of the first video stream.
fn probe(path: &Path) -> Result<(usize, usize, String), VideoError> {
    let output = Command::new("ffprobe")
        .args([
            "-v",
            "error",
            "-select_streams",
            "v:0",
            "-of",
            "default=noprint_wrappers=1:nokey=1",
        ])
        .args(["-show_entries", "stream=width,height,pix_fmt"])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| VideoError::Program {
            program: "ffprobe",
            error,
        })?;
    let stream = parse_stream(&String::from_utf8_lossy(&output.stdout));
    stream.filter(|_| output.status.success()).ok_or_else(|| {
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        VideoError::Decode {
            path: path.to_owned(),
            complaint: if complaint.is_empty() {
                format!("it contains no video stream of at most {MAX_SIDE} x {MAX_SIDE} pixels")
            } else {
                complaint
            },
        }
    })
}

/// The largest width and height of an image that is decoded, in pixels.
const MAX_SIDE: usize = 16_384;

/// Parses the lines of width, height and pixel format.
fn parse_stream(text: &str) -> Option<(usize, usize, String)> {
    let mut fields = text.lines();
    let width: usize = fields.next()?.parse().ok()?;
    let height: usize = fields.next()?.parse().ok()?;
    let format = fields.next()?.to_owned();
    let sides = 1..=MAX_SIDE;
    (sides.contains(&width) && sides.contains(&height)).then_some((width, height, format))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_output_of_ffprobe_is_parsed_or_refused(text in r"(-?[0-9]{0,24}\r?\n?){0,2}\PC{0,16}(\n\PC{0,16}){0,3}") {
            if let Some((width, height, _)) = parse_stream(&text) {
                prop_assert!(width > 0 && height > 0);
                prop_assert!(width * height <= MAX_SIDE * MAX_SIDE);
            }
        }
    }

    #[test]
    fn a_stream_has_a_size_and_a_format() {
        let parsed = parse_stream("848\n480\ngray16le\n").unwrap();
        assert_eq!(parsed, (848, 480, "gray16le".to_owned()));
        for refused in [
            "",
            "848\n480",
            "0\n480\nrgb24",
            "16385\n480\nrgb24",
            "N/A\nN/A\n",
        ] {
            assert_eq!(parse_stream(refused), None, "{refused}");
        }
    }
}
