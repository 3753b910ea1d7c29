use crate::ffmpeg::{Ffmpeg, PixelFormat, VideoError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

/// A video file whose format is known, so that it can be played again and again without a search
/// for it.
pub(crate) struct Clip {
    path: PathBuf,
    format: PixelFormat,
    image_bytes: usize,
}

impl Clip {
    pub(crate) fn open(path: &Path, format: PixelFormat) -> Result<Self, VideoError> {
        std::fs::File::open(path).map_err(|error| VideoError::Open {
            path: path.to_owned(),
            error,
        })?;
        let (width, height, found) = probe(path)?;
        if format == PixelFormat::Gray16 && !found.starts_with("gray16") {
            return Err(VideoError::NotDepth {
                path: path.to_owned(),
                found,
            });
        }
        let pixel_bytes = match format {
            PixelFormat::Rgb24 => 3,
            PixelFormat::Gray16 => 2,
        };
        Ok(Clip {
            path: path.to_owned(),
            format,
            image_bytes: width * height * pixel_bytes,
        })
    }

    /// Starts to decode the video from its first image.
    pub(crate) fn play(&self) -> Result<Video, VideoError> {
        let pixel_format = match self.format {
            PixelFormat::Rgb24 => "rgb24",
            PixelFormat::Gray16 => "gray16le",
        };
        let mut command = Ffmpeg::command();
        command.args(["-xerror", "-i"]).arg(&self.path);
        command.args(["-map", "0:v:0", "-fps_mode", "passthrough"]);
        command.args(["-f", "rawvideo", "-pix_fmt", pixel_format, "-"]);
        let (ffmpeg, images) = Ffmpeg::start(&self.path, command, Stdio::null())?;
        Ok(Video {
            image: vec![0; self.image_bytes],
            ffmpeg,
            images,
        })
    }
}

/// A video that ffmpeg decodes into a pipe, image by image.
pub(crate) struct Video {
    image: Vec<u8>,
    ffmpeg: Ffmpeg,
    images: ChildStdout,
}

impl Video {
    pub(crate) fn path(&self) -> &Path {
        self.ffmpeg.name()
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
                self.ffmpeg.finish().map(|()| false)
            }
            Err(error) => Err(self.ffmpeg.decode_error(error.to_string())),
        }
    }
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
