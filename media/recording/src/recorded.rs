//! Recorded images: their checks when they are opened, and their decoding.

use crate::ffmpeg::{Ffmpeg, PixelFormat, VideoError, file_argument};
use crate::image_file::{self, ImageFileError};
use crate::images::ImageFiles;
use crate::nut::{self, NutError, RawImage};
use crate::probe;
use std::cmp::Ordering;
use std::io::BufReader;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// The difference of two times of one image: container formats round them to a millisecond.
const SAME_S: f64 = 0.0006;

/// The number of image files that are decoded ahead.
const IMAGES_AHEAD: usize = 2;

/// Recorded images whose size, format, orientation and times have been checked, so that they can be played again
/// and again.
pub(crate) struct Clip {
    name: PathBuf,
    input: Input,
    format: PixelFormat,
    /// Columns and rows of every image.
    size: (usize, usize),
    /// The times of the images, on the clock that this has in common with other recorded images.
    times_s: Vec<f64>,
}

/// The origin of recorded images.
enum Input {
    Video {
        stream: usize,
        /// The time in the file that is zero; none if the file does not say when its images are shown.
        zero_s: Option<f64>,
    },
    Files {
        files: Arc<[PathBuf]>,
        /// The number of the first one, if they are numbered.
        first: Option<u64>,
    },
}

impl Clip {
    /// Opens a track of a video file, whose images have this size. Without times in the file, its images are those
    /// of a rate of `fps`.
    pub(crate) fn of_video(
        path: &Path,
        track: Option<usize>,
        (format, size): (PixelFormat, (usize, usize)),
        fps: f64,
    ) -> Result<Self, VideoError> {
        let found = probe::track(path, track, format)?;
        check_size(path, found.size, size)?;
        let zero_s = found.times_s.is_some().then_some(found.zero_s);
        if zero_s.is_none() {
            tracing::warn!(video = %path.display(), fps, "the times of the images are missing or go back: the images are those of the recording's frame rate");
        }
        let times_s = match found.times_s {
            Some(times_s) => times_s
                .into_iter()
                .map(|time_s| time_s - found.zero_s)
                .collect(),
            None => (0..found.images).map(|image| image as f64 / fps).collect(),
        };
        Ok(Clip {
            name: path.to_owned(),
            input: Input::Video {
                stream: found.stream,
                zero_s,
            },
            format,
            size,
            times_s,
        })
    }

    /// Opens files of one image each. They are checked by [`Clip::check_files`].
    pub(crate) fn of_images(
        images: ImageFiles,
        (format, size): (PixelFormat, (usize, usize)),
    ) -> Self {
        Clip {
            name: images.name,
            input: Input::Files {
                files: images.files.into(),
                first: images.first,
            },
            format,
            size,
            times_s: images.times_s,
        }
    }

    /// Checks the headers and ends of the files that are played, by their numbers. Names the first one that cannot
    /// be used.
    pub(crate) fn check_files(&self, played: &[usize]) -> Result<(), VideoError> {
        let Input::Files { files, .. } = &self.input else {
            return Ok(());
        };
        let errors = played.iter().filter_map(|image| {
            let path = &files[*image];
            match image_file::check(path, self.format) {
                Ok(found) => check_size(path, found, self.size).err(),
                Err(error) => Some(image_error(path, error)),
            }
        });
        let mut errors: Vec<VideoError> = errors.collect();
        match errors.len() {
            0 => self.check_decoding(played.iter().map(|image| &*files[*image])),
            1 => Err(errors.remove(0)),
            several => Err(VideoError::Several {
                first: Box::new(errors.remove(0)),
                others: several - 1,
            }),
        }
    }

    /// Decodes one image. If it is damaged, tries the last one: what keeps both from being decoded keeps all.
    fn check_decoding<'a>(
        &self,
        mut played: impl DoubleEndedIterator<Item = &'a Path>,
    ) -> Result<(), VideoError> {
        let decode = |path| decode_file(path, self.format, self.size).map(drop);
        match (played.next().map(decode), played.next_back()) {
            (Some(Err(_)), Some(last)) => decode(last),
            (first, _) => first.unwrap_or(Ok(())),
        }
    }

    /// Returns the path of the video, the pattern, or the path of the index file.
    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    /// Returns the times of the images in seconds, in order.
    pub(crate) fn times_s(&self) -> &[f64] {
        &self.times_s
    }

    /// Returns whether an index file has the times.
    pub(crate) fn is_indexed(&self) -> bool {
        matches!(self.input, Input::Files { first: None, .. })
    }

    /// Returns the numbers of numbered files.
    pub(crate) fn numbers(&self) -> Option<Range<u64>> {
        match &self.input {
            Input::Files {
                files,
                first: Some(first),
            } => Some(*first..first.saturating_add(files.len() as u64)),
            _ => None,
        }
    }

    /// Starts to decode images of these numbers, which are in order.
    pub(crate) fn play(&self, images: &[usize]) -> Result<Decoder, VideoError> {
        let source = match &self.input {
            Input::Files { files, .. } => {
                let files = images.iter().map(|image| files[*image].clone()).collect();
                Decoding::Files(decode_files(files, self.format, self.size))
            }
            Input::Video { stream, zero_s } => {
                let (ffmpeg, output) = self.start(*stream)?;
                let times_s = images.iter().map(|image| self.times_s[*image]);
                let wanted = match zero_s {
                    Some(zero_s) => Wanted::Times(times_s.map(|time_s| time_s + zero_s).collect()),
                    None => Wanted::Numbers(images.to_vec()),
                };
                Decoding::Video(Box::new(VideoDecoding {
                    ffmpeg,
                    images: nut::Images::new(BufReader::new(output), self.format),
                    size: self.size,
                    wanted,
                    next: None,
                    number: 0,
                    has_ended: false,
                }))
            }
        };
        Ok(Decoder {
            image: vec![0; self.format.image_bytes(self.size)],
            left: images.len(),
            read: 0,
            source,
        })
    }

    fn start(&self, stream: usize) -> Result<(Ffmpeg, ChildStdout), VideoError> {
        let mut command = Ffmpeg::command();
        command.args(["-noautorotate", "-copyts"]);
        if self.format == PixelFormat::Gray16 {
            // A damaged depth image is left out, not repaired.
            command.args(["-err_detect", "explode"]);
        }
        command.arg("-i").arg(file_argument(&self.name));
        command
            .args(["-map", &format!("0:{stream}")])
            .args(nut::OUTPUT);
        if self.format == PixelFormat::Rgb24 {
            command.args(["-pix_fmt", "rgb24"]);
        }
        command.arg("-");
        Ffmpeg::start(&self.name, command, Stdio::null())
    }
}

/// Fails if images do not have the size that the intrinsics are for.
pub(crate) fn check_size(
    path: &Path,
    found: (usize, usize),
    expected: (usize, usize),
) -> Result<(), VideoError> {
    match found == expected {
        true => Ok(()),
        false => Err(VideoError::Size {
            path: path.to_owned(),
            found,
            expected,
        }),
    }
}

fn image_error(path: &Path, error: ImageFileError) -> VideoError {
    let path = path.to_owned();
    match error {
        ImageFileError::Read(error) => VideoError::Open { path, error },
        ImageFileError::Orientation(orientation) => VideoError::Orientation {
            path,
            orientation: orientation.to_owned(),
        },
        ImageFileError::NotDepth(found) => VideoError::NotDepth { path, found },
        other => VideoError::Images {
            path,
            reason: other.to_string(),
        },
    }
}

/// Decodes files in a thread of its own, a few ahead.
fn decode_files(
    files: Vec<PathBuf>,
    format: PixelFormat,
    size: (usize, usize),
) -> Receiver<Result<Vec<u8>, VideoError>> {
    let (sender, receiver) = sync_channel(IMAGES_AHEAD);
    thread::spawn(move || {
        for path in files {
            if sender.send(decode_file(&path, format, size)).is_err() {
                // Nobody plays them any more.
                break;
            }
        }
    });
    receiver
}

fn decode_file(
    path: &Path,
    format: PixelFormat,
    size: (usize, usize),
) -> Result<Vec<u8>, VideoError> {
    let (found, image) =
        image_file::decode(path, format).map_err(|error| image_error(path, error))?;
    check_size(path, found, size)?;
    Ok(image)
}

/// The outcome of reading an image.
pub(crate) enum Read {
    /// The image of the next frame.
    Image,
    /// The image of the next frame is missing or damaged.
    Lost(VideoError),
}

/// Recorded images while they are decoded, one for each frame.
pub(crate) struct Decoder {
    image: Vec<u8>,
    left: usize,
    read: usize,
    source: Decoding,
}

enum Decoding {
    Files(Receiver<Result<Vec<u8>, VideoError>>),
    Video(Box<VideoDecoding>),
}

impl Decoder {
    /// Returns the image that was read last.
    pub(crate) fn image(&self) -> &[u8] {
        &self.image
    }

    /// Reads the image of the next frame. Returns `None` after the last one.
    ///
    /// # Errors
    /// If a video cannot be decoded at all.
    pub(crate) fn read_image(&mut self) -> Result<Option<Read>, VideoError> {
        if self.read == self.left {
            return Ok(None);
        }
        let image = match &mut self.source {
            Decoding::Files(images) => images.recv().unwrap_or_else(|_| {
                let reason = "the thread that reads the images has panicked".to_owned();
                let path = PathBuf::new();
                Err(VideoError::Images { path, reason })
            }),
            Decoding::Video(video) => video.read(self.read)?,
        };
        self.read += 1;
        Ok(Some(match image {
            Ok(image) => {
                self.image = image;
                Read::Image
            }
            Err(error) => Read::Lost(error),
        }))
    }
}

/// The images of a video that are shown.
enum Wanted {
    Times(Vec<f64>),
    Numbers(Vec<usize>),
}

struct VideoDecoding {
    ffmpeg: Ffmpeg,
    images: nut::Images<BufReader<ChildStdout>>,
    size: (usize, usize),
    wanted: Wanted,
    /// An image that was decoded and belongs to a later frame.
    next: Option<RawImage>,
    /// The number of images that were decoded.
    number: usize,
    has_ended: bool,
}

impl VideoDecoding {
    /// Reads the image of a frame. An image that is missing is not an error of the video.
    fn read(&mut self, frame: usize) -> Result<Result<Vec<u8>, VideoError>, VideoError> {
        loop {
            let next = match self.next.take() {
                Some(next) => Some(next),
                None => self.decode()?,
            };
            let Some(image) = next else {
                return Ok(Err(self.lost(frame)));
            };
            match self.order(&image, frame) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(self.checked(image)),
                Ordering::Greater => {
                    self.next = Some(image);
                    return Ok(Err(self.lost(frame)));
                }
            }
        }
    }

    /// Compares an image with that of a frame.
    fn order(&self, image: &RawImage, frame: usize) -> Ordering {
        let times_s = match &self.wanted {
            Wanted::Times(times_s) => times_s,
            // It has been counted.
            Wanted::Numbers(numbers) => return (self.number - 1).cmp(&numbers[frame]),
        };
        match image.time_s - times_s[frame] {
            apart if apart.abs() <= SAME_S => Ordering::Equal,
            apart => apart.total_cmp(&0.0),
        }
    }

    fn checked(&self, image: RawImage) -> Result<Vec<u8>, VideoError> {
        check_size(self.ffmpeg.name(), image.size, self.size)?;
        Ok(image.bytes)
    }

    /// Decodes the next image; `None` at the end.
    fn decode(&mut self) -> Result<Option<RawImage>, VideoError> {
        if self.has_ended {
            return Ok(None);
        }
        let image = self.images.next().map_err(|error| self.error(error))?;
        self.number += usize::from(image.is_some());
        if image.is_none() {
            self.has_ended = true;
            let finished = self.ffmpeg.finish();
            if self.number == 0 {
                finished?;
            }
        }
        Ok(image)
    }

    fn lost(&self, frame: usize) -> VideoError {
        let place = match &self.wanted {
            Wanted::Times(times_s) => format!("at {:.3} s", times_s[frame]),
            Wanted::Numbers(numbers) => format!("of number {}", numbers[frame]),
        };
        self.ffmpeg
            .decode_error(format!("it has no valid image {place}"))
    }

    fn error(&self, error: NutError) -> VideoError {
        nut_error(self.ffmpeg.name(), error)
    }
}

pub(crate) fn nut_error(path: &Path, error: NutError) -> VideoError {
    let path = path.to_owned();
    match error {
        NutError::Io(error) => VideoError::Decode {
            path,
            complaint: error.to_string(),
        },
        NutError::Malformed(reason) => VideoError::Decode {
            path,
            complaint: reason.to_owned(),
        },
        NutError::Format(found) => VideoError::NotDepth { path, found },
    }
}
