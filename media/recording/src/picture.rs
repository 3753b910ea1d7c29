use crate::ffmpeg::{VideoError, file_argument, read_text};
use hawser_cloud::Image;
use hawser_io::{file, process};
use hawser_units::Line;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::{self, JoinHandle};

/// The reason that pictures cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// A file cannot be written.
    #[error("cannot write {path}: {error}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error from the system.
        error: io::Error,
    },
    /// A video has an image of another size than the first one, or of an odd one.
    #[error(
        "{path}: a picture of {width} x {height} pixels: all must have the same, even sides",
        path = path.display()
    )]
    Size {
        /// The video.
        path: PathBuf,
        /// Columns of the picture.
        width: usize,
        /// Rows of the picture.
        height: usize,
    },
    /// The installed ffmpeg cannot encode any format that is supported.
    #[error(
        "ffmpeg has none of the encoders {}; install an ffmpeg with one of them",
        names()
    )]
    Encoder,
    /// ffmpeg is missing or failed.
    #[error(transparent)]
    Video(#[from] VideoError),
}

/// Returns a picture as the bytes of a PNG file.
pub fn encode_png(image: &Image) -> Vec<u8> {
    let mut file = Vec::new();
    let side = |pixels: usize| u32::try_from(pixels).expect("a renderer's picture");
    let mut encoder = png::Encoder::new(&mut file, side(image.width()), side(image.height()));
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(image.rgb())?;
        writer.finish()
    });
    written.expect("a vector takes every byte of an image of this size");
    file
}

/// The encoders of ffmpeg that are used, best first, with their options. The first one may be
/// missing from a build without GPL parts, the last one belongs to every build.
const ENCODERS: [(&str, &[&str]); 3] = [
    ("libx264", &["-preset", "veryfast", "-crf", "20"]),
    ("libopenh264", &["-b:v", "6M"]),
    ("mpeg4", &["-q:v", "3"]),
];

fn names() -> String {
    ENCODERS.map(|(name, _)| name).join(", ")
}

/// An MP4 file that the program `ffmpeg` encodes from pictures of a constant frame rate.
///
/// ```no_run
/// use hawser_cloud::{Intrinsics, Performer, Pose, Renderer};
/// use hawser_recording::Mp4Writer;
/// use std::path::Path;
/// use std::time::Duration;
///
/// let mut renderer = Renderer::new(Intrinsics::centred(960, 720, 800.0))?;
/// let performer = Performer::new(1, 35_000);
/// let pose = Pose::looking([0.0, 1100.0, 2500.0], 0.0, 0.0);
/// let mut video = Mp4Writer::create(Path::new("performer.mp4"), 960, 720, 30)?;
/// for frame in 0..30 {
///     let cloud = performer.cloud(Duration::from_secs(frame) / 30);
///     video.write(&renderer.render(&cloud, &pose))?;
/// }
/// video.finish()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Mp4Writer {
    path: PathBuf,
    width: usize,
    height: usize,
    encoder: &'static str,
    ffmpeg: Child,
    images: Option<ChildStdin>,
    complaints: Option<JoinHandle<String>>,
}

impl Mp4Writer {
    /// Creates the file, or replaces it. The first encoder of libx264, libopenh264 and mpeg4 that
    /// the installed ffmpeg has is used.
    ///
    /// # Errors
    /// If the file cannot be written, a side is odd, or ffmpeg or its encoders are missing.
    pub fn create(
        path: &Path,
        width: usize,
        height: usize,
        fps: u32,
    ) -> Result<Self, PictureError> {
        let is_even = |side: usize| side > 0 && side.is_multiple_of(2);
        if !is_even(width) || !is_even(height) {
            return Err(size_error(path, width, height));
        }
        let (encoder, options) = find_encoder()?;
        let kind = fs::metadata(path).map(|found| found.file_type());
        if kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket()) {
            let error =
                io::Error::other("it is a pipe, and an MP4 file is completed at its beginning");
            return Err(write_error(path, error));
        }
        File::create(path).map_err(|error| write_error(path, error))?;
        let size = format!("{width}x{height}");
        let mut command = Command::new("ffmpeg");
        command
            .args(["-nostdin", "-v", "error", "-f", "rawvideo"])
            .args(["-pix_fmt", "rgb24", "-s", &size, "-r", &fps.to_string()])
            .args(["-i", "-", "-c:v", encoder])
            .args(options)
            .args(["-pix_fmt", "yuv420p", "-movflags", "+faststart"])
            .args(["-f", "mp4", "-y"])
            .arg(file_argument(path))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // An interrupt from the terminal does not reach it: the caller then ends the video.
        let mut ffmpeg = process::spawn(command).map_err(program_error)?;
        let images = ffmpeg.stdin.take();
        let stderr = ffmpeg.stderr.take().expect("stderr is piped");
        Ok(Mp4Writer {
            path: path.to_owned(),
            width,
            height,
            encoder,
            ffmpeg,
            images,
            complaints: Some(thread::spawn(move || read_text(stderr))),
        })
    }

    /// Returns ffmpeg's name of the encoder.
    pub fn encoder(&self) -> &'static str {
        self.encoder
    }

    /// Appends a picture. Waits while ffmpeg is busy with earlier ones.
    ///
    /// # Errors
    /// If the picture has another size, or ffmpeg has failed.
    pub fn write(&mut self, image: &Image) -> Result<(), PictureError> {
        let size = (image.width(), image.height());
        if size != (self.width, self.height) {
            return Err(size_error(&self.path, size.0, size.1));
        }
        let Some(images) = &mut self.images else {
            return Err(self.encode_error("ffmpeg has exited".to_owned()));
        };
        match images.write_all(image.rgb()) {
            Ok(()) => Ok(()),
            // The reason that ffmpeg gives says more than the closed pipe.
            Err(error) => match self.end() {
                Ok(()) => Err(self.encode_error(error.to_string())),
                Err(failure) => Err(failure),
            },
        }
    }

    /// Completes the file.
    ///
    /// # Errors
    /// If ffmpeg fails.
    pub fn finish(mut self) -> Result<(), PictureError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), PictureError> {
        drop(self.images.take());
        let status = self
            .ffmpeg
            .wait()
            .map_err(|error| self.encode_error(error.to_string()))?;
        let thread = self.complaints.take();
        let complaint = thread.and_then(|thread| thread.join().ok());
        if status.success() {
            Ok(())
        } else {
            let complaint = complaint.unwrap_or_default();
            Err(self.encode_error(format!("{complaint} (ffmpeg: {status})")))
        }
    }

    fn encode_error(&self, complaint: String) -> PictureError {
        PictureError::Video(VideoError::Encode {
            path: self.path.clone(),
            complaint,
        })
    }
}

impl Drop for Mp4Writer {
    /// Completes the file with the pictures so far. Only [`Mp4Writer::finish`] returns errors.
    fn drop(&mut self) {
        drop(self.images.take());
        let _ = self.ffmpeg.wait();
    }
}

/// Adds sound to a video of [`Mp4Writer`]: as much of a file of Opus as the video is long, with what is missing
/// concealed by libopus.
///
/// # Errors
/// If ffmpeg fails. The video is then as before.
pub fn add_sound(video: &Path, sound: &Path) -> Result<(), PictureError> {
    let both = file::with_suffix(video, ".with-sound");
    let mut command = Command::new("ffmpeg");
    command
        .args(["-nostdin", "-v", "error", "-i"])
        .arg(file_argument(video))
        .args(["-c:a", "libopus", "-i"])
        .arg(file_argument(sound))
        .args(["-map", "0:v", "-map", "1:a", "-c:v", "copy", "-c:a", "aac"])
        .args([
            "-af",
            "apad",
            "-shortest",
            "-movflags",
            "+faststart",
            "-f",
            "mp4",
            "-y",
        ])
        .arg(file_argument(&both))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let ffmpeg = process::spawn(command).map_err(program_error)?;
    let output = ffmpeg.wait_with_output().map_err(program_error)?;
    if !output.status.success() {
        // A part of it is of no use.
        let _ = fs::remove_file(&both);
        let complaint = Line::of_output(&output.stderr).into_string();
        return Err(write_error(video, io::Error::other(complaint)));
    }
    fs::rename(&both, video).map_err(|error| write_error(video, error))
}

/// Returns the first encoder that the installed ffmpeg has.
fn find_encoder() -> Result<(&'static str, &'static [&'static str]), PictureError> {
    let output = Command::new("ffmpeg")
        .args(["-hide_banner", "-v", "error", "-encoders"])
        .stdin(Stdio::null())
        .output()
        .map_err(program_error)?;
    choose_encoder(&String::from_utf8_lossy(&output.stdout)).ok_or(PictureError::Encoder)
}

/// Returns the first encoder that ffmpeg's list has. A line has flags, name and description.
fn choose_encoder(list: &str) -> Option<(&'static str, &'static [&'static str])> {
    let has = |wanted: &str| {
        list.lines()
            .any(|line| line.split_whitespace().nth(1) == Some(wanted))
    };
    ENCODERS.into_iter().find(|(name, _)| has(name))
}

fn program_error(error: io::Error) -> PictureError {
    PictureError::Video(VideoError::Program {
        program: "ffmpeg",
        error,
    })
}

fn write_error(path: &Path, error: io::Error) -> PictureError {
    PictureError::Write {
        path: path.to_owned(),
        error,
    }
}

fn size_error(path: &Path, width: usize, height: usize) -> PictureError {
    PictureError::Size {
        path: path.to_owned(),
        width,
        height,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffmpeg::PixelFormat;
    use crate::image_file;
    use crate::recorded::{Clip, Read};
    use hawser_cloud::{Intrinsics, Performer, Pose, Renderer};
    use std::time::Duration;

    fn picture(width: usize, height: usize) -> Image {
        let cloud = Performer::new(1, 3000).cloud(Duration::ZERO);
        let mut renderer = Renderer::new(Intrinsics::centred(width, height, 100.0)).unwrap();
        renderer.render(&cloud, &Pose::looking([0.0, 1100.0, 2500.0], 0.0, 0.0))
    }

    #[test]
    fn a_png_file_has_the_pixels_of_the_picture() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("picture.png");
        let image = picture(101, 80);
        std::fs::write(&path, encode_png(&image)).unwrap();

        let decoded = image_file::decode(&path, PixelFormat::Rgb24).unwrap();
        assert_eq!(decoded, ((101, 80), image.rgb().to_vec()));
    }

    #[test]
    fn an_mp4_file_has_every_picture() {
        // A name in the current folder that looks like an address.
        let mut name = tempfile::Builder::new();
        let file = name.prefix("tcp:").suffix(".mp4").tempfile_in(".").unwrap();
        let path = PathBuf::from(file.path().file_name().unwrap());
        let image = picture(160, 120);
        let mut writer = Mp4Writer::create(&path, 160, 120, 30).unwrap();
        for _ in 0..7 {
            writer.write(&image).unwrap();
        }
        let refused = writer.write(&picture(160, 118)).unwrap_err();
        assert!(matches!(refused, PictureError::Size { height: 118, .. }));
        writer.finish().unwrap();

        let images = (PixelFormat::Rgb24, (160, 120));
        let clip = Clip::of_video(&path, None, images, 30.0).unwrap();
        let mut video = clip.play(&[0, 1, 2, 3, 4, 5, 6]).unwrap();
        let mut frames = 0;
        while let Some(read) = video.read_image().unwrap() {
            assert!(matches!(read, Read::Image));
            frames += 1;
            let difference = |(a, b): (&u8, &u8)| u64::from(a.abs_diff(*b));
            let sum: u64 = video.image().iter().zip(image.rgb()).map(difference).sum();
            let mean = sum as f64 / image.rgb().len() as f64;
            assert!(mean < 8.0, "frame {frames} differs by {mean} on average");
        }
        assert_eq!(frames, 7);
    }

    #[test]
    fn a_video_that_cannot_be_written_is_an_error() {
        let create = |path: &str, width| Mp4Writer::create(Path::new(path), width, 120, 30).err();
        let missing = create("/nowhere/video.mp4", 160).unwrap().to_string();
        let expected = "cannot write /nowhere/video.mp4: No such file";
        assert!(missing.starts_with(expected), "{missing}");
        let odd = create("/nowhere/video.mp4", 161).unwrap();
        assert!(matches!(odd, PictureError::Size { width: 161, .. }));

        let mut full = Mp4Writer::create(Path::new("/dev/full"), 160, 120, 30).unwrap();
        let image = picture(160, 120);
        let written = full.write(&image).and_then(|()| full.finish());
        let error = written.unwrap_err().to_string();
        assert!(error.contains("/dev/full"), "{error}");
    }

    #[test]
    fn the_best_encoder_of_the_list_is_chosen() {
        let list = "Encoders:\n V..... = Video\n ------\n V....D mpeg4      MPEG-4 part 2\n \
            V....D libx264rgb  libx264 H.264 RGB\n V....D libx264   libx264 H.264\n";
        assert_eq!(choose_encoder(list).unwrap().0, "libx264");
        let without = list.replace("D libx264 ", "D h264_omx ");
        assert_eq!(choose_encoder(&without).unwrap().0, "mpeg4");
        assert_eq!(choose_encoder("Encoders:\n"), None);
    }
}
