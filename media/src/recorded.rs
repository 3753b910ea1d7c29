use crate::ffmpeg::{Ffmpeg, MAX_SIDE, PixelFormat, VideoError, parse_size};
use crate::images::ImageFiles;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Recorded images whose format is known, so that they can be played again and again without a
/// search for it.
pub(crate) struct Clip {
    name: PathBuf,
    input: Input,
    format: PixelFormat,
    image_bytes: usize,
}

/// The origin of recorded images.
enum Input {
    Video,
    /// Files of one image each, which a thread writes one after another into ffmpeg.
    Images {
        demuxer: &'static str,
        files: Arc<[PathBuf]>,
    },
}

impl Clip {
    /// Opens a video file.
    pub(crate) fn open(path: &Path, format: PixelFormat) -> Result<Self, VideoError> {
        fs::File::open(path).map_err(|error| open_error(path, error))?;
        let stream = probe(path, &[])?;
        Self::of_stream(path, stream, Input::Video, format)
    }

    /// Opens files of one image each.
    pub(crate) fn of_images(images: ImageFiles, format: PixelFormat) -> Result<Self, VideoError> {
        let ImageFiles { name, files } = images;
        let demuxer = demuxer(&files).map_err(|reason| VideoError::Images {
            path: name.clone(),
            reason,
        })?;
        fs::File::open(&files[0]).map_err(|error| open_error(&files[0], error))?;
        let stream = probe(&files[0], &["-f", demuxer])?;
        let files = files.into();
        Self::of_stream(&name, stream, Input::Images { demuxer, files }, format)
    }

    fn of_stream(
        name: &Path,
        (size, found): ((usize, usize), String),
        input: Input,
        format: PixelFormat,
    ) -> Result<Self, VideoError> {
        if format == PixelFormat::Gray16 && !found.starts_with("gray16") {
            return Err(VideoError::NotDepth {
                path: name.to_owned(),
                found,
            });
        }
        Ok(Clip {
            name: name.to_owned(),
            input,
            format,
            image_bytes: format.image_bytes(size),
        })
    }

    /// Starts to decode the images from the first one.
    pub(crate) fn play(&self) -> Result<Decoder, VideoError> {
        let pixel_format = match self.format {
            PixelFormat::Rgb24 => "rgb24",
            PixelFormat::Gray16 => "gray16le",
        };
        let mut command = Ffmpeg::command();
        command.arg("-xerror");
        let stdin = match self.input {
            Input::Video => {
                command.arg("-i").arg(&self.name);
                Stdio::null()
            }
            Input::Images { demuxer, .. } => {
                command.args(["-f", demuxer, "-i", "-"]);
                Stdio::piped()
            }
        };
        command.args(["-map", "0:v:0", "-fps_mode", "passthrough"]);
        command.args(["-f", "rawvideo", "-pix_fmt", pixel_format, "-"]);
        let (mut ffmpeg, images) = Ffmpeg::start(&self.name, command, stdin)?;
        let feeder = match &self.input {
            Input::Video => None,
            Input::Images { files, .. } => {
                let (files, stdin) = (Arc::clone(files), ffmpeg.take_stdin());
                Some(thread::spawn(move || feed(&files, stdin)))
            }
        };
        Ok(Decoder {
            image: vec![0; self.image_bytes],
            ffmpeg,
            images,
            feeder,
        })
    }
}

fn open_error(path: &Path, error: io::Error) -> VideoError {
    VideoError::Open {
        path: path.to_owned(),
        error,
    }
}

/// Returns the name of ffmpeg's demuxer for images of one kind that follow each other.
fn demuxer(files: &[PathBuf]) -> Result<&'static str, String> {
    let extension = |file: &PathBuf| {
        let extension = file.extension().unwrap_or_default().to_string_lossy();
        extension.to_ascii_lowercase()
    };
    let kind = files.first().map(extension).unwrap_or_default();
    if let Some(other) = files.iter().find(|file| extension(file) != kind) {
        return Err(format!(
            "{} is not of the kind of the first image, {kind}",
            other.display()
        ));
    }
    match &*kind {
        "png" => Ok("png_pipe"),
        "jpg" | "jpeg" => Ok("jpeg_pipe"),
        "pgm" => Ok("pgm_pipe"),
        "ppm" => Ok("ppm_pipe"),
        "bmp" => Ok("bmp_pipe"),
        _ => Err(format!(
            "images of the kind \"{kind}\" are not supported, but png, jpg, pgm, ppm and bmp"
        )),
    }
}

/// Writes files one after another into the pipe of a process, until it has exited.
fn feed(files: &[PathBuf], pipe: Option<ChildStdin>) -> Result<(), VideoError> {
    let mut pipe = pipe.expect("stdin is piped");
    for path in files {
        let image = fs::read(path).map_err(|error| open_error(path, error))?;
        if image.is_empty() {
            let empty = io::Error::new(io::ErrorKind::UnexpectedEof, "the file is empty");
            return Err(open_error(path, empty));
        }
        if pipe.write_all(&image).is_err() {
            // The process has exited, and its exit status says why.
            break;
        }
    }
    Ok(())
}

/// Recorded images that ffmpeg decodes into a pipe, one by one.
pub(crate) struct Decoder {
    image: Vec<u8>,
    ffmpeg: Ffmpeg,
    images: ChildStdout,
    feeder: Option<JoinHandle<Result<(), VideoError>>>,
}

impl Decoder {
    pub(crate) fn name(&self) -> &Path {
        self.ffmpeg.name()
    }

    /// Returns the image that was read last.
    pub(crate) fn image(&self) -> &[u8] {
        &self.image
    }

    /// Reads the next image. Returns `false` after the last one.
    pub(crate) fn read_image(&mut self) -> Result<bool, VideoError> {
        match self.images.read_exact(&mut self.image) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.finish().map(|()| false)
            }
            Err(error) => Err(self.ffmpeg.decode_error(error.to_string())),
        }
    }

    fn finish(&mut self) -> Result<(), VideoError> {
        let finished = self.ffmpeg.finish();
        match self.feeder.take().map(JoinHandle::join) {
            Some(Ok(fed)) => fed.and(finished),
            Some(Err(_)) => Err(self
                .ffmpeg
                .decode_error("the thread that reads the images has panicked".to_owned())),
            None => finished,
        }
    }
}

/// Returns width, height and pixel format of the first video stream of a file that ffprobe opens with
/// these options.
fn probe(path: &Path, options: &[&str]) -> Result<((usize, usize), String), VideoError> {
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
        .args(options)
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| VideoError::Program {
            program: "ffprobe",
            error,
        })?;
    let stream = parse_stream(&String::from_utf8_lossy(&output.stdout));
    stream.filter(|_| output.status.success()).ok_or_else(|| {
        let complaint = hawser_units::Line::of_output(&output.stderr).into_string();
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

/// Parses the lines of width, height and pixel format.
fn parse_stream(text: &str) -> Option<((usize, usize), String)> {
    let mut fields = text.lines();
    let size = parse_size(fields.next()?, fields.next()?)?;
    Some((size, fields.next()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_output_of_ffprobe_is_parsed_or_refused(text in r"(-?[0-9]{0,24}\r?\n?){0,2}\PC{0,16}(\n\PC{0,16}){0,3}") {
            if let Some(((width, height), _)) = parse_stream(&text) {
                prop_assert!(width > 0 && height > 0);
                prop_assert!(width * height <= MAX_SIDE * MAX_SIDE);
            }
        }
    }

    #[test]
    fn a_stream_has_a_size_and_a_format() {
        let parsed = parse_stream("848\n480\ngray16le\n").unwrap();
        assert_eq!(parsed, ((848, 480), "gray16le".to_owned()));
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
